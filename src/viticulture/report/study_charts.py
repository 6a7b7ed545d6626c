# SPDX-License-Identifier: Apache-2.0
"""A study's charts: accuracy against data, costs and training; students and teachers; sums; classes of two methods."""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.references import references
from ..scores.confusion import most_confused
from ..study.comparison import Comparison, RankingEntry
from ..study.disagreement import default_pair
from ..study.grid import Grid
from ..study.measures import Measure
from ..study.statistics import MIN_SEEDS_OF_SUMS, Estimate, Interaction, interactions, separated_sums
from ..study.study import Study, data_name
from ..table import Cell, Column, Spread, Table, duration, number, scaled
from ..text import clean
from ..training.metrics import read_curves
from .html import Markup, Section, fill, html_table, side_by_side
from .study_tables import intervals
from .svg import Axes, Band, Points, Series, line_chart, point_chart, row_chart, scatter_chart

CLOCK = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
MIN_TAUGHT = 3  # students with a teacher that make a chart
PAIRS_EACH = 8  # confused pairs of a candidate
MAX_PAIRS = 40


def _label(comparison: Comparison) -> str:
    """Return the label of an axis."""
    title = comparison.measure.title
    name = title[0].lower() + title[1:] if title[1].islower() else title
    return f"{name} on {comparison.reported}{comparison.measure.unit}"


def _intervals(comparison: Comparison, grid: Grid) -> str:
    words = intervals(grid, comparison.measured, comparison.reported)
    return f"Bars and bands: 95 % intervals, {words}, cut where they leave the chart."


def _styles(study: Study) -> dict[str, int]:
    """Return each candidate's number on the page, which sets its color and its marker."""
    return {candidate.name: position for position, candidate in enumerate(study.folder.grid.candidates)}


def accuracy_charts(study: Study) -> Markup:
    """Draw rows of means on the largest subset, and lines over the size of the subset if there are several."""
    comparisons, styles, grid = study.comparisons, _styles(study), study.folder.grid
    last = comparisons[-1]
    rows = [
        Series(
            entry.candidate.name,
            styles[entry.candidate.name],
            [(last.measure.factor * value, 0.0) for value in entry.test.values],
            [_band(entry.test, last.measure)],
            [_tip(entry, grid.unit, last.measure)],
        )
        for entry in last.ranking
    ]
    first = f"The best on {'validation' if last.ranked_by == 'val' else 'test'} images is first."
    note = f"Small dots: single {grid.unit}s. {_intervals(last, grid)} {first}"
    title = f"{last.measure.capital} on {data_name(last.data)}, {last.subset.name}"
    charts = [row_chart(title, rows, _label(last), note, last.measure.factor, last.measure.digits)]
    for data in dict.fromkeys(comparison.data for comparison in comparisons):
        here = [comparison for comparison in comparisons if comparison.data == data]
        if len(here) > 1:
            charts.append(_over_data(here, styles, grid))
    return side_by_side(*charts)


def _over_data(comparisons: Sequence[Comparison], styles: Mapping[str, int], grid: Grid) -> Markup:
    lines, sizes, last = [], set[float](), comparisons[-1]
    measure = last.measure
    for name, style in styles.items():
        entries = [entry for each in comparisons for entry in each.ranking if entry.candidate.name == name]
        sized = ((images, entry) for entry in entries if (images := entry.mean("train_images")))
        points = sorted(sized, key=lambda point: point[0])  # two subsets may have the same number of images
        if points:
            ys = [(images, measure.factor * entry.test.mean) for images, entry in points]
            bands = [_band(entry.test, measure) for _, entry in points]
            lines.append(Series(name, style, ys, bands, [_tip(entry, grid.unit, measure) for _, entry in points]))
            sizes |= {images for images, _ in points}
    axes = Axes("training images", _label(last), log_x=True, at=sorted(sizes), max_y=measure.factor)
    title = f"{last.measure.capital} against training data, {data_name(last.data)}"
    return line_chart(title, lines, axes, _intervals(last, grid))


