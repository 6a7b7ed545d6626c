# SPDX-License-Identifier: Apache-2.0
"""A study's tables: the plan before it, the results after it, every number with its spread."""

from collections.abc import Sequence

from ..errors import counted
from ..study.comparison import Comparison, subject
from ..study.grid import Cell as GridCell
from ..study.grid import Grid
from ..study.measures import measure
from ..study.plan import IMAGE_SIZE, VIEWS, StudyPlan
from ..study.statistics import Difference, Estimate
from ..study.study import Study
from ..study.terms import AUTO
from ..table import Cell, Column, Spread, Table, percent
from ..text import shell_word


def plan_table(grid: Grid, plan: StudyPlan) -> Table:
    """Epochs and minutes of every candidate's cells, before anything is trained."""
    rows: list[list[Cell]] = []
    known = {cell.name: cell for cell in reversed(grid.cells())}
    grouped: dict[tuple[str, str], list[GridCell]] = {}
    for cell in known.values():
        grouped.setdefault((cell.candidate.name, cell.subset.name), []).append(cell)
    for candidate in grid.candidates:
        for subset in grid.subsets.each():
            if cells := grouped.get((candidate.name, subset.name)):
                seconds = plan.seconds(cells[0], grid)
                minutes = None if seconds is None else seconds / 60
                total = None if minutes is None else minutes * len(cells)
                epochs = plan.epochs[candidate.name, subset.name]
                rows.append([candidate.name, subset.name, epochs, _minutes(minutes), len(cells), _minutes(total)])
    columns = [Column("candidate"), Column("training data"), Column("epochs", "count"), Column("min a cell", "decimal")]
    columns += [Column("cells", "count"), Column("min", "decimal")]
    return Table("Plan", columns, rows, plan_note(grid, plan))


def plan_note(grid: Grid, plan: StudyPlan) -> str:
    """The terms of a study in a sentence."""
    terms = {
        "epochs": "Every cell trains for the same number of epochs",
        "time": "Every cell of one training subset trains for the same time",
        "recipe": "Every recipe trains for its own number of epochs",
    }[grid.terms.equal]
    if plan.share < 1:
        terms += f", shortened to {percent(plan.share)} by {_budget(grid, plan)}"
    if grid.terms.halving:
        terms += "; after a quarter and after half of the length the worse half is dropped"
    if plan.shown:
        size = f" at {plan.shown[IMAGE_SIZE]} px" if IMAGE_SIZE in plan.shown else ""
        once = " and each is answered once" if VIEWS in plan.shown else ""
        terms += f"; the budget shows images{size}{once}"
    total = plan.total(grid)
    terms += "." if total is None else f". About {_minutes(total / 60)} min in one process on this machine."
    return " ".join([terms, *few_steps(plan, grid.unit)])


def _budget(grid: Grid, plan: StudyPlan) -> str:
    if grid.terms.budget != AUTO:
        return f"the budget of {grid.terms.budget}"
    return f"a budget of {plan.budget}, chosen of {', '.join(grid.terms.budgets[:-1])} and {grid.terms.budgets[-1]}"


def few_steps(plan: StudyPlan, unit: str) -> list[str]:
    """What a reader of a study must know whose trainings are too short to tell."""
    if plan.tells:
        return []
    steps = plan.fewest_steps or 0
    more = f"a longer budget, fewer {unit}s, a smaller --image-size" if plan.share < 1 else "more epochs"
    return [
        f"{counted(steps, 'step')}, the shortest cell's, {'is' if steps == 1 else 'are'} too few to tell how methods "
        f"rank: give {more} or a larger share of the images."
    ]


def results_table(study: Study) -> Table:
    """One row a candidate, one column a training subset: the measure, %, mean and sd over seeds."""
    grid, verdicts = study.folder.grid, study.verdicts
    columns = [Column("candidate")]
    several = len({verdict.data for verdict in verdicts}) > 1
    columns += [Column(_heading(verdict, several), "spread") for verdict in verdicts]
    if grid.published:
        columns += [Column("published", "decimal"), Column("ours − published", "decimal")]
    rows: list[list[Cell]] = []
    for candidate in grid.candidates:
        standings = [next((s for s in verdict.standings if s.candidate == candidate), None) for verdict in verdicts]
        row: list[Cell] = [candidate.name, *(spread(s.test) if s else None for s in standings)]
        if grid.published:
            ours = next((100 * s.test.mean for s in standings if s), None)
            known = candidate.published
            gap = f"{ours - known:+.1f}" if ours is not None and known is not None else None
            row += [None if known is None else f"{known:g}", gap]
        rows.append(row)
    where = "" if several else f" on {subject(verdicts[-1].data)}" if verdicts else ""
    title = verdicts[-1].measure.title if verdicts else measure(["accuracy"]).title
    return Table(f"{title}{where}, %", columns, rows, _seeds_note(verdicts, grid.unit) + _not_of_test(verdicts))


