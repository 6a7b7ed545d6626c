# SPDX-License-Identifier: Apache-2.0
"""A study's tables: the plan before it, the results after it, every number with its spread."""

from collections.abc import Sequence

from ..errors import counted
from ..study.comparison import Comparison
from ..study.grid import Cell as GridCell
from ..study.grid import Grid
from ..study.measures import Measure, measure
from ..study.plan import EVAL_VIEWS, IMAGE_SIZE, StudyPlan
from ..study.statistics import Difference, Estimate
from ..study.study import Study, data_name
from ..study.terms import AUTO
from ..table import Cell, Column, Spread, Table, percent
from ..text import shell_word


def plan_table(grid: Grid, plan: StudyPlan) -> Table:
    """Return epochs and minutes of every candidate's cells, before training."""
    rows: list[list[Cell]] = []
    groups: dict[tuple[str, str], list[GridCell]] = {}
    for cell in {cell.name: cell for cell in reversed(grid.cells())}.values():
        groups.setdefault((cell.candidate.name, cell.subset.name), []).append(cell)
    for key in ((candidate.name, subset.name) for candidate in grid.candidates for subset in grid.subsets.each()):
        if cells := groups.get(key):
            seconds = plan.seconds(cells[0], grid)
            each, total = (None, None) if seconds is None else (seconds / 60, seconds / 60 * len(cells))
            rows.append([*key, plan.epochs[key], _minutes(each), len(cells), _minutes(total)])
    columns = [
        Column("candidate"),
        Column("training data"),
        Column("epochs", "count"),
        Column("min per cell", "decimal"),
    ]
    columns += [Column("cells", "count"), Column("min", "decimal")]
    return Table("Plan", columns, rows, plan_note(grid, plan))


def plan_note(grid: Grid, plan: StudyPlan) -> str:
    """Describe the terms of a study."""
    terms = {
        "epochs": "Every cell trains for the same number of epochs",
        "time": "Every cell of one training subset trains for the same time",
        "recipe": "Every recipe trains for the number of epochs it sets",
    }[grid.terms.equal]
    if plan.scale < 1:
        budget = f"the budget of {grid.terms.budget}"
        if grid.terms.budget == AUTO:
            *others, last = grid.terms.budgets
            budget = f"a budget of {plan.budget}, chosen from {', '.join(others)} and {last}"
        terms += f", shortened to {percent(plan.scale)} by {budget}"
    if grid.terms.halving:
        terms += "; after a quarter and after half of the length the worse half is dropped"
    if plan.image_keys:
        size = f" of {plan.image_keys[IMAGE_SIZE]} px" if IMAGE_SIZE in plan.image_keys else ""
        once = ", without test-time augmentation" if EVAL_VIEWS in plan.image_keys else ""
        terms += f"; the budget chose images{size}{once}"
    total = plan.total(grid)
    terms += "." if total is None else f". About {_minutes(total / 60)} min in one process on this machine."
    return " ".join([terms, *few_steps(plan, grid.unit)])


def few_steps(plan: StudyPlan, unit: str) -> list[str]:
    """Return a warning where trainings are too short for a ranking."""
    if plan.allows_ranking:
        return []
    steps = plan.min_steps or 0
    more = f"a longer budget, fewer {unit}s, a smaller --image-size" if plan.scale < 1 else "more epochs"
    return [
        f"The shortest training has {counted(steps, 'step')}, which is too few for a ranking of methods: use {more} or "
        "a larger part of the images."
    ]


def results_table(study: Study) -> Table:
    """Return a row per candidate and a column per training subset: the measure, mean and sd over seeds."""
    grid, comparisons = study.folder.grid, study.comparisons
    several = len({comparison.data for comparison in comparisons}) > 1
    columns = [Column("candidate")]
    for comparison in comparisons:
        data = f"{data_name(comparison.data)}, " if several else ""
        columns.append(Column(f"{data}{comparison.subset.name}", "spread"))
    if grid.published:
        columns += [Column("published", "decimal"), Column("ours − published", "decimal")]
    rows: list[list[Cell]] = []
    for candidate in grid.candidates:
        entries = [
            (each.measure, next((e for e in each.ranking if e.candidate == candidate), None)) for each in comparisons
        ]
        row: list[Cell] = [candidate.name, *(_spread(e.test, measured) if e else None for measured, e in entries)]
        if grid.published:
            ours = next((measured.factor * e.test.mean for measured, e in entries if e), None)
            published = candidate.published
            gap = f"{ours - published:+.1f}" if ours is not None and published is not None else None
            row += [None if published is None else f"{published:g}", gap]
        rows.append(row)
    where = "" if several else f" on {data_name(comparisons[-1].data)}" if comparisons else ""
    last = comparisons[-1].measure if comparisons else measure(["accuracy"])
    return Table(
        f"{last.title}{where}{last.unit}",
        columns,
        rows,
        _seeds_note(comparisons, grid.unit) + _not_of_test(comparisons),
    )


