# SPDX-License-Identifier: Apache-2.0
"""A study as Python sees it: its rows, its table and its conclusion, read from the folder."""

import importlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..text import shell_word
from .comparison import Comparison, RankingEntry, conclusion, verdicts
from .folder import StudyFolder
from .halving import standing
from .outcomes import Outcome, Outcomes
from .plan import StudyPlan


@dataclass(frozen=True)
class Study:
    """A study's folder as it was when first read: its cells, table and conclusion, finished or not.

    Args:
        path: the study's folder.
        data: where its images are now; by default where they were.
    """

    path: Path
    data: str = ""

    @cached_property
    def folder(self) -> StudyFolder:
        """The folder's files."""
        return StudyFolder.open(self.path, self.data)

    @cached_property
    def plan(self) -> StudyPlan | None:
        """Epochs of every cell; None before it is made."""
        facts = self.folder.facts
        return StudyPlan.from_dict(facts["plan"]) if "plan" in facts else None

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Every cell as it stands."""
        return standing(self.folder.grid, Outcomes(self.folder))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What table.csv holds: a flat row a cell; shares lie in [0, 1]."""
        return [outcome.row for outcome in self.outcomes]

    @property
    def table(self) -> Any:
        """The rows as a pandas DataFrame. Raises: UserError where pandas is not installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UserError("the table needs pandas: pip install pandas; `rows` holds the same without it") from error
        return pandas.DataFrame(self.rows)

    @cached_property
    def verdicts(self) -> list[Comparison]:
        """What can be concluded on every training subset, the largest last."""
        return verdicts(self.folder, self.outcomes)

    @property
    def counts(self) -> tuple[int, int]:
        """Finished trainings, and all of the full length that are wanted."""
        last = len(self.folder.grid.terms.rungs) - 1
        wanted = {o.cell.name: o.status for o in self.outcomes if o.cell.rung == last and o.status != "dropped"}
        return sum(status == "finished" for status in wanted.values()), len(wanted)

    @property
    def failed(self) -> int:
        """Trainings that failed; `viticulture compare` ends with status 1 where there are any."""
        return len({outcome.cell.name for outcome in self.outcomes if outcome.status == "failed"})

    @property
    def conclusion(self) -> str:
        """The conclusion in a sentence or two."""
        return conclusion(self.folder.grid, self.verdicts, *self.counts)

    @property
    def leader(self) -> RankingEntry:
        """First by validation on the largest training subset. Raises: UserError if there is nothing to rank by."""
        if not self.verdicts:
            known, more = self.conclusion.rstrip("."), f"`viticulture compare resume {shell_word(self.path)}`"
            raise UserError(f"nothing can be ranked in {self.path} ({known}); go on by {more}")
        return self.verdicts[-1].leader

    @property
    def winner(self) -> str | None:
        """The candidate that beats all others beyond chance; None where none does."""
        return self.verdicts[-1].leader.candidate.name if self.verdicts and self.verdicts[-1].named else None
