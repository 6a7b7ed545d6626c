# SPDX-License-Identifier: Apache-2.0
"""A study's charts: accuracy with its intervals, against data, against costs, and over training."""

# What candidates of a study are to each other: students beside their teachers, sums beside their parts.
# Where two methods differ: classes and confused pairs. The page's script lets a person choose the two.
# Who was taught by whom: students with one teacher, beside it (Co-advise, arXiv:2106.12378, Figure 4).
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.references import references
from ..scores.confusion import most_confused
from ..study.comparison import Comparison, RankingEntry, subject
from ..study.disagreement import opponents
from ..study.grid import Grid
from ..study.statistics import FEWEST_SEEDS, Estimate, Interaction, interactions, told
from ..study.study import Study
from ..table import Cell, Column, Spread, Table, duration, number, scaled
from ..text import clean
from .curves import read_curves
from .html import Markup, Section, fill, html_table, side_by_side
from .study_tables import intervals
from .svg import Axes, Band, Points, Series, line_chart, point_chart, row_chart, scatter_chart

CLOCK = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def _label(verdict: Comparison) -> str:
    """Of an axis."""
    title = verdict.measure.title
    return f"{title[0].lower() + title[1:] if title[1].islower() else title} on {verdict.reported}, %"


def _intervals(verdict: Comparison, grid: Grid) -> str:
    words = intervals(grid, verdict.measured, verdict.reported)
    return f"Bars and bands: 95 % intervals, {words}, cut where they leave the chart."


def styles(study: Study) -> dict[str, int]:
    """A candidate's number on the page, which gives its color and its marker."""
    return {candidate.name: number for number, candidate in enumerate(study.folder.grid.candidates)}


def accuracy_charts(study: Study) -> Markup:
    """Rows of means on the largest subset; lines over the size of the subset, where there are several."""
    verdicts, style, grid = study.verdicts, styles(study), study.folder.grid
    last = verdicts[-1]
    rows = [
        Series(
            standing.candidate.name,
            style[standing.candidate.name],
            [(100 * value, 0.0) for value in standing.test.values],
            [percents(standing.test)],
            [_tip(standing, grid.unit)],
        )
        for standing in last.standings
    ]
    first = f"Best on {'validation' if last.by == 'val' else 'test'} first."
    note = f"Small dots: single {grid.unit}s. {_intervals(last, grid)} {first}"
    charts = [
        row_chart(f"{last.measure.capital} on {subject(last.data)}, {last.subset.name}", rows, _label(last), note)
    ]
    for data in dict.fromkeys(verdict.data for verdict in verdicts):
        here = [verdict for verdict in verdicts if verdict.data == data]
        if len(here) > 1:
            charts.append(_over_data(here, style, grid))
    return side_by_side(*charts)


def _over_data(verdicts: Sequence[Comparison], style: Mapping[str, int], grid: Grid) -> Markup:
    lines, subsets = [], set[float]()
    for name, place in style.items():
        standings = [
            standing for verdict in verdicts for standing in verdict.standings if standing.candidate.name == name
        ]
        known = ((images, standing) for standing in standings if (images := standing.fact("train_images")))
        places = sorted(known, key=lambda place: place[0])  # two subsets may come to as many images
        if places:
            points = [(images, 100 * standing.test.mean) for images, standing in places]
            bands = [percents(standing.test) for _, standing in places]
            lines.append(Series(name, place, points, bands, [_tip(standing, grid.unit) for _, standing in places]))
            subsets |= {images for images, _ in places}
    last = verdicts[-1]
    axes = Axes("training images", _label(last), log_x=True, at=sorted(subsets), most=100)
    title = f"{last.measure.capital} against training data, {subject(last.data)}"
    return line_chart(title, lines, axes, _intervals(last, grid))


def cost_charts(study: Study) -> Markup:
    """Accuracy against what a student costs to train, to store and to run, on the largest subset."""
    last, style, unit = study.verdicts[-1], styles(study), study.folder.grid.unit
    wanted = [
        ("training time", "seconds", f"training time of one {unit}", CLOCK),
        ("size", "parameters", "parameters", COUNTS),
        ("computation", "macs", "multiply-adds for one image", COUNTS),
    ]
    charts = []
    for title, key, words, units in wanted:
        size, name = _unit([standing.fact(key) for standing in last.standings], units)
        label = f"{words}, {name}"
        series = [
            Series(
                standing.candidate.name,
                style[standing.candidate.name],
                [(value / size, 100 * standing.test.mean)],
                [percents(standing.test)],
                [_tip(standing, unit)],
            )
            for standing in sorted(last.standings, key=lambda standing: style[standing.candidate.name])
            if (value := standing.fact(key))
        ]
        heading = f"{last.measure.capital} against {title}"
        charts.append(scatter_chart(heading, series, Axes(label, _label(last), log_x=True, most=100)))
    note = f"Means over {unit}s."
    if any('class="front"' in chart for chart in charts):
        note += " The stepped line is the Pareto front: nothing else is both cheaper and more accurate."
    return side_by_side(*charts) + Markup('<p class="note">{}</p>').format(note)