def cost_charts(study: Study) -> Markup:
    """Draw accuracy against training time, parameters and MACs, on the largest subset."""
    last, styles, unit = study.comparisons[-1], _styles(study), study.folder.grid.unit
    costs = [
        ("training time", "seconds", f"training time of one {unit}", CLOCK),
        ("size", "parameters", "parameters", COUNTS),
        ("computation", "macs", "MACs for one image", COUNTS),
    ]
    charts = []
    for title, column, label, units in costs:
        size, name = _unit([entry.mean(column) for entry in last.ranking], units)
        series = [
            Series(
                entry.candidate.name,
                styles[entry.candidate.name],
                [(value / size, last.measure.factor * entry.test.mean)],
                [_band(entry.test, last.measure)],
                [_tip(entry, unit, last.measure)],
            )
            for entry in sorted(last.ranking, key=lambda entry: styles[entry.candidate.name])
            if (value := entry.mean(column))
        ]
        axes = Axes(f"{label}, {name}", _label(last), log_x=True, max_y=last.measure.factor)
        charts.append(scatter_chart(f"{last.measure.capital} against {title}", series, axes))
    note = f"Means over {unit}s."
    if any('class="front"' in chart for chart in charts):
        note += " The stepped line is the Pareto front: nothing else is both cheaper and more accurate."
    return side_by_side(*charts) + Markup('<p class="note">{}</p>').format(note)


def curve_charts(study: Study) -> Markup:
    """Draw accuracy on held-out images over epochs and over training time, on the largest subset; means over seeds."""
    last, styles = study.comparisons[-1], _styles(study)
    unit, clock = _unit([entry.mean("seconds") for entry in last.ranking], CLOCK)
    over_epochs, over_time = [], []
    for entry in sorted(last.ranking, key=lambda entry: styles[entry.candidate.name]):
        if points := _mean_curve(study, entry, last.measure):
            name, style = entry.candidate.name, styles[entry.candidate.name]
            over_epochs.append(Series(name, style, points))
            seconds, epochs = entry.mean("seconds"), entry.mean("epochs")
            if seconds and epochs:
                over_time.append(Series(name, style, [(x * seconds / epochs / unit, y) for x, y in points]))
    if not over_epochs:
        return Markup()
    label = (
        f"{last.measure.curve} on {'validation' if last.ranked_by == 'val' else 'held-out'} images{last.measure.unit}"
    )
    charts = [line_chart("Over epochs", over_epochs, Axes("epoch", label))]
    if over_time:
        charts.append(line_chart("Over training time", over_time, Axes(f"training time, {clock}", label)))
    return side_by_side(*charts)


def _mean_curve(study: Study, entry: RankingEntry, measure: Measure) -> Points:
    """Return (epoch, value) where every seed has a value."""
    of_seeds: list[dict[float, float]] = []
    for outcome in entry.outcomes:
        metrics = study.folder.run(outcome.cell).metrics
        curves = read_curves(metrics) if metrics.exists() else {}
        measured = next((curves[name] for name in measure.curves if name in curves), [])
        of_seeds.append({round(x, 3): measure.factor * y for x, y in measured})
    shared = set.intersection(*(set(curve) for curve in of_seeds)) if of_seeds else set()
    return [(x, fmean(curve[x] for curve in of_seeds)) for x in sorted(shared)]


