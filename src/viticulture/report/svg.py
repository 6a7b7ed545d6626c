# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG: lines with bands, dots with whiskers, rows of dots.

A series has one color, one dash and one marker on every chart of a page, so that series stay apart where a line is
missing, and without color vision. A chart is complete without a script; the page's script adds values under the
pointer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, log10
from typing import Any

from rich.cells import cell_len

from ..table import number
from .html import Markup, fill
from .labels import Box, place_levels, text_box

WIDTH, HEIGHT = 400, 250  # pixels
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 24, 40  # margins
ROW = 30  # pixels
MAX_NAME, CELL = 30, 7.6  # columns of a terminal, and pixels of one
COLORS = 6
MAX_POINTS = 400
FEW_POINTS = 30  # are drawn as dots too
TICK_GAP = 38  # pixels between the labels of an axis

Points = Sequence[tuple[float, float]]
Band = tuple[float, float] | None


@dataclass(frozen=True)
class Series:
    """Points of one color."""

    name: str
    style: int
    points: Points  # (x, y), x rising where they are joined; a line breaks where a value is not finite
    bands: Sequence[Band] = ()  # lower and upper end for each point; None where it is not known
    tips: Sequence[str] = ()
    legend: str = ""  # added to the name in the legend, such as the last value


@dataclass(frozen=True)
class Axes:
    """Labels and scales of both axes."""

    x: str
    y: str
    # Whether x is logarithmic; applies where every x is positive and they span more than a factor of three.
    log_x: bool = False
    log_y: bool = False
    at: Sequence[float] = ()  # x of the ticks; empty for round numbers
    max_y: float = inf  # y above which nothing is drawn, such as 100 %
    levels: Sequence[tuple[str, float]] = ()  # horizontal lines, such as chance: name -> y
    moments: Sequence[tuple[str, float]] = ()  # vertical lines, such as the best epoch: name -> x


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels; values outside are drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        position = min(max(log10(value) if self.log else value, self.low), self.high)
        return self.start + (position - self.low) / (self.high - self.low) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Return whether a value is inside."""
        return self.low <= (log10(value) if self.log else value) <= self.high


def line_chart(title: str, series: Sequence[Series], axes: Axes, note: str = "", kind: str = "") -> Markup:
    """Draw a line per series, with a band from the lower to the upper ends; long ones are thinned."""
    return _chart(title, series, axes, note, kind)


def scatter_chart(title: str, series: Sequence[Series], axes: Axes, note: str = "") -> Markup:
    """Draw a dot with a whisker per point; a step line joins those on the Pareto front (less x, more y)."""
    return _chart(title, series, axes, note, front=pareto([p for line in series for p in line.points]))


def point_chart(title: str, series: Sequence[Series], axes: Axes, note: str) -> Markup:
    """Draw dots with whiskers without the front, where less x is not better."""
    return _chart(title, series, axes, note, front=[])


def pareto(points: Points) -> list[tuple[float, float]]:
    """Return points that no other one beats by being left and above of, by rising x."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front


def row_chart(
    title: str, series: Sequence[Series], label: str, note: str = "", highest: float = 100.0, digits: int = 1
) -> Markup:
    """Draw a row per series: every value a small dot, the mean with its interval a marker with a whisker.

    Where no series has an interval, rows begin at zero and a stem leads to each marker.
    """
    values = [x for line in series for x, _ in line.points]
    if not values:
        return Markup()
    ends = [end for line in series for band in line.bands if band for end in band]
    at = ticks(*_limits(values, ends, highest)) if ends else value_ticks([0.0, *values])
    left = CELL * min(max(cell_len(line.name) for line in series), MAX_NAME) + 16
    right, bottom = left + 298, TOP + ROW * len(series)
    scale = Scale(at[0], at[-1], left, right)
    rows = []
    for row, line in enumerate(series):
        mean = sum(x for x, _ in line.points) / len(line.points)
        x, y = scale(mean), TOP + ROW * (row + 0.5)
        band = line.bands[0] if line.bands else None
        stem = "" if ends else f"M{left:.1f} {y:.1f}H{x:.1f}"
        rows.append(
            {
                "name": line.name,
                "style": _style(line.style),
                "y": y,
                "mean": f"{mean:.{digits}f}",
                "tip": line.tips[0] if line.tips else "",
                "whisker": _whisker(band, scale, y, upright=False) if band else stem,
                "seeds": [_marker(0, scale(value), y + 8, 2) for value, _ in line.points] if ends else [],
                "mark": _marker(line.style, x, y),
            }
        )
    frame = {"width": right + 50, "height": bottom + 30, "left": left, "bottom": bottom, "name": MAX_NAME}
    marks = [(scale(tick), number(tick)) for tick in at]
    return fill("rows.html", title=title, note=note, frame=frame, rows=rows, ticks=marks, label=label)