def curve_charts(study: Study) -> Markup:
    """Accuracy on held-out images over epochs and over training time, on the largest subset; means over seeds."""
    last, style = study.verdicts[-1], styles(study)
    unit, clock = _unit([standing.fact("seconds") for standing in last.standings], CLOCK)
    epochs, minutes = [], []
    for standing in sorted(last.standings, key=lambda standing: style[standing.candidate.name]):
        points = _mean_curve(study, standing, last.measure.curves)
        if points:
            name, number = standing.candidate.name, style[standing.candidate.name]
            epochs.append(Series(name, number, points))
            seconds, length = standing.fact("seconds"), standing.fact("epochs")
            if seconds and length:
                minutes.append(Series(name, number, [(x * seconds / length / unit, y) for x, y in points]))
    if not epochs:
        return Markup()
    label = f"{last.measure.curve} on {'validation' if last.by == 'val' else 'held-out'} images, %"
    charts = [line_chart("Over epochs", epochs, Axes("epoch", label))]
    if minutes:
        charts.append(line_chart("Over training time", minutes, Axes(f"training time, {clock}", label)))
    return side_by_side(*charts)


def _mean_curve(study: Study, standing: RankingEntry, names: Sequence[str]) -> Points:
    """(epoch, %) where every seed has a value."""
    of_seeds: list[dict[float, float]] = []
    for outcome in standing.outcomes:
        metrics = study.folder.run(outcome.cell).metrics
        curves = read_curves(metrics) if metrics.exists() else {}
        measured = next((curves[name] for name in names if name in curves), [])
        of_seeds.append({round(x, 3): 100 * y for x, y in measured})
    shared = set.intersection(*(set(curve) for curve in of_seeds)) if of_seeds else set()
    return [(x, fmean(curve[x] for curve in of_seeds)) for x in sorted(shared)]