def _unit(values: Sequence[float | None], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return the largest unit that is not larger than the largest value."""
    largest = max((value for value in values if value), default=0.0)
    return next(((size, name) for size, name in units if largest >= size), units[-1])


def _band(estimate: Estimate, measure: Measure) -> Band:
    """Return the interval as it is drawn; None without one."""
    if estimate.low is None or estimate.high is None:
        return None
    return measure.factor * estimate.low, measure.factor * estimate.high


def _tip(entry: RankingEntry, unit: str, measure: Measure) -> str:
    """Return the text of a point under the pointer."""
    test, images = entry.test, entry.mean("train_images")
    sd = f" ± {measure.number(test.sd)} sd" if test.sd is not None else f" (one {unit})"
    lines = [f"{entry.candidate.name}, {entry.subset.name}" + (f" ({images:,.0f} images)" if images else "")]
    lines.append(f"{measure.value(test.mean)}{sd}")
    if interval := measure.interval(test):
        lines.append(f"95 % interval {interval}, {len(test.values)} {unit}s")
    costs = f"{scaled(entry.mean('parameters'))} parameters, {scaled(entry.mean('macs'))} MACs"
    lines.append(f"{duration(entry.mean('seconds'))} a {unit}, {costs}")
    return "\n".join(lines)


def teachers_of(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return student -> its teacher, for candidates with a single other candidate as guide."""
    taught = {}
    for name, values in overrides.items():
        teachers = {row for key, row in references(values).items() if key.startswith("guides.")}
        if len(teachers) == 1 and (teacher := next(iter(teachers))) in overrides:
            taught[name] = teacher
    return taught


def family(network: str) -> str:
    """Return a network's name without its size: resnet18 and resnet50 are of one family."""
    return re.sub(r"[\d_].*", "", network)


def families(networks: Iterable[str]) -> list[str]:
    """Return every family once, in the order of the networks."""
    return list(dict.fromkeys(map(family, networks)))


def teaching_section(study: Study) -> list[Section]:
    """Draw every student's accuracy against its teacher's, on the largest subset, by the teachers' families
    (Co-advise, arXiv:2106.12378, Figure 4)."""
    if not study.comparisons:
        return []
    last = study.comparisons[-1]
    ranking, factor = {entry.candidate.name: entry for entry in last.ranking}, last.measure.factor
    every = {candidate.name: candidate.overrides for candidate in study.folder.grid.candidates}
    pairs = [(who, by) for who, by in teachers_of(every).items() if who in ranking and by in ranking]
    if len(pairs) < MIN_TAUGHT or len({by for _, by in pairs}) < 2:  # students of one teacher do not compare teachers
        return []
    networks = {by: str((ranking[by].outcomes[0].metadata or {}).get("student", {}).get("name", "")) for _, by in pairs}
    series = []
    for style, kind in enumerate(families(networks.values())):
        taught = [(ranking[who], ranking[by]) for who, by in pairs if family(networks[by]) == kind]
        points = [(factor * by.test.mean, factor * who.test.mean) for who, by in taught]
        tips = [
            f"{who.candidate.name}\n{last.measure.value(who.test.mean)}, its teacher {last.measure.value(by.test.mean)}"
            for who, by in taught
        ]
        series.append(Series(kind, style, points, [_band(who.test, last.measure) for who, _ in taught], tips))
    axes = Axes(
        f"{last.measure.word} of the teacher{last.measure.unit}",
        f"{last.measure.word} of the student{last.measure.unit}",
    )
    note = "Each point is a student and its one teacher. A flat line: better teachers do not train better students."
    return [Section("Students and their teachers", point_chart("By the teacher's family", series, axes, note))]


def sums_section(study: Study) -> list[Section]:
    """Return the table of sums, on the largest subset; nothing where none is finished."""
    table = sums_table(study)
    return [Section("Sums and their parts", html_table(table))] if table else []


def sums_table(study: Study) -> Table | None:
    """Return gains over the baseline of every sum and of its parts together, in points, and the sum's excess."""
    if not study.comparisons:
        return None
    last, grid = study.comparisons[-1], study.folder.grid
    accuracies = {
        entry.candidate.name: {o.cell.seed: o.score for o in entry.outcomes if o.score is not None}
        for entry in last.ranking
    }
    sums = interactions(accuracies, grid.baseline.name)
    factor, digits = last.measure.factor, last.measure.digits
    rows: list[list[Cell]] = [
        [each.name, *(Spread(tuple(factor * x for x in v), digits) for v in (each.gain, each.parts_gain, each.excess))]
        for each in sums
    ]
    columns = [Column("sum"), *(Column(n, "spread") for n in ("gain of the sum", "gains of its parts", "excess"))]
    note = (
        f"Differences in {last.measure.word} over {grid.baseline.name}, mean ± sd over {grid.unit}s; the excess is the "
        f"sum's gain minus the gains of its parts. {sums_sentence(sums, grid.unit, grid.overlap)}"
    )
    return Table("Sums and their parts", columns, rows, note) if rows else None


def sums_sentence(sums: list[Interaction], unit: str = "seed", overlap: float = 0.0) -> str:
    """Name the sums that gain more or less than their parts beyond chance."""
    if all(len(interaction.excess) < MIN_SEEDS_OF_SUMS for interaction in sums):
        return f"At least {MIN_SEEDS_OF_SUMS} {unit}s are needed to say which of them gain more than their parts."
    more, less = separated_sums(sums, overlap)
    chance = f"beyond chance (95 % for all {len(sums)} sums together, Student's intervals over {unit}s)"
    words = f"More than its parts {chance}: {' and '.join(more) or 'none'}."
    return words + (f" Less: {' and '.join(less)}." if less else "")


def _confusions(study: Study, comparison: Comparison) -> tuple[list[str], dict[str, NDArray[np.float64]]]:
    """Return the classes, and for every candidate the mean over seeds of its confusion matrix, [C, C], counts."""
    names: list[str] = []
    means = {}
    for entry in comparison.ranking:
        matrices = []
        for outcome in entry.outcomes:
            results = study.folder.task(outcome.cell).read_results()
            if results is not None and results.counting is not None:
                names = names or [score.name for score in results.counting.per_class]
                matrices.append(results.counting.confusion)
        means[entry.candidate.name] = np.mean(matrices, axis=0)
    return names, means


def class_section(study: Study) -> Markup:
    """Return recall of every class by two methods and the difference, the largest first. The page's script lets the
    reader choose other methods."""
    comparison, grid = study.comparisons[-1], study.folder.grid
    pair = default_pair(comparison, grid.baseline)
    if pair is None:
        return Markup()
    names, matrices = _confusions(study, comparison)
    support = next(iter(matrices.values())).sum(1)
    present = np.flatnonzero(support)  # recall is not defined for a class without images
    classes, images = [names[c] for c in present], [number(round(float(support[c]), 1)) for c in present]
    recall = {name: 100 * _rates(matrix).diagonal()[present] for name, matrix in matrices.items()}
    first, second = (entry.candidate.name for entry in pair)
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
        f"Part of each class's {comparison.reported} images that is classified correctly, %, means over {grid.unit}s; "
        f"{data_name(comparison.data)}, {comparison.subset.name}. With few images of a class, large differences arise "
        "by chance."
    )
    values = {"content": content, "pair": (first, second), "rows": rows}
    chooser = fill("differences.html", title="Difference by class", note=note, **values)
    return chooser + _confused_pairs(names, matrices, (first, second), comparison.reported)


