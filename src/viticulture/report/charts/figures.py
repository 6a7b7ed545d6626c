# SPDX-License-Identifier: Apache-2.0
"""Figures as SVG text for a page: lines, bars, a heat map, pictures. Colors come from the page's style sheet.

Every function returns one `<figure>`; every text in it is escaped. Each is complete without a script; the page's
script adds values under the pointer from `data-` attributes.
"""

import base64
import io
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import isfinite, log10

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...analysis.galleries import LONGEST, Gallery
from ..tables.sheet import Sheet, Spread
from .axes import log_ticks, span, ticks
from .heat_map import heat_map
from .marks import figure, number, short, svg, text

__all__ = ["bar_chart", "gallery", "heat", "heat_map", "image_grid", "line_chart", "picture_uri", "table"]

Points = Sequence[tuple[float, float]]
Pixels = NDArray[np.uint8]
WIDTH, HEIGHT = 380, 230  # of a line chart, pixels
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 24, 36  # its margins
MOST_POINTS = 400
SMALL = 64  # pixels; such images are shown exactly
FEW_POINTS = 30  # are drawn as dots too
MAP = 64  # pixels, the smaller side of a drawn map
HEAT = np.array([[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float64)
"""Five colors of matplotlib's inferno, dark to light: readable without color vision and in print."""


def line_chart(
    title: str, lines: Mapping[str, Points], axes: tuple[str, str], log: bool = False, note: str = ""
) -> str:
    """Lines over a common axis; a line breaks where a value is not finite, few points are dots too.

    The legend tells the last values of lines over epochs.

    Args:
        title: what is shown, with its unit.
        lines: name -> (x, y), x rising; long ones are thinned to evenly spaced points.
        axes: labels of x and y.
        log: logarithmic y; used only where every value is positive.
        note: a sentence below the chart.
    """
    thinned = {name: _thin(points) for name, points in lines.items() if points}
    finite = [(x, y) for points in thinned.values() for x, y in points if isfinite(x) and isfinite(y)]
    if not finite:
        return figure(title, f'<p class="none">{text("no finite value was logged")}</p>')
    log = log and min(y for _, y in finite) > 0
    xs, ys = [x for x, _ in finite], [log10(y) if log else y for _, y in finite]
    x0, x1 = min(0.0, *xs), max(xs)
    whole = 1.0 if axes[0] == "epoch" and x1 >= 2 else 0.0
    x_ticks = ticks(x0, x1 if x1 > x0 else x0 + 1, whole)
    y_ticks = log_ticks(min(ys), max(ys)) if log else span(ys)
    x1 = max(x1, x_ticks[1])
    low, high = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        up = ((log10(y) if log else y) - low) / (high - low)
        return LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    shapes = []
    for tick in y_ticks:
        y = place(x0, 10**tick if log else tick)[1]
        shapes.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        shapes.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{number(10**tick if log else tick)}</text>')
    for tick in (t for t in x_ticks if t <= x1):
        x = place(tick, 10**low if log else low)[0]
        shapes.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" class="middle">{number(tick)}</text>')
    shapes.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" class="end axis">{text(axes[0])}</text>')
    shapes.append(f'<text x="0" y="11" class="axis">{text(axes[1] + (", logarithmic" if log else ""))}</text>')
    shapes.append(f'<path class="cursor" d="M0 {TOP}V{HEIGHT - BOTTOM}"/>')
    colors = _colors(thinned)
    for name, points in thinned.items():
        shapes.append(_line(colors[name], name, points, place))
    scale = f"{x0:g} {x1:g} {LEFT} {WIDTH - RIGHT}"
    drawing = svg(
        "lines",
        WIDTH,
        HEIGHT,
        f"{title}: {', '.join(lines)}",
        "".join(shapes),
        f'data-x="{scale}" data-axis="{text(axes[0])}"',
    )
    return figure(title, _legend(thinned, ends=axes[0] == "epoch") + drawing, note)


def bar_chart(title: str, bars: Mapping[str, float], unit: str = "") -> str:
    """Horizontal bars from zero, one a name, the value printed after each; values are not negative."""
    most = max([value for value in bars.values() if isfinite(value)], default=0) or 1
    rows = []
    for index, (name, value) in enumerate(bars.items()):
        y, length = 24 * index, 180 * value / most if isfinite(value) else 0
        rows.append(f'<text x="124" y="{y + 15}" class="end">{short(name, 20)}</text>')
        rows.append(f'<rect class="bar" x="130" y="{y + 3}" width="{length:.1f}" height="16" rx="2"/>')
        rows.append(f'<text x="{135 + length:.1f}" y="{y + 15}">{number(value)} {text(unit)}</text>')
    label = f"{title}: " + ", ".join(f"{name} {number(value)} {unit}" for name, value in bars.items())
    return figure(title, svg("bars", WIDTH, 24 * len(bars) + 4, label, "".join(rows)))


def image_grid(title: str, groups: Sequence[tuple[Sequence[Pixels], Sequence[str]]], note: str = "") -> str:
    """Groups of pictures [H, W, 3] or [H, W] uint8 side by side, with lines of text below (the first one bold)."""
    items = []
    for pictures, lines in groups:
        words = "".join(f'<span title="{text(line)}">{text(line)}</span>' for line in lines)
        items.append(f"<li><div>{''.join(_picture(pixels, lines) for pixels in pictures)}</div>{words}</li>")
    kind = "pictures groups" if any(len(pictures) > 1 for pictures, _ in groups) else "pictures"
    return figure(title, f'<ul class="{kind}">{"".join(items)}</ul>', note)


def gallery(shown: Gallery) -> str:
    """A gallery of photographs and maps; its note alone where there are none."""
    if not shown.groups:
        return f"<p>{text(shown.note)}</p>"
    groups = [
        ([heat(picture) if picture.ndim == 2 else picture for picture in pictures], lines)
        for pictures, lines in shown.groups
    ]
    return image_grid(shown.title, groups, shown.note)


def heat(values: NDArray[np.floating]) -> Pixels:
    """A map [rows, columns] as a picture on its own scale, dark to light, each cell a block of pixels."""
    low, high = values.min(), values.max()
    share = ((values - low) / max(high - low, values.dtype.type(1e-12))).astype(np.float64)
    places = np.linspace(0, 1, len(HEAT))
    picture = np.stack([np.interp(share, places, HEAT[:, channel]) for channel in range(3)], -1).astype(np.uint8)
    block = max(1, MAP // min(picture.shape[:2]))
    return picture.repeat(block, 0).repeat(block, 1)


def table(sheet: Sheet, sortable: bool = False) -> str:
    """A sheet as an HTML table; shares carry a bar, a click on a heading sorts."""
    kinds = [("" if column.words else "n") for column in sheet.columns]
    head = "".join(
        f'<th scope="col" class="{kind}">'
        + (f"<button>{text(column.name)}</button>" if sortable else text(column.name))
        for column, kind in zip(sheet.columns, kinds, strict=True)
    )
    body = []
    for row, texts in zip(sheet.rows, sheet.texts(), strict=True):
        cells = []
        for value, words, column, kind in zip(row, texts, sheet.columns, kinds, strict=True):
            attributes = f' class="{kind}"' if kind else ""
            if isinstance(value, Spread):
                attributes += f' data-v="{value.mean:.6g}"'
            if isinstance(value, int | float):
                attributes += f' data-v="{value:.6g}"'
            if column.form == "percent" and isinstance(value, int | float):
                attributes += f' style="--share:{100 * value:.1f}%"'
            cells.append(f"<td{attributes}>{escape(words)}")
        body.append("<tr>" + "".join(cells))
    attribute = " data-sortable" if sortable else ""
    inside = f"<table{attribute}><thead><tr>{head}</thead><tbody>{''.join(body)}</tbody></table>"
    return figure(sheet.title, f'<div class="scroll tall">{inside}</div>', sheet.note)


def picture_uri(pixels: Pixels, longest: int = LONGEST) -> str:
    """An image as a data URI: small ones exactly (PNG), others fitted into a square of `longest` pixels (JPEG)."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    small, file = max(image.size) <= SMALL, io.BytesIO()
    image.thumbnail((longest, longest))
    image.save(file, "PNG") if small else image.save(file, "JPEG", quality=80)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"


def _picture(pixels: Pixels, lines: Sequence[str]) -> str:
    small = ' class="pixels"' if max(pixels.shape[:2]) <= SMALL else ""
    return f'<img{small} src="{picture_uri(pixels)}" alt="{text(", ".join(lines))}">'


def _colors(names: Iterable[str]) -> dict[str, str]:
    """A class for each line: splits look the same in every chart, other lines take what is left in turn."""
    names, fixed = list(names), {"train": 0, "validation": 1, "test": 2}
    free = itertools.cycle(k for k in range(6) if k not in {fixed.get(name) for name in names})
    return {name: f"s{fixed[name] if name in fixed else next(free)}" for name in names}


def _legend(lines: Mapping[str, Points], ends: bool) -> str:
    parts = []
    colors = _colors(lines)
    for name, points in lines.items():
        last = f" <b>{number(float(f'{points[-1][1]:.4g}'))}</b>" if ends and isfinite(points[-1][1]) else ""
        parts.append(f'<span class="{colors[name]}"><i></i>{text(name)}{last}</span>')
    return f'<div class="legend">{"".join(parts)}</div>'


def _line(color: str, name: str, points: Points, place: Callable[[float, float], tuple[float, float]]) -> str:
    """Path, dots where points are few, and the values that the script shows."""
    path, dots, pen_up = "", "", True
    for x, y in points:
        if not isfinite(y):
            pen_up = True
            continue
        px, py = place(x, y)
        path += f"{'M' if pen_up else 'L'}{px:.1f} {py:.1f}"
        pen_up = False
        if len(points) <= FEW_POINTS:
            dots += f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5"/>'
    values = json.dumps(
        [[float(f"{x:.4g}"), float(f"{y:.4g}")] for x, y in points if isfinite(y)], separators=(",", ":")
    )
    data = f'data-name="{text(name)}" data-points="{values}"'
    return f'<g class="line {color}" {data}><path d="{path}"/>{dots}</g>'


def _thin(points: Points) -> Points:
    """Evenly spaced points, first and last among them, where there are too many to tell apart."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(i * (len(points) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