def _unit(values: Sequence[float | None], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit of which the largest value holds one at least."""
    most = max((value for value in values if value), default=0.0)
    return next(((size, name) for size, name in units if most >= size), units[-1])


def percents(estimate: Estimate) -> Band:
    """The interval of a share; None where it has none."""
    return None if estimate.low is None or estimate.high is None else (100 * estimate.low, 100 * estimate.high)


def _tip(standing: RankingEntry, unit: str) -> str:
    """What a point says under the pointer."""
    test, images = standing.test, standing.fact("train_images")
    lines = [f"{standing.candidate.name}, {standing.subset.name}" + (f" ({images:,.0f} images)" if images else "")]
    lines.append(
        f"{100 * test.mean:.1f} %" + (f" ± {100 * test.sd:.1f} sd" if test.sd is not None else f" (one {unit})")
    )
    if test.low is not None and test.high is not None:
        low, high = max(0.0, 100 * test.low), min(100.0, 100 * test.high)
        lines.append(f"95 % interval {low:.1f} to {high:.1f}, {len(test.values)} {unit}s")
    costs = f"{scaled(standing.fact('parameters'))} parameters, {scaled(standing.fact('macs'))} MACs"
    lines.append(f"{duration(standing.fact('seconds'))} a {unit}, {costs}")
    return "\n".join(lines)


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
    for place, kind in enumerate(families(nets.values())):
        mine = [(standings[who], standings[by]) for who, by in pairs if family(nets[by]) == kind]
        points = [(100 * by.test.mean, 100 * who.test.mean) for who, by in mine]
        tips = [
            f"{who.candidate.name}\n{y:.1f} %, its teacher {x:.1f} %"
            for (x, y), (who, _) in zip(points, mine, strict=True)
        ]
        bands = [percents(who.test) for who, _ in mine]
        series.append(Series(kind, place, points, bands, tips))
    axes = Axes("accuracy of the teacher, %", "accuracy of the student, %")
    note = "Each point is a student beside the one teacher that it learnt from. Flat: better teachers teach no better."
    return [Section("Students and their teachers", point_chart("By the teacher's family", series, axes, note))]


def sums_section(study: Study) -> list[Section]:
    """A table of sums, on the largest subset; nothing where none is finished."""
    table = sums_table(study)
    return [Section("Sums and their parts", html_table(table))] if table else []


def sums_table(study: Study) -> Table | None:
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
        f"sum gains beyond its parts. {sums_sentence(sums, grid.unit, grid.overlap)}"
    )
    return Table("Sums and their parts", columns, rows, note) if rows else None


def sums_sentence(sums: list[Interaction], unit: str = "seed", overlap: float = 0.0) -> str:
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


PAIRS = 8  # a candidate
MOST_PAIRS = 40


def confusions(study: Study, verdict: Comparison) -> tuple[list[str], dict[str, NDArray[np.float64]]]:
    """The classes, and for every candidate the mean over seeds of its confusion matrix, [C, C], counts."""
    names: list[str] = []
    means = {}
    for standing in verdict.standings:
        matrices = []
        for outcome in standing.outcomes:
            results = study.folder.task(outcome.cell).read_results()
            if results is not None and results.counting is not None:
                names = names or [score.name for score in results.counting.per_class]
                matrices.append(results.counting.confusion)
        means[standing.candidate.name] = np.mean(matrices, axis=0)
    return names, means


def class_section(study: Study) -> Markup:
    """Recall of every class by two methods and the difference, the greatest first; other methods can be chosen."""
    verdict, unit = study.verdicts[-1], study.folder.grid.unit
    pair = opponents(verdict, study.folder.grid.baseline)
    if pair is None:
        return Markup()
    names, matrices = confusions(study, verdict)
    support = next(iter(matrices.values())).sum(1)
    shown = np.flatnonzero(support)  # of a class without images there is no share
    classes, images = [names[c] for c in shown], [number(round(float(support[c]), 1)) for c in shown]
    recall = {who: 100 * _shares(m).diagonal()[shown] for who, m in matrices.items()}
    first, second = (standing.candidate.name for standing in pair)
    order = np.argsort(-np.abs(recall[first] - recall[second]), kind="stable")
    rows = [(classes[c], images[c], recall[first][c], recall[second][c]) for c in order]
    content = {
        "classes": [clean(name) for name in classes],
        "images": images,
        "names": [clean(name) for name in recall],
        "recall": [[round(float(value), 2) for value in values] for values in recall.values()],
        "shown": [list(recall).index(first), list(recall).index(second)],
    }
    note = (
        f"Share of each class's {verdict.reported} images that is recognized, %, means over {unit}s; "
        f"{subject(verdict.data)}, {verdict.subset.name}. Few images of a class make large differences by chance."
    )
    chooser = fill(
        "differences.html", title="Difference by class", note=note, content=content, pair=(first, second), rows=rows
    )
    return chooser + confused_pairs(names, matrices, (first, second), verdict.reported)


def confused_pairs(
    names: Sequence[str], matrices: dict[str, NDArray[np.float64]], first: tuple[str, str], reported: str
) -> Markup:
    """The pairs that any of the methods confuses most often, and how often each of them does."""
    shares = {who: _shares(m) for who, m in matrices.items()}
    wanted: dict[tuple[int, int], float] = {}
    for matrix in shares.values():
        for pair in most_confused(matrix, PAIRS):
            wanted[pair] = max(wanted.get(pair, 0.0), float(matrix[pair]))
    pairs = sorted(wanted, key=lambda pair: -wanted[pair])[:MOST_PAIRS]
    if not pairs or len(names) < 3:
        return Markup()
    ordered = [*dict.fromkeys([*first, *shares])]
    columns = [Column("true class"), Column("taken for"), *(Column(who, "percent") for who in ordered)]
    rows: list[list[Cell]] = [
        [names[row], names[column], *(float(shares[who][row, column]) for who in ordered)] for row, column in pairs
    ]
    note = f"Share of the true class's {reported} images, mean over trainings. A click on a heading sorts."
    return html_table(Table("Most confused pairs", columns, rows, note), sortable=True)


def _shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each true class's images, which in folds may be below one on average; [C, C], 0 for classes without any."""
    images = counts.sum(1, keepdims=True)
    return np.divide(counts, images, out=np.zeros_like(counts), where=images > 0)


def teachers_of(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Student -> its teacher, for candidates that learn from one other's answers or maps; not what they start from.

    Args:
        overrides: candidate -> its recipe keys.
    """
    taught = {}
    for name, values in overrides.items():
        teachers = {row for key, row in references(values).items() if key.startswith("guides.")}
        if len(teachers) == 1 and (teacher := next(iter(teachers))) in overrides:
            taught[name] = teacher
    return taught


def family(network: str) -> str:
    """A network's name without its size: resnet18 and resnet50 are of one family."""
    return re.sub(r"[\d_].*", "", network)


def families(networks: Iterable[str]) -> list[str]:
    """Every family once, in the order of the networks."""
    return list(dict.fromkeys(map(family, networks)))