def _confused_pairs(
    names: Sequence[str], matrices: dict[str, NDArray[np.float64]], first: tuple[str, str], reported: str
) -> Markup:
    """Return the pairs that any of the methods confuses most often, and how often each of them does."""
    rates = {name: _rates(matrix) for name, matrix in matrices.items()}
    highest: dict[tuple[int, int], float] = {}
    for matrix in rates.values():
        for pair in most_confused(matrix, PAIRS_EACH):
            highest[pair] = max(highest.get(pair, 0.0), float(matrix[pair]))
    pairs = sorted(highest, key=lambda pair: -highest[pair])[:MAX_PAIRS]
    if not pairs or len(names) < 3:
        return Markup()
    ordered = [*dict.fromkeys([*first, *rates])]
    columns = [Column("true class"), Column("predicted class"), *(Column(name, "percent") for name in ordered)]
    rows: list[list[Cell]] = [
        [names[row], names[column], *(float(rates[name][row, column]) for name in ordered)] for row, column in pairs
    ]
    note = f"Part of the true class's {reported} images, mean over trainings. Click on a heading to sort."
    return html_table(Table("Most confused pairs", columns, rows, note), sortable=True)


def _rates(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide by each true class's images, which in folds may be below one on average; 0 for classes without any."""
    images = counts.sum(1, keepdims=True)
    return np.divide(counts, images, out=np.zeros_like(counts), where=images > 0)
