# SPDX-License-Identifier: Apache-2.0
"""A study's charts: accuracy with its intervals, against data, against costs, and over training."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from ...study.statistics import Estimate
from ...study.comparison import Standing, Verdict, subject
from ...study.grid import Grid
from ...study.study import Study
from ..charts.chart import Axes, Band, Points, Series, line_chart, row_chart, scatter_chart
from ..charts.curves import read_curves
from ..document import beside
from ..html import Markup
from ..tables.study import intervals
from ..written import duration, scaled

CLOCK = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def _label(verdict: Verdict) -> str:
    """Of an axis."""
    title = verdict.measure.title
    return f"{title[0].lower() + title[1:] if title[1].islower() else title} on {verdict.reported}, %"


def _intervals(verdict: Verdict, grid: Grid) -> str:
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
    return beside(*charts)


def _over_data(verdicts: Sequence[Verdict], style: Mapping[str, int], grid: Grid) -> Markup:
    lines, subsets = [], set[float]()
    for name, number in style.items():
        standings = [
            standing for verdict in verdicts for standing in verdict.standings if standing.candidate.name == name
        ]
        known = ((images, standing) for standing in standings if (images := standing.fact("train_images")))
        places = sorted(known, key=lambda place: place[0])  # two subsets may come to as many images
        if places:
            points = [(images, 100 * standing.test.mean) for images, standing in places]
            bands = [percents(standing.test) for _, standing in places]
            lines.append(Series(name, number, points, bands, [_tip(standing, grid.unit) for _, standing in places]))
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
    return beside(*charts) + Markup('<p class="note">{}</p>').format(note)


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
    return beside(*charts)


def _mean_curve(study: Study, standing: Standing, names: Sequence[str]) -> Points:
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


def _tip(standing: Standing, unit: str) -> str:
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