def full_table(study: Study) -> Table:
    """One row a candidate and training subset, with everything that was measured."""
    several, grid = len({verdict.data for verdict in study.verdicts}) > 1, study.folder.grid
    reported = "test" if any(verdict.reported == "test" for verdict in study.verdicts) else "validation"
    columns = [Column("candidate"), Column("training data")]
    columns += [Column("data")] if several else []
    columns += [
        Column("images", "count"),
        Column(f"{grid.unit}s", "count"),
        Column(f"{reported}, %", "spread"),
        Column("95 % interval", "decimal"),
        *([Column("validation, %", "spread")] if reported == "test" else []),
        Column("− baseline, points", "signed"),
        Column("its interval", "decimal"),
        Column("epochs", "count"),
        Column(f"min a {grid.unit}", "significant"),
        Column("parameters, M", "significant"),
        Column("MACs, M", "significant"),
    ]
    rows: list[list[Cell]] = []
    for verdict in study.verdicts:
        for standing in verdict.standings:
            row: list[Cell] = [
                standing.candidate.name,
                standing.subset.name,
                *([subject(verdict.data)] if several else []),
            ]
            images, epochs, seconds = standing.fact("train_images"), standing.fact("epochs"), standing.fact("seconds")
            row += [
                None if images is None else round(images),
                len(standing.outcomes),
                spread(standing.test) if standing.tested or reported != "test" else None,
                _interval(standing.test),
                *([spread(standing.val) if standing.val else None] if reported == "test" else []),
                None if standing.versus_baseline is None else 100 * standing.versus_baseline.mean,
                None if standing.versus_baseline is None else ends(standing.versus_baseline),
                None if epochs is None else round(epochs),
                None if seconds is None else seconds / 60,
                _scaled(standing.fact("parameters"), 1e6),
                _scaled(standing.fact("macs"), 1e6),
            ]
            rows.append(row)
    known = study.verdicts[-1].measure if study.verdicts else measure(["accuracy"])
    ranked_by = "validation" if all(verdict.by == "val" for verdict in study.verdicts) else reported
    difference, named = "Student's interval", {name for verdict in study.verdicts for name in verdict.measured}
    if known.images or "accuracy" in named:
        of = "" if known.images else ", of accuracies,"
        difference = (
            f"the wider of {difference} and{of} the one over {'' if grid.overlap else 'seeds and '}{reported} images"
        )
    note = (
        f"Candidates in the order of their {ranked_by} {known.word}. Intervals: 95 %, "
        f"{intervals(grid, sorted(named), reported)}. − baseline: paired difference to {grid.baseline.name} on the "
        f"same {grid.unit}s, with {difference}."
    )
    return Table("All results", columns, rows, note)


def failures(study: Study) -> list[Table]:
    """What failed, with its error; nothing where nothing did."""
    rows: list[list[Cell]] = [
        [outcome.cell.candidate.name, outcome.cell.subset.name, outcome.cell.seed, outcome.error]
        for outcome in study.outcomes
        if outcome.status == "failed"
    ]
    columns = [
        Column("candidate"),
        Column("training data"),
        Column(study.folder.grid.unit, "count"),
        Column("error", "prose"),
    ]
    again = f"Mend what the errors name; `viticulture compare resume {shell_word(study.path)}` tries them again."
    return [Table("Failed", columns, rows, again)] if rows else []


def wider(grid: Grid, images: str) -> str:
    """In words, which interval is told: Student's, or the one over images, where there is one, if that is wider."""
    students = (
        "Student's over folds, corrected for what they learn from together," if grid.overlap else "Student's over seeds"
    )
    return f"the wider of {students} and {images}" if images else students.removesuffix(",")


def intervals(grid: Grid, measured: Sequence[str], reported: str) -> str:
    """In words, which intervals are told of some measures: each its own, where they have several."""
    images = {known.word: known.images.format(reported) for known in (measure([name]) for name in measured)}
    if len(set(images.values())) == 1:
        return wider(grid, next(iter(images.values())))
    return wider(grid, "") + "".join(f"; of {word} {wider(grid, over)}" for word, over in images.items() if over)


def spread(estimate: Estimate) -> Spread:
    """Values in percent."""
    return Spread(tuple(100 * value for value in estimate.values))


def ends(difference: Difference) -> str | None:
    """The wider of a difference's intervals, in percentage points."""
    return f"{100 * difference.span[0]:+.1f} to {100 * difference.span[1]:+.1f}" if difference.span else None


def _heading(verdict: Comparison, several: bool) -> str:
    return f"{subject(verdict.data)}, {verdict.subset.name}" if several else verdict.subset.name


def _seeds_note(verdicts: list[Comparison], unit: str) -> str:
    seeds = sorted({len(standing.outcomes) for verdict in verdicts for standing in verdict.standings})
    if not seeds:
        return ""
    if seeds == [1]:
        return f"One {unit}: no spread is known."
    return f"Mean ± standard deviation over {' to '.join(map(str, (seeds[:1] + seeds[-1:])[: len(seeds)]))} {unit}s."


def _not_of_test(verdicts: list[Comparison]) -> str:
    """Whose numbers are of validation images where others are of test images, as what guides log while they train."""
    standings = [standing for verdict in verdicts if verdict.reported == "test" for standing in verdict.standings]
    names = dict.fromkeys(standing.candidate.name for standing in standings if not standing.tested)
    return f" Of validation images: {', '.join(names)}." if names else ""


def _interval(estimate: Estimate) -> str | None:
    if estimate.low is None or estimate.high is None:
        return None
    return f"{max(0.0, 100 * estimate.low):.1f}–{min(100.0, 100 * estimate.high):.1f}"


def _minutes(minutes: float | None) -> str | None:
    if minutes is None:
        return None
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.2g}"


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