def _chart(
    title: str, series: Sequence[Series], axes: Axes, note: str, kind: str = "", front: Points | None = None
) -> Markup:
    finite = [(x, y) for line in series for x, y in line.points if isfinite(x) and isfinite(y)]
    if not finite:
        return fill("figure.html", title=title, note="no finite value was measured", kind=kind)
    xs, ys = [x for x, _ in finite], [*(y for _, y in finite), *(y for _, y in axes.levels)]
    log_x, log_y = axes.log_x and min(xs) > 0 and max(xs) > 3 * min(xs), axes.log_y and min(ys) > 0
    ends = [end for line in series for band in line.bands if band for end in band]
    if log_y:
        up = log_ticks(log10(min(ys)), log10(max(ys)))
    else:
        up = ticks(*_limits(ys, ends, axes.max_y)) if ends else value_ticks(ys)
    y = Scale(up[0], up[-1], HEIGHT - BOTTOM, TOP, log_y)
    across = _x_ticks(xs, axes, log_x)
    x = _x_scale([*xs, *across], log_x, bool(log_x or axes.at or front is not None or len(set(xs)) == 1))
    joined = front is None
    frame = {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "top": TOP,
        "bottom": HEIGHT - BOTTOM,
        "x": axes.x + (", logarithmic" if log_x else ""),
        "y": axes.y + (", logarithmic" if log_y else ""),
        "cursor": f"{x.low:g} {x.high:g} {LEFT} {WIDTH - RIGHT}" if joined and not log_x else "",
    }
    stairs = [f"{'H' if i else 'M'}{x(a):.1f}{'V' if i else ' '}{y(b):.1f}" for i, (a, b) in enumerate(front or ())]
    columns: list[float] = []
    for tick in across:  # labels must not overlap
        if not columns or x(tick) - x(columns[-1]) >= TICK_GAP:
            columns.append(tick)
    moments = [(name, x(value)) for name, value in axes.moments]
    curves = [[(x(a), y(b)) for a, b in _thin(line.points) if isfinite(b)] for line in series]
    levels = place_levels(
        [(name, y(value)) for name, value in axes.levels],
        [curve for curve in curves if curve],
        [[(at, TOP), (at, HEIGHT - BOTTOM)] for _, at in moments],
        [text_box(at, TOP - 6, name) for name, at in moments],
        Box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
    )
    return fill(
        "chart.html",
        title=title,
        note=note,
        kind=kind,
        frame=frame,
        rows=[(y(10**tick if log_y else tick), number(10**tick if log_y else tick)) for tick in up],
        columns=[(x(tick), number(tick)) for tick in columns],
        levels=levels,
        values={name: number(float(f"{value:.4g}")) for name, value in axes.levels},
        moments=moments,
        front="".join(stairs) if len(stairs) > 1 else "",
        series=[_shapes(line, x, y, joined) for line in series if any(isfinite(value) for _, value in line.points)],
    )


def _shapes(line: Series, x: Scale, y: Scale, joined: bool) -> dict[str, Any]:
    """Return a series as shapes."""
    points = line.points if line.tips or line.bands else _thin(line.points)
    bands = [(a, band) for (a, _), band in zip(line.points, line.bands, strict=False) if band]
    around = [(a, high) for a, (_, high) in bands] + [(a, low) for a, (low, _) in reversed(bands)]
    drawn = [(i, a, b) for i, (a, b) in enumerate(points) if isfinite(b)]
    small = joined and not line.tips and len(points) <= FEW_POINTS
    marks = []
    for i, a, b in drawn if small or line.tips or not joined else drawn[-1:]:
        band = line.bands[i] if i < len(line.bands) and (not joined or len(bands) == 1) else None
        marks.append(
            {
                "path": _marker(line.style, x(a), y(b), 2.6 if small else 4.2),
                "whisker": _whisker(band, y, x(a), upright=True) if band else "",
                "tip": line.tips[i] if i < len(line.tips) else "",
            }
        )
    path, pen_up = "", True
    for a, b in points:  # the line breaks where a value is not finite
        if isfinite(b):
            path += f"{'M' if pen_up else 'L'}{x(a):.1f} {y(b):.1f}"
        pen_up = not isfinite(b)
    return {
        "name": line.name,
        "legend": line.legend,
        "style": _style(line.style),
        "key": _marker(line.style, 11, 6, 4.2),
        "path": path if joined else "",
        "band": " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in around) if joined and len(bands) > 1 else "",
        "marks": marks,
        "points": [[float(f"{a:.4g}"), float(f"{b:.4g}")] for _, a, b in drawn] if joined and not line.tips else None,
    }


