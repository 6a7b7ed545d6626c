# SPDX-License-Identifier: Apache-2.0
"""A study in Python: its rows, its table and its conclusion, read from the folder."""

import importlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..text import shell_word
from .comparison import Comparison, RankingEntry, compare
from .conclusion import conclusion
from .folder import StudyFolder
from .halving import current_outcomes
from .outcomes import Outcome, Outcomes
from .plan import StudyPlan


@dataclass(frozen=True)
class Study:
    """A study's folder as it was when first read: its cells, table and conclusion, finished or not."""

    path: Path
    data: str = ""  # where its images are now; by default where they were

    @cached_property
    def folder(self) -> StudyFolder:
        """The folder's files."""
        return StudyFolder.open(self.path, self.data)

    @cached_property
    def plan(self) -> StudyPlan | None:
        """Epochs of every cell; None before planning."""
        metadata = self.folder.metadata
        return StudyPlan.from_dict(metadata["plan"]) if "plan" in metadata else None

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """The current outcome of every cell."""
        return current_outcomes(self.folder.grid, Outcomes(self.folder))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of table.csv, one per cell; fractions lie in [0, 1]."""
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
    def comparisons(self) -> list[Comparison]:
        """Results of the comparison on every training subset, the largest last."""
        return compare(self.folder, self.outcomes)

    @property
    def counts(self) -> tuple[int, int]:
        """Finished trainings of the full length, and their planned number."""
        last = len(self.folder.grid.terms.rungs) - 1
        planned = {o.cell.name: o.status for o in self.outcomes if o.cell.rung == last and o.status != "dropped"}
        return sum(status == "finished" for status in planned.values()), len(planned)

    @property
    def failed(self) -> int:
        """Trainings that failed; with any, `viticulture compare` ends with status 1."""
        return len({outcome.cell.name for outcome in self.outcomes if outcome.status == "failed"})

    @property
    def conclusion(self) -> str:
        """The conclusion in a sentence or two."""
        return conclusion(self.folder.grid, self.comparisons, *self.counts)

    @property
    def leader(self) -> RankingEntry:
        """The first by validation on the largest training subset. Raises: UserError if there is nothing to rank by."""
        if not self.comparisons:
            reason, more = self.conclusion.rstrip("."), f"`viticulture compare resume {shell_word(self.path)}`"
            raise UserError(f"nothing can be ranked in {self.path} ({reason}); continue it by {more}")
        return self.comparisons[-1].leader

    @property
    def winner(self) -> str | None:
        """The candidate that beats all others beyond chance; None without one."""
        return (
            self.comparisons[-1].leader.candidate.name if self.comparisons and self.comparisons[-1].has_winner else None
        )
