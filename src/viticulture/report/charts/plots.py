# SPDX-License-Identifier: Apache-2.0
"""Charts of several candidates: lines with bands, dots with whiskers, rows of dots.

A candidate has one color and one marker on every chart of a page, so that neither a missing line nor eyes that see
few colors mix them up. Values appear under the pointer from `data-tip`; all of them stand in the page's tables too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from rich.cells import cell_len

from .axes import log_ticks, span, ticks
from .marks import figure, number, short, svg, text

WIDTH, HEIGHT = 400, 260
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 24, 40
ROW = 30
NAME, CELL = 30, 7.2
"""Longest name in terminal columns, and pixels that a column takes in a forest chart."""
COLORS, MARKERS = 6, 5
Band = tuple[float, float] | None
Place = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One candidate's points.

    Args:
        name: for the legend.
        style: the candidate's number on the page, from 0.
        points: (x, y), x rising where they are joined.
        bands: lower and upper end for each point; None where nothing is known.
        tips: what each point says under the pointer.
    """

    name: str
    style: int
    points: Sequence[tuple[float, float]]
    bands: Sequence[Band] = ()
    tips: Sequence[str] = ()


@dataclass(frozen=True)
class Axes:
    """Labels of both axes, and how x runs.

    Args:
        x: label with its unit.
        y: label with its unit.
        log_x: whether x is logarithmic; used where every x is positive and they span more than a factor of three.
        at: x of the ticks; empty for round numbers.
        most: y above which nothing is drawn, such as 100 %.
    """

    x: str
    y: str
    log_x: bool = False
    at: Sequence[float] = ()
    most: float = 100.0


def band_chart(title: str, series: Sequence[Series], axes: Axes, note: str = "") -> str:
    """A line a candidate through its points, with a band from the lower to the upper ends."""
    return _chart(title, series, axes, _joined, note)


def scatter_chart(title: str, series: Sequence[Series], axes: Axes, note: str = "") -> str:
    """A dot with a whisker a point; a step line joins those on the Pareto front (less x, more y)."""
    return _chart(title, series, axes, _dots, note, pareto([p for one in series for p in one.points]))


def point_chart(title: str, series: Sequence[Series], axes: Axes, note: str = "") -> str:
    """The same without the front, where less x is no merit."""
    return _chart(title, series, axes, _dots, note)


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other one beats by being left and above of, by rising x."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front


def forest_chart(title: str, series: Sequence[Series], label: str, note: str = "") -> str:
    """A row a candidate: every value a small dot, the mean with its interval a marker with a whisker.

    Args:
        title: what is shown.
        series: each with points (value, 0) and one band, that of their mean.
        label: of the axis, with its unit.
        note: below the chart.
    """
    values = [x for one in series for x, _ in one.points]
    ends = [end for one in series for band in one.bands if band for end in band]
    if not values:
        return ""
    low, high = _limits(values, ends)
    marks = ticks(low, high)
    cells = min(max(cell_len(one.name) for one in series), NAME)
    low, high, left = marks[0], marks[-1], CELL * cells + 16
    width = left + 348
    height = TOP + ROW * len(series) + 30

    def place(x: float, row: float) -> tuple[float, float]:
        share = (min(max(x, low), high) - low) / (high - low)
        return left + share * (width - left - 50), TOP + ROW * (row + 0.5)

    shapes = []
    for tick in marks:
        x = place(tick, 0)[0]
        shapes.append(f'<path class="grid" d="M{x:.1f} {TOP - 6}V{height - 26}"/>')
        shapes.append(f'<text x="{x:.1f}" y="{height - 12}" class="middle">{number(tick)}</text>')
    shapes.append(f'<text x="{left}" y="11" class="axis">{text(label)}</text>')
    for row, one in enumerate(series):
        mean = sum(x for x, _ in one.points) / len(one.points)
        (x, y), tip = place(mean, row), one.tips[0] if one.tips else ""
        inside = f'<text x="{left - 10}" y="{y + 4:.1f}" class="end name">{short(one.name, NAME)}</text>'
        if one.bands and (band := one.bands[0]):
            inside += _whisker([place(end, row) for end in band], upright=False)
        for value, _ in one.points:
            inside += f'<circle class="seed" cx="{place(value, row)[0]:.1f}" cy="{y + 8:.1f}" r="2"/>'
        inside += _marker(one.style, x, y) + f'<text x="{width - 42}" y="{y + 4:.1f}" class="value">{mean:.1f}</text>'
        shapes.append(f'<g class="line s{one.style % COLORS}" data-tip="{text(tip)}">{inside}</g>')
    drawing = svg("forest", width, height, f"{title}: {', '.join(one.name for one in series)}", "".join(shapes))
    return figure(title, f'<div class="scroll">{drawing}</div>', note)


