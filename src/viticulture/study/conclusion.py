# SPDX-License-Identifier: Apache-2.0
"""The conclusion of a study in a sentence or two."""

from collections.abc import Sequence
from statistics import fmean

from .comparison import Comparison
from .grid import Grid
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
