# SPDX-License-Identifier: Apache-2.0
"""Errors on corrupted and other unlike images: as a table, and as a part of a run's page."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from ...analysis.galleries import Gallery
from ...evaluation.accuracy import ONE_HEAD
from ...evaluation.robustness.metrics import Robustness
from ...evaluation.robustness.strengths import BLUR, DIGITAL, EXTRA, NOISE, SEVERITIES, WEATHER
from ...table import Cell, Column, Table
from ..charts.chart import Axes, Series, line_chart, row_chart
from ..charts.pictures import galleries
from ..document import Section, beside, table
from ..html import Markup

GROUPS = {"noise": NOISE, "blur": BLUR, "weather": WEATHER, "digital": DIGITAL, "extra": EXTRA}


def robustness_table(robustness: Robustness) -> Table:
    """A row a corruption: the student's error by severity and on average, and that of each of its heads."""
    tokens = list(range(1, len(robustness.heads)))
    if not robustness.errors:
        columns = [Column(""), Column("error", "percent"), Column("accuracy", "percent")]
        rows: list[list[Cell]] = [
            [head, error, 1 - error] for head, error in zip(robustness.heads, robustness.clean, strict=True)
        ]
        return Table(f"{robustness.data}", columns, rows, _note(robustness))
    columns = [
        Column("errors"),
        Column("group"),
        Column("mean", "percent"),
        *(Column(str(s), "percent") for s in SEVERITIES),
    ]
    columns += [Column(robustness.heads[k], "percent") for k in tokens]
    rows = []
    if robustness.clean:
        rows.append(["as they are", "", robustness.clean[0], *("" for _ in SEVERITIES), *robustness.clean[1:]])
    if (mean := robustness.mean_error()) is not None:
        rows.append(
            [
                "mean of the 15",
                "all but extra",
                mean,
                *("" for _ in SEVERITIES),
                *(robustness.mean_error(k) for k in tokens),
            ]
        )
    for group, names in GROUPS.items():
        for name in (name for name in names if name in robustness.errors):
            by_severity = [severity[0] for severity in robustness.errors[name]]
            rows.append(
                [_plain(name), group, fmean(by_severity), *by_severity, *(robustness.error(name, k) for k in tokens)]
            )
    of = f"the run's {robustness.data} images" if robustness.data in ("test", "validation") else robustness.data
    return Table(f"Errors on {of}, by severity", columns, rows, _note(robustness))


def robustness_section(every: Mapping[str, Robustness], shown: Sequence[Gallery]) -> list[Section]:
    """A table and charts for each collection of images, then what corruptions look like."""
    parts = [
        table(robustness_table(robustness)) + (_charts(robustness) if robustness.errors else "")
        for robustness in every.values()
    ]
    return [Section("Robustness", Markup().join([*parts, galleries(shown)]))] if parts else []


def _charts(robustness: Robustness) -> Markup:
    """Mean errors of each group of corruptions over severity (0 is the clean image), and of each corruption."""
    lines = []
    for style, (group, names) in enumerate(GROUPS.items()):
        there = [robustness.errors[name] for name in names if name in robustness.errors]
        if there:
            clean = [(0.0, 100 * robustness.clean[0])] if robustness.clean else []
            rest = [(float(s), 100 * fmean(errors[s - 1][0] for errors in there)) for s in SEVERITIES]
            lines.append(Series(group, style, [*clean, *rest]))
    of = {name: style for style, names in enumerate(GROUPS.values()) for name in names}
    means = [Series(_plain(name), of[name], [(100 * robustness.error(name), 0)]) for name in robustness.errors]
    by_severity = line_chart("Errors by severity", lines, Axes("severity", "wrong, %"))
    return beside(by_severity, row_chart("Mean errors", means, "wrong, %"))


def _note(robustness: Robustness) -> str:
    words = f"{robustness.images:,} images{' of each' if robustness.errors else ''}, {robustness.weights} weights."
    if robustness.rule != ONE_HEAD:
        words += f" The student answers by its {robustness.rule}."
    if any(name in robustness.errors for name in EXTRA):
        words += " Extra: set apart for validation, not in the mean of the 15."
    if robustness.corrupted_by:
        words += f" Strengths of {robustness.corrupted_by}."
    if robustness.classes < robustness.known:
        words += f" It chose between the {robustness.classes} classes that are there, of {robustness.known:,}."
    if (mce := robustness.mean_corruption_error()) is not None:
        words += f" Mean corruption error relative to AlexNet: {100 * mce:.1f} %."
    return words


def _plain(corruption: str) -> str:
    """jpeg_compression -> JPEG compression."""
    return corruption.replace("_", " ").replace("jpeg", "JPEG").replace("gaussian", "Gaussian")