def _chart(
    title: str,
    series: Sequence[Series],
    axes: Axes,
    draw: Callable[[Series, Place], str],
    note: str,
    front: Sequence[tuple[float, float]] = (),
) -> str:
    shown = [one for one in series if any(isfinite(x) and isfinite(y) for x, y in one.points)]
    xs = [x for one in shown for x, _ in one.points]
    ys = [y for one in shown for _, y in one.points]
    if not shown:
        return figure(title, f'<p class="none">{text("nothing was measured yet")}</p>')
    log = axes.log_x and min(xs) > 0 and max(xs) > 3 * min(xs)
    low, high = _limits(ys, [end for one in shown for band in one.bands if band for end in band], axes.most)
    y_ticks = ticks(low, high)
    low, high = y_ticks[0], y_ticks[-1]
    run = log10 if log else float
    at = [x for x in axes.at if min(xs) <= x <= max(xs)] or _x_ticks(xs, log)
    first, last = min(run(min(xs)), run(at[0])), max(run(max(xs)), run(at[-1]))
    edge = 0.03 * (last - first) or 1.0
    first, last = (first - edge, last + edge) if log or len(set(xs)) == 1 or axes.at else (first, last)

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (run(x) - first) / (last - first), (min(max(y, low), high) - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    shapes = []
    for tick in y_ticks:
        y = place(at[0], tick)[1]
        shapes.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        shapes.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{number(tick)}</text>')
    for tick in _apart(at, place):
        x = place(tick, low)[0]
        shapes.append(f'<path class="grid" d="M{x:.1f} {HEIGHT - BOTTOM}v4"/>')
        shapes.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" class="middle">{number(tick)}</text>')
    logarithmic = ", logarithmic" if log else ""
    shapes.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" class="end axis">{text(axes.x + logarithmic)}</text>')
    shapes.append(f'<text x="0" y="11" class="axis">{text(axes.y)}</text>')
    if len(front) > 1:
        steps = "".join(
            f"H{place(x, y)[0]:.1f}V{place(x, y)[1]:.1f}" if i else "M{:.1f} {:.1f}".format(*place(x, y))
            for i, (x, y) in enumerate(front)
        )
        shapes.append(f'<path class="front" d="{steps}"/>')
    shapes += [draw(one, place) for one in shown]
    drawing = svg("plot", WIDTH, HEIGHT, f"{title}: {', '.join(one.name for one in shown)}", "".join(shapes))
    return figure(title, legend(shown) + drawing, note)


def legend(series: Sequence[Series]) -> str:
    """Every candidate with its marker."""
    items = (
        f'<span class="key s{one.style % COLORS}"><svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">'
        f'<g class="line s{one.style % COLORS}">{_marker(one.style, 7, 7)}</g></svg>{text(one.name)}</span>'
        for one in series
    )
    return f'<div class="legend">{"".join(items)}</div>'


def _joined(one: Series, place: Place) -> str:
    known = [(x, band) for (x, _), band in zip(one.points, one.bands, strict=False) if band]
    shapes = ""
    if len(known) > 1:
        around = [place(x, high) for x, (_, high) in known] + [place(x, low) for x, (low, _) in reversed(known)]
        shapes += f'<polygon class="band" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in around)}"/>'
    path = "".join("{}{:.1f} {:.1f}".format("L" if i else "M", *place(*point)) for i, point in enumerate(one.points))
    shapes += f'<path d="{path}"/>'
    if one.tips:
        whiskers = len(known) == 1
        shapes += _points(one, place, whiskers)
    elif one.points:
        shapes += _marker(one.style, *place(*one.points[-1]))
    return f'<g class="line s{one.style % COLORS}">{shapes}</g>'


def _dots(one: Series, place: Place) -> str:
    return f'<g class="line s{one.style % COLORS}">{_points(one, place, whiskers=True)}</g>'


def _points(one: Series, place: Place, whiskers: bool) -> str:
    shapes = ""
    for i, (x, y) in enumerate(one.points):
        band = one.bands[i] if i < len(one.bands) else None
        inside = _whisker([place(x, end) for end in band], upright=True) if whiskers and band else ""
        tip = f' data-tip="{text(one.tips[i])}"' if i < len(one.tips) else ""
        shapes += f"<g{tip}>{inside}{_marker(one.style, *place(x, y))}</g>"
    return shapes


def _whisker(ends: Sequence[tuple[float, float]], upright: bool) -> str:
    (x0, y0), (x1, y1) = ends
    caps = (
        f"M{x0 - 4:.1f} {y0:.1f}h8M{x1 - 4:.1f} {y1:.1f}h8"
        if upright
        else (f"M{x0:.1f} {y0 - 4:.1f}v8M{x1:.1f} {y1 - 4:.1f}v8")
    )
    return f'<path class="whisker" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}{caps}"/>'


def _marker(style: int, x: float, y: float) -> str:
    """Circle, square, triangle, diamond or a triangle on its head."""
    kind = style % MARKERS
    if kind == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>'
    if kind == 1:
        return f'<rect class="mark" x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6"/>'
    corners = {
        2: ((0, -5), (4.8, 3.8), (-4.8, 3.8)),
        3: ((0, -5.4), (5.4, 0), (0, 5.4), (-5.4, 0)),
        4: ((0, 5), (4.8, -3.8), (-4.8, -3.8)),
    }[kind]
    return f'<polygon class="mark" points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}"/>'


def _limits(values: Sequence[float], ends: Sequence[float], most: float = 100.0) -> tuple[float, float]:
    """What an axis shows: all values, and of the intervals what lies within one and a half times their range."""
    low, high = min(values), max(values)
    room = max(1.5 * (high - low), 4.0)
    low, high = (
        min([low, *(max(end, low - room) for end in ends)]),
        max([high, *(min(end, high + room) for end in ends)]),
    )
    low, high = max(low, 0.0), min(high, most)
    return (low, high) if high > low else (max(low - 1, 0.0), min(high + 1, most))


def _x_ticks(xs: Sequence[float], log: bool) -> list[float]:
    if log:
        found = [10**mark for mark in log_ticks(log10(min(xs)), log10(max(xs)))]
        inside = [x for x in found if 0.999 * min(xs) <= x <= 1.001 * max(xs)]
        return inside if len(inside) > 1 else [10 ** floor(log10(min(xs))), 10 ** ceil(log10(max(xs)))]
    return span([min(0.0, *xs), max(xs)]) if len(set(xs)) > 1 else [xs[0]]


def _apart(at: Sequence[float], place: Place) -> list[float]:
    """Ticks whose labels do not overlap."""
    kept: list[float] = []
    for tick in at:
        if not kept or place(tick, 0)[0] - place(kept[-1], 0)[0] >= 38:
            kept.append(tick)
    return kept