def _whisker(band: tuple[float, float], along: Scale, across: float, upright: bool) -> str:
    """Return an interval as a line with a cap at each end, and an arrow instead of the cap where the chart cuts it."""
    ends = [along(end) for end in band]
    lines = [[(end, across) for end in ends]]
    for value, end, other in zip(band, ends, reversed(ends), strict=True):
        back = 0 if along.holds(value) else 5 if end < other else -5
        lines.append([(end + back, across - 4), (end, across), (end + back, across + 4)])
    return "".join(
        "M" + "L".join(f"{b:.1f} {a:.1f}" if upright else f"{a:.1f} {b:.1f}" for a, b in line) for line in lines
    )


def _style(style: int) -> str:
    """Return classes of the style sheet: a color; after all colors are used, hollow markers and a dash."""
    return f"s{style % COLORS}{' again' if style >= COLORS else ''}"


def _marker(style: int, x: float, y: float, r: float = 4.2) -> str:
    """Return a circle, square, triangle, diamond or inverted triangle as a path around a point."""
    corners: Iterable[tuple[float, float]] = (
        (),
        ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
        ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)),
    )[style % 5]
    if not corners:
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z"
    return "M" + "L".join(f"{x + r * dx:.1f} {y + r * dy:.1f}" for dx, dy in corners) + "z"


def _thin(points: Points) -> Points:
    """Return evenly spaced points, with the first and the last, where there are too many to tell apart."""
    if len(points) <= MAX_POINTS:
        return points
    return [points[round(i * (len(points) - 1) / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]


def ticks(low: float, high: float, min_step: float = 0.0) -> list[float]:
    """Return round numbers at least `min_step` apart, eight or fewer steps, from at most `low` to at least `high`."""
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = max(min_step, *(s for s in (power, 2 * power, 5 * power) if s <= rough * (1 + 1e-9)))
    return [step * i for i in range(floor(low / step + 1e-9), ceil(high / step - 1e-9) + 1)]


def value_ticks(values: Sequence[float]) -> list[float]:
    """Return ticks around values, from zero where zero is near or all values are equal, that differ in four digits."""
    low, high = min(values), max(values)
    if 0 < low <= 0.6 * high:
        low = 0.0
    if high - low <= 1e-9 * abs(high):
        low, high = min(low, 0.0), max(high, 0.0) or float(not low)
    return ticks(low, high, min_step=10.0 ** (floor(log10(max(abs(low), abs(high)))) - 3))


def log_ticks(low: float, high: float) -> list[float]:
    """Return exponents of 1, 2, 5 times powers of ten, or of powers of ten alone over many decades."""
    first, last = floor(low + 1e-9), ceil(high - 1e-9)
    last += first == last
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    marks = [e + log10(m) for e in range(first, last) for m in steps] + [float(last)]
    start = max(i for i, mark in enumerate(marks) if mark <= low + 1e-9)
    end = min(i for i, mark in enumerate(marks) if mark >= high - 1e-9)
    return marks[start : max(end, start + 1) + 1]


def _limits(values: Sequence[float], ends: Sequence[float], highest: float) -> tuple[float, float]:
    """Return limits of an axis: all values, and of the intervals the part within one and a half times their range."""
    headroom = max(1.5 * (max(values) - min(values)), 4.0)
    low = max(0.0, min(min(values), *(max(end, min(values) - headroom) for end in ends)))
    high = min(highest, max(max(values), *(min(end, max(values) + headroom) for end in ends)))
    return (low, high) if high > low else (max(low - 1, 0.0), min(high + 1, highest))


def _x_ticks(xs: Sequence[float], axes: Axes, log: bool) -> list[float]:
    low, high = min(xs), max(xs)
    if at := [x for x in axes.at if low <= x <= high]:
        return at
    if log:
        return [10**mark for mark in log_ticks(log10(low), log10(high))]
    if low == high:
        return [low]
    marks = ticks(min(0.0, low), high, 1.0 if axes.x in ("epoch", "layer") and high >= 2 else 0.0)
    return [mark for mark in marks if mark <= high] if len(marks) > 2 else marks


def _x_scale(values: Sequence[float], log: bool, padded: bool) -> Scale:
    """Return a scale around values; `padded` leaves some room at both ends."""
    low, high = (log10(min(values)), log10(max(values))) if log else (min(values), max(values))
    edge = (0.03 * (high - low) or 1.0) if padded else 0.0
    return Scale(low - edge, high + edge, LEFT, WIDTH - RIGHT, log)
