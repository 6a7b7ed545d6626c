# SPDX-License-Identifier: Apache-2.0
"""A contest in pictures: accuracy against processor time, and against images a class, as one page.

    python -m benchmarks.contest_page CONTEST/contest.csv PAGE.html

All of the table that `python -m benchmarks.contest --out CONTEST` writes is drawn: a chart for every set with more
than one budget, and one for every set and budget that was run with several numbers of images a class
(NAME=FOLDER@PER_CLASS).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from viticulture.report.html import Head, Markup, Section, document, side_by_side
from viticulture.report.svg import Axes, Series, line_chart
from viticulture.study.statistics import estimate

from .clock import processor
from .contest import ROWS, Result, read_table

NOTE = "Test images; mean and standard deviation over seeds, where there are several."
ACCURACY = "accuracy on test, %"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    options.page.write_text(render(read_table(options.table)), encoding="utf-8")


def render(results: Sequence[Result]) -> str:
    """The page as HTML text."""
    sections = [
        Section("Accuracy against time", side_by_side(*against_time(results))),
        Section("Accuracy against images a class", side_by_side(*against_images(results))),
    ]
    return document(Head("What a budget buys", sentence=processor()), sections)


def against_time(results: Sequence[Result]) -> list[Markup]:
    """A chart a set that was given several budgets."""
    charts = []
    for images in dict.fromkeys(result.images for result in results):
        here = [result for result in results if result.images == images]
        if len({result.budget for result in here}) > 1:
            minutes = lines(here, rows_of(results), lambda result: (result.budget, result.core_s / 60))
            charts.append(line_chart(images, minutes, Axes("core-minutes", ACCURACY, log_x=True), NOTE))
    return charts


def against_images(results: Sequence[Result]) -> list[Markup]:
    """A chart a set and budget that were run with several numbers of images a class."""
    charts = []
    for budget, name in dict.fromkeys((result.budget, result.images.partition("@")[0]) for result in results):
        here = [result for result in results if (result.budget, result.images.partition("@")[0]) == (budget, name)]
        if len({result.images for result in here}) > 1:
            amounts = lines(here, rows_of(results), lambda result: (result.images, result.per_class))
            axes = Axes("images a class to learn from", ACCURACY, log_x=True)
            charts.append(line_chart(f"{name}, {budget}", amounts, axes, NOTE))
    return charts


def rows_of(results: Sequence[Result]) -> list[str]:
    """Rows of a page, in the contest's order, others last; a row's number among them is its color on every chart."""
    rows = dict.fromkeys(result.row for result in results)
    return [*(row for row in ROWS if row in rows), *(row for row in rows if row not in ROWS)]


def lines(results: Sequence[Result], rows: Sequence[str], place: Callable[[Result], tuple[str, float]]) -> list[Series]:
    """A line a row of the contest, through the means over seeds.

    Args:
        results: of one chart.
        rows: of the page.
        place: what a result has in common with others of its point, and its x.
    """
    drawn = []
    for style, row in enumerate(rows):
        points: dict[str, list[tuple[float, float]]] = {}
        for result in results:
            if result.row == row:
                points.setdefault(place(result)[0], []).append((place(result)[1], result.test))
        means = sorted((fmean(x for x, _ in same), estimate([y for _, y in same])) for same in points.values())
        if means:
            bands = [None if y.sd is None else (y.mean - y.sd, y.mean + y.sd) for _, y in means]
            drawn.append(Series(row, style, [(x, y.mean) for x, y in means], bands))
    return drawn


if __name__ == "__main__":
    main()
