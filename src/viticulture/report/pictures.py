# SPDX-License-Identifier: Apache-2.0
"""Pictures of a page: heat maps of counts, such as a confusion matrix of 2 to some 200 classes, and of values on a
common scale; photographs and maps that a click enlarges, without any script."""

import base64
import io
from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.cells import cell_len

from ..analysis.galleries import MAX_SIDE, Gallery, heat, overlay
from ..table import number
from ..text import clean
from .html import Markup, fill

Values = NDArray[np.float64]
Names = tuple[Sequence[str], Sequence[str]]  # of rows and columns
CellText = Callable[[int, int], str]  # row, column -> the text of a cell

SHADES = 8
MAX_NAME = 20  # letters
MAX_PRINTED = 20  # columns whose values are printed in the cells
MAX_TIPS = 1600  # cells with their values under the pointer; of larger maps the page's script shows them
HEADING = 18  # pixels above a map
PALEST = 0.1  # color of the smallest value
MIN_RANGE = 0.1  # of the scale, relative to the largest value


def heat_map(
    title: str, counts: NDArray[np.int64], rows: Sequence[str], columns: Sequence[str], note: str = ""
) -> Markup:
    """Draw counts as shades; each row is divided by its sum, the shade grows with the square root.

    The diagonal of a square map has another color. Numbers are printed where cells are wide enough.
    """
    R, C = counts.shape
    sums = counts.sum(1)
    shades = np.ceil(np.sqrt(counts / np.maximum(sums, 1)[:, None]) * SHADES) / SHADES
    cell = (36 if C <= 12 else 28) if C <= MAX_PRINTED else max(4, min(20, 2000 // C / 2))

    def tip_text(r: int, c: int) -> str:
        share = 100 * counts[r, c] / sums[r]
        return f"{rows[r]} → {columns[c]}\n{counts[r, c]} of {sums[r]} ({share:.1f} %)"

    def printed(r: int, c: int) -> str:
        return str(counts[r, c]) if counts[r, c] < 10_000 else f"{counts[r, c] / 1000:.0f}k"

    drawn = _map_shapes(np.where(counts > 0, shades, np.nan), (rows, columns), cell, tip_text, printed, diagonal=R == C)
    if R * C > MAX_TIPS:
        drawn["script"] = {
            "cells": [[r, c, int(counts[r, c])] for r, c in np.argwhere(counts).tolist()],
            "rows": [clean(name) for name in rows],
            "columns": [clean(name) for name in columns],
            "sums": sums.tolist(),
            "box": [drawn["left"], drawn["top"], cell],
        }
    keys = [("hit", "correct"), ("miss", "predicted as another class")] if R == C else []
    return fill("heat_map.html", title=title, note=note, maps=[drawn], keys=keys, scale=None)


def value_map(
    title: str, maps: Sequence[tuple[str, Values]], rows: Sequence[str], columns: Sequence[str], note: str = ""
) -> Markup:
    """Draw values as shades of one color, from the smallest of all maps (palest) to the largest. A single map with few
    columns has its values printed, with the digits that distinguish them. `maps`: a heading and [R, C] each; NaN stays
    empty. Maps share one scale.
    """
    every = np.concatenate([values[np.isfinite(values)] for _, values in maps])
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    width = max(high - low, MIN_RANGE * max(abs(low), abs(high))) or 1.0
    digits = max(0, 1 - floor(log10(width / 2)))
    C = len(columns)
    large = len(maps) == 1 and C <= MAX_PRINTED
    drawn = []
    for heading, values in maps:

        def tip_text(r: int, c: int, values: Values = values) -> str:
            return f"{rows[r]}, {columns[c]}: {number(float(values[r, c]))}"

        def printed(r: int, c: int, values: Values = values) -> str:
            return f"{values[r, c]:.{digits}f}" if digits <= 4 else f"{values[r, c]:.2g}"

        shades = PALEST + (1 - PALEST) * (values - low) / width
        cell = 44 if large else max(4, min(16, 480 // C))
        drawn.append(_map_shapes(shades, (rows, columns), cell, tip_text, printed if large else None, heading))
    return fill("heat_map.html", title=title, note=note, maps=drawn, keys=[], scale=(number(low), number(high)))


def _map_shapes(
    shades: Values,
    names: Names,
    cell: float,
    tip: CellText,
    printed: CellText | None,
    heading: str = "",
    diagonal: bool = False,
) -> dict[str, Any]:
    """Return a map's shapes; cells of the same color and text are one shape."""
    rows, columns = names
    R, C = shades.shape
    left, top = _gutter(rows), _gutter(columns) + (HEADING if heading else 0)
    shapes: dict[tuple[str, str, str], str] = {}
    labels = []
    for r, c in np.argwhere(np.isfinite(shades)).tolist():
        x, y, shade = left + c * cell, top + r * cell, float(shades[r, c])
        kind = "miss" if diagonal and r != c else "hit"
        key = kind, f"{shade:.3f}", tip(r, c) if R * C <= MAX_TIPS else ""
        shapes[key] = shapes.get(key, "") + f"M{x:g} {y:g}h{cell:g}v{cell:g}h-{cell:g}z"
        if printed and C <= MAX_PRINTED:
            labels.append((x + cell / 2, y + cell / 2 + 4, f"{kind} dark" if shade > 0.7 else kind, printed(r, c)))
    every = max(1, ceil(10 / cell))  # of so many cells one is labeled, so that letters do not overlap
    return {
        "heading": heading,
        "size": (max(left + C * cell + 4, 8 + 6.5 * cell_len(heading)), top + R * cell + 4),
        "ground": (C * cell, R * cell),
        "left": left,
        "top": top,
        "cell": cell,
        "max_name": MAX_NAME,
        "rows": [(top + (i + 0.5) * cell + 3.5, name) for i, name in enumerate(rows) if i % every == 0],
        "columns": [(left + (i + 0.5) * cell + 4, name) for i, name in enumerate(columns) if i % every == 0],
        "shapes": [(*key, path) for key, path in shapes.items()],
        "labels": labels,
        "script": None,
        "kind": "dense" if cell < 13 and not heading else "small" if heading and cell < 44 else "",
    }


def _gutter(names: Sequence[str]) -> float:
    """Return the pixels next to a map for its names, of which very long ones are cut."""
    return 14 + 7.0 * min(MAX_NAME, max(map(cell_len, names)))


Pixels = NDArray[np.uint8]
SMALL = 64  # pixels; such images are drawn exactly


def image_grid(
    title: str, groups: Sequence[tuple[Sequence[Pixels], Sequence[str]]], note: str, max_side: int = MAX_SIDE
) -> Markup:
    """Draw groups of pictures [H, W, 3] or [H, W] uint8 side by side, with lines of text below (the first one bold).
    `max_side`: pixels to which larger pictures are shrunk; above the default they are larger on the page, too.
    """
    drawn = [
        ([(picture_uri(pixels, max_side), max(pixels.shape[:2]) <= SMALL) for pixels in pictures], lines)
        for pictures, lines in groups
    ]
    return fill(
        "pictures.html",
        title=title,
        note=note,
        groups=drawn,
        most=max(len(pictures) for pictures, _ in groups),
        large=max_side > MAX_SIDE,
    )


def gallery(content: Gallery, max_side: int = MAX_SIDE) -> Markup:
    """Draw a gallery of photographs and maps; only its note if there are none."""
    if not content.groups:
        return Markup("<p>{}</p>").format(content.note)
    groups = [(_drawn(pictures), lines) for pictures, lines in content.groups]
    return image_grid(content.title, groups, content.note, max_side)


def galleries(contents: Sequence[Gallery], max_side: int = MAX_SIDE) -> Markup:
    """Draw galleries one below the other; `max_side` as for `image_grid`."""
    return Markup().join(gallery(each, max_side) for each in contents)


def _drawn(pictures: Sequence[NDArray[Any]]) -> list[Pixels]:
    """Return photographs unchanged, maps over the photograph before them."""
    drawn: list[Pixels] = []
    below: Pixels | None = None
    for picture in pictures:
        if picture.ndim == 3:
            below = picture
        drawn.append(picture if picture.ndim == 3 else heat(picture) if below is None else overlay(below, picture))
    return drawn


def picture_uri(pixels: Pixels, max_side: int = MAX_SIDE) -> str:
    """Return an image as a data URI: a small one exactly (PNG), another within `max_side` pixels (JPEG)."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    small, file = max(image.size) <= SMALL, io.BytesIO()
    image.thumbnail((max_side, max_side))
    image.save(file, "PNG") if small else image.save(file, "JPEG", quality=80)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
