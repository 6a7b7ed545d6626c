# SPDX-License-Identifier: Apache-2.0
"""What candidates of a study are to each other: students beside their teachers, sums beside their parts."""

from ...study.conclude.interactions import FEWEST_SEEDS, Interaction, interactions, told
from ...study.conclude.teaching import families, family, teachers_of
from ...study.study import Study
from ...table import Cell, Column, Spread, Table
from ..charts.chart import Axes, Series, point_chart
from ..document import Section, table
from .study_charts import percents

FEWEST = 3  # students with a teacher that make a chart


def teaching_section(study: Study) -> list[Section]:
    """Every student's accuracy against its one teacher's, on the largest subset, by the teachers' families."""
    standings = (
        {standing.candidate.name: standing for standing in study.verdicts[-1].standings} if study.verdicts else {}
    )
    every = {candidate.name: candidate.overrides for candidate in study.folder.grid.candidates}
    pairs = [(who, by) for who, by in teachers_of(every).items() if who in standings and by in standings]
    if len(pairs) < FEWEST or len({by for _, by in pairs}) < 2:  # one teacher's students tell nothing of teachers
        return []
    nets = {by: str((standings[by].outcomes[0].facts or {}).get("student", {}).get("name", "")) for _, by in pairs}
    series = []
    for number, kind in enumerate(families(nets.values())):
        mine = [(standings[who], standings[by]) for who, by in pairs if family(nets[by]) == kind]
        points = [(100 * by.test.mean, 100 * who.test.mean) for who, by in mine]
        tips = [
            f"{who.candidate.name}\n{y:.1f} %, its teacher {x:.1f} %"
            for (x, y), (who, _) in zip(points, mine, strict=True)
        ]
        bands = [percents(who.test) for who, _ in mine]
        series.append(Series(kind, number, points, bands, tips))
    axes = Axes("accuracy of the teacher, %", "accuracy of the student, %")
    note = "Each point is a student beside the one teacher that it learnt from. Flat: better teachers teach no better."
    return [Section("Students and their teachers", point_chart("By the teacher's family", series, axes, note))]


def sums_section(study: Study) -> list[Section]:
    """A table of sums, on the largest subset; nothing where none is finished."""
    sheet = sums_sheet(study)
    return [Section("Sums and their parts", table(sheet))] if sheet else []


def sums_sheet(study: Study) -> Table | None:
    """Gains over the baseline of every sum and of its parts together, points, and what the sum gains beyond them."""
    if not study.verdicts:
        return None
    accuracies = {
        standing.candidate.name: {
            outcome.cell.seed: outcome.score for outcome in standing.outcomes if outcome.score is not None
        }
        for standing in study.verdicts[-1].standings
    }
    grid = study.folder.grid
    baseline = grid.baseline.name
    sums = interactions(accuracies, baseline)
    rows: list[list[Cell]] = [
        [each.name, _points(each.gain), _points(each.parts_gain), _points(each.excess)] for each in sums
    ]
    heads = ["the sum gains", "its parts gain together", "excess"]
    columns = [Column("sum"), *(Column(head, "spread") for head in heads)]
    note = (
        f"Points of {study.verdicts[-1].measure.word} over {baseline}, mean ± sd over {grid.unit}s; excess is what the "
        f"sum gains beyond its parts. {_verdict(sums, grid.unit, grid.overlap)}"
    )
    return Table("Sums and their parts", columns, rows, note) if rows else None


def _verdict(sums: list[Interaction], unit: str = "seed", overlap: float = 0.0) -> str:
    """Which sums are more than their parts, in words."""
    if all(len(interaction.excess) < FEWEST_SEEDS for interaction in sums):
        return f"Which of them are more than their parts, {FEWEST_SEEDS} {unit}s or more would tell."
    more, less = told(sums, overlap)
    chance = f"beyond chance (95 % for all {len(sums)} sums together, Student's intervals over {unit}s)"
    words = (
        f"More than its parts {chance} is {' and '.join(more)}." if more else f"None is more than its parts {chance}."
    )
    return words + (f" Less is {' and '.join(less)}." if less else "")


def _points(shares: tuple[float, ...]) -> Spread:
    return Spread(tuple(100 * share for share in shares))
