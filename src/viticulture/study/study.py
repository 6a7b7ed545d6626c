# SPDX-License-Identifier: Apache-2.0
"""A study in Python: its rows, its table and its conclusion, read from the folder."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import UserError
from ..text import shell_word
from .comparison import Comparison, RankingEntry, compare
from .folder import StudyFolder
from .grid import Grid
from .halving import current_outcomes
from .outcomes import Outcome, Outcomes
from .plan import StudyPlan
from .statistics import Estimate, next_level

MAX_NAMES = 4  # candidates in a sentence that are named one by one


def conclusion(grid: Grid, comparisons: Sequence[Comparison], finished: int, cells: int) -> str:
    """Return the study's conclusion, about the largest training subset."""
    left = "" if finished == cells else f" ({finished} of {cells} trainings are finished.)"
    if not comparisons:
        state = "No held-out images have been evaluated" if finished else "Nothing is finished yet"
        return f"{state}: {finished} of {cells} trainings."
    if grid.published:
        return _versus_published(grid, comparisons) + left
    comparison = comparisons[-1]
    leader, rivals = comparison.leader, comparison.rivals
    name, where = leader.candidate.name, f"{data_name(comparison.data)}, {comparison.subset.name}"
    measure, reached = comparison.measure, _written(comparison, leader.test, grid.unit)
    result = f"classifies {reached} of the {comparison.reported} images correctly"
    if measure.of:
        result = f"reaches {measure.of} of {reached} on the {comparison.reported} images"
    if not rivals:
        return f"{name} {result} on {where}; nothing that it could be compared with is finished.{left}"
    reference = _versus_reference(comparison)
    closest = comparison.not_separated[0] if comparison.not_separated else next(iter(rivals))
    lead = rivals[closest]
    if comparison.has_winner:
        what = f"{name} trains the best ViT" if leader.vit else f"{name}, which is not a ViT, is best"
        more = f"{measure.difference(lead)} more than {closest}, the closest"
        return f"{what} on {where}: it {result}, {more}.{reference}{left}"
    if comparison.incomplete:
        why = max(comparison.incomplete.values())  # failures first
        names = [each for each, cause in comparison.incomplete.items() if cause == why]
        listed = names if len(names) <= MAX_NAMES + 1 else names[:MAX_NAMES]
        more = f" and {len(names) - MAX_NAMES} others" if len(listed) < len(names) else ""
        reason = f"there is no winner while trainings of {', '.join(listed)}{more} {why}"
    elif lead.over_seeds.sd is None:
        reason = f"the spread is not known from one common {grid.unit}; train at least three"
    elif lead.mean <= 0:
        reason = f"on {comparison.reported} images {closest} is not worse (difference: {measure.difference(lead)})"
    else:
        reason = f"its lead over {closest}, {measure.difference(lead)}, may be chance"
        if needed := lead.seeds_needed(next_level(comparison.level)):
            seeds = max(needed, len(lead.over_seeds.values) + 1)
            reason += f"; about {seeds} seeds would confirm a lead of this size"
    split = "validation" if comparison.ranked_by == "val" else "test"
    return f"No winner on {where}: {name} is first on {split} images and {result}, but {reason}.{reference}{left}"


def _versus_reference(comparison: Comparison) -> str:
    """Compare the leader with the best network that is not a ViT."""
    if comparison.reference is None:
        return ""
    name, difference = comparison.reference
    written = comparison.measure.difference(difference)
    if not difference.separates():
        return f" Its difference to {name}, which is not a ViT, may be chance: {written}."
    better = "worse" if difference.mean > 0 else "better"
    return f" {name}, which is not a ViT, is {better}: {written}."


def _versus_published(grid: Grid, comparisons: Sequence[Comparison]) -> str:
    rows = [
        (entry.test, entry.candidate.published, comparison.measure.factor)
        for comparison in comparisons
        for entry in comparison.ranking
        if entry.candidate.published is not None
    ]
    if not rows:
        return f"{grid.table}: no row that has a published number is finished yet."
    gaps = [factor * test.mean - published for test, published, factor in rows]
    inside = [
        test
        for test, published, factor in rows
        if test.low is not None and test.high is not None and factor * test.low <= published <= factor * test.high
    ]
    words = f"{grid.table}: ours minus published is {fmean(gaps):+.1f} points on average over {len(rows)} rows"
    if len(rows) > 1:
        words += f", from {min(gaps):+.1f} to {max(gaps):+.1f}"
    if any(test.sd is not None for test, *_ in rows):
        words += f"; {len(inside)} of the published numbers lie inside our 95 % intervals"
    return words + "."


def data_name(data: str) -> str:
    """Return the name of a data set: that of a folder or file without its path."""
    return data.removesuffix("/*").rstrip("/").rsplit("/", 1)[-1] or data


def _written(comparison: Comparison, estimate: Estimate, unit: str) -> str:
    interval = comparison.measure.interval(estimate)
    value = comparison.measure.value(estimate.mean)
    return value if interval is None else f"{value} (95 % interval {interval}, {len(estimate.values)} {unit}s)"


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