def all_results_table(study: Study) -> Table:
    """Return a row per candidate and training subset, with everything that was measured."""
    comparisons, grid = study.comparisons, study.folder.grid
    several = len({comparison.data for comparison in comparisons}) > 1
    reported = "test" if any(comparison.reported == "test" for comparison in comparisons) else "validation"
    of_test = reported == "test"
    ranked_measure = comparisons[-1].measure if comparisons else measure(["accuracy"])
    columns = [
        Column("candidate"),
        Column("training data"),
        *([Column("data")] if several else []),
        Column("images", "count"),
        Column(f"{grid.unit}s", "count"),
        Column(f"{reported}{ranked_measure.unit}", "spread"),
        Column("95 % interval", "decimal"),
        *([Column(f"validation{ranked_measure.unit}", "spread")] if of_test else []),
        Column(
            f"− baseline{',' * ranked_measure.share}{ranked_measure.points}",
            "signed" if ranked_measure.share else "decimal",
        ),
        Column("its interval", "decimal"),
        Column("epochs", "count"),
        Column(f"min a {grid.unit}", "significant"),
        Column(f"core-min a {grid.unit}", "significant"),
        Column("parameters, M", "significant"),
        Column("MACs, M", "significant"),
    ]
    rows: list[list[Cell]] = []
    for comparison in comparisons:
        for entry in comparison.ranking:
            images, epochs, gap = entry.mean("train_images"), entry.mean("epochs"), entry.versus_baseline
            measured = comparison.measure
            rows.append(
                [
                    entry.candidate.name,
                    entry.subset.name,
                    *([data_name(comparison.data)] if several else []),
                    None if images is None else round(images),
                    len(entry.outcomes),
                    _spread(entry.test, measured) if entry.tested or not of_test else None,
                    measured.interval(entry.test, "–"),
                    *([_spread(entry.val, measured) if entry.val else None] if of_test else []),
                    None if gap is None else measured.factor * gap.mean,
                    None if gap is None else _ends(gap, measured),
                    None if epochs is None else round(epochs),
                    _divided(entry.mean("seconds"), 60),
                    _divided(entry.mean("core_seconds"), 60),
                    _divided(entry.mean("parameters"), 1e6),
                    _divided(entry.mean("macs"), 1e6),
                ]
            )
    ranked_by = "validation" if all(comparison.ranked_by == "val" for comparison in comparisons) else reported
    difference, names = "Student's interval", {name for comparison in comparisons for name in comparison.measured}
    if ranked_measure.images or "accuracy" in names:
        of = "" if ranked_measure.images else ", for accuracies,"
        over = f"{'' if grid.overlap else 'seeds and '}{reported} images"
        difference = f"the wider of {difference} and{of} the interval over {over}"
    note = (
        f"Candidates are ordered by {ranked_by} {ranked_measure.word}. Intervals: 95 %, "
        f"{intervals(grid, sorted(names), reported)}. − baseline: paired difference to {grid.baseline.name} on the "
        f"same {grid.unit}s, with {difference}."
    )
    return Table("All results", columns, rows, note)


def failures(study: Study) -> list[Table]:
    """Return a table of the trainings that failed, with their errors; none if there are none."""
    rows: list[list[Cell]] = [
        [outcome.cell.candidate.name, outcome.cell.subset.name, outcome.cell.seed, outcome.error]
        for outcome in study.outcomes
        if outcome.status == "failed"
    ]
    unit = study.folder.grid.unit
    columns = [Column("candidate"), Column("training data"), Column(unit, "count"), Column("error", "prose")]
    again = f"Fix these errors; `viticulture compare resume {shell_word(study.path)}` then tries them again."
    return [Table("Failed", columns, rows, again)] if rows else []


def intervals(grid: Grid, measured: Sequence[str], reported: str) -> str:
    """Describe the intervals of measures; each separately, if they have several."""
    students = "Student's over seeds"
    if grid.overlap:
        students = "Student's over folds, corrected for their shared training images"

    def wider(images: str) -> str:
        return f"the wider of {students}{',' * bool(grid.overlap)} and {images}" if images else students

    images = {entry.word: entry.images.format(reported) for entry in (measure([name]) for name in measured)}
    if len(set(images.values())) == 1:
        return wider(next(iter(images.values())))
    return wider("") + "".join(f"; of {word} {wider(over)}" for word, over in images.items() if over)


def _spread(estimate: Estimate, measured: Measure) -> Spread:
    """Return the values as they are written."""
    return Spread(tuple(measured.factor * value for value in estimate.values), measured.digits)


def _ends(difference: Difference, measured: Measure) -> str | None:
    """Return the wider of a difference's intervals."""
    ends = measured.ends(difference)
    return ends and " to ".join(f"{end:+.{measured.digits}f}" for end in ends)


def _seeds_note(comparisons: list[Comparison], unit: str) -> str:
    seeds = sorted({len(entry.outcomes) for comparison in comparisons for entry in comparison.ranking})
    if not seeds:
        return ""
    if seeds == [1]:
        return f"One {unit}: the spread is not known."
    return f"Mean ± standard deviation over {' to '.join(map(str, (seeds[:1] + seeds[-1:])[: len(seeds)]))} {unit}s."


def _not_of_test(comparisons: list[Comparison]) -> str:
    """Name candidates with numbers of validation images where others are of test images, as guides log in training."""
    entries = [entry for comparison in comparisons if comparison.reported == "test" for entry in comparison.ranking]
    names = dict.fromkeys(entry.candidate.name for entry in entries if not entry.tested)
    return f" On validation images: {', '.join(names)}." if names else ""


def _minutes(minutes: float | None) -> str | None:
    if minutes is None:
        return None
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.2g}"


def _divided(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
