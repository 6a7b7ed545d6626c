# SPDX-License-Identifier: Apache-2.0
"""Heat maps: of counts, such as a confusion matrix of 2 to some 200 classes, and of values on a common scale."""

# Photographs and maps inside a page; a click enlarges each, without any script.
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
Names = tuple[Sequence[str], Sequence[str]]
"""Of rows and columns."""
Words = Callable[[int, int], str]
"""What is said of the cell in a row and a column."""

SHADES = 8
LONGEST_NAME = 20  # letters
MOST_PRINTED = 20  # columns whose values are printed in the cells
MOST_NAMED = 1600  # cells that each say their value under the pointer; of larger maps the page's script says it
HEADING = 18  # pixels above a map
PALEST = 0.1  # share of color in the least value
ALIKE = 0.1  # of the largest value: what lies closer together does not take the whole scale


def heat_map(
    title: str, counts: NDArray[np.int64], rows: Sequence[str], columns: Sequence[str], note: str = ""
) -> Markup:
    """Counts as shades; each row is divided by its sum, the shade grows with the root of the share.

    A square map shows its diagonal in a color of its own. Numbers are printed where cells are wide enough.

    Args:
        title: what is shown.
        counts: [R, C], not negative.
        rows: R names.
        columns: C names.
        note: a sentence below the map.
    """
    R, C = counts.shape
    sums = counts.sum(1)
    shades = np.ceil(np.sqrt(counts / np.maximum(sums, 1)[:, None]) * SHADES) / SHADES
    cell = (36 if C <= 12 else 28) if C <= MOST_PRINTED else max(4, min(20, 2000 // C / 2))

    def tip_text(r: int, c: int) -> str:
        share = 100 * counts[r, c] / sums[r]
        return f"{rows[r]} → {columns[c]}\n{counts[r, c]} of {sums[r]} ({share:.1f} %)"

    def printed(r: int, c: int) -> str:
        return str(counts[r, c]) if counts[r, c] < 10_000 else f"{counts[r, c] / 1000:.0f}k"

    drawn = _map_shapes(np.where(counts > 0, shades, np.nan), (rows, columns), cell, tip_text, printed, diagonal=R == C)
    if R * C > MOST_NAMED:
        drawn["script"] = {
            "cells": [[r, c, int(counts[r, c])] for r, c in np.argwhere(counts).tolist()],
            "rows": [clean(name) for name in rows],
            "columns": [clean(name) for name in columns],
            "sums": sums.tolist(),
            "box": [drawn["left"], drawn["top"], cell],
        }
    keys = [("hit", "right"), ("miss", "taken for another class")] if R == C else []
    return fill("heat_map.html", title=title, note=note, maps=[drawn], keys=keys, scale=None)


def value_map(
    title: str, maps: Sequence[tuple[str, Values]], rows: Sequence[str], columns: Sequence[str], note: str = ""
) -> Markup:
    """Values as shades of one color, from the least of all maps (palest) to the largest.

    A single map has its values printed where there are few columns, with as many digits as tell them apart.

    Args:
        title: what is shown.
        maps: a heading and [R, C] each; NaN stays empty. Maps share one scale.
        rows: R names.
        columns: C names.
        note: a sentence below.
    """
    every = np.concatenate([values[np.isfinite(values)] for _, values in maps])
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    width = max(high - low, ALIKE * max(abs(low), abs(high))) or 1.0
    digits = max(0, 1 - floor(log10(width / 2)))
    C = len(columns)
    large = len(maps) == 1 and C <= MOST_PRINTED
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
    tip: Words,
    printed: Words | None,
    heading: str = "",
    diagonal: bool = False,
) -> dict[str, Any]:
    """A map's shapes; cells that look and say the same are one shape.

    Args:
        shades: [R, C] in [0, 1]; NaN for empty cells.
        names: of rows and columns.
        cell: pixels of a side.
        tip: said under the pointer.
        printed: in the cell, where it is wide enough.
        heading: above the map.
        diagonal: whether cells beside the diagonal have another color.
    """
    rows, columns = names
    R, C = shades.shape
    left, top = _gutter(rows), _gutter(columns) + (HEADING if heading else 0)
    shapes: dict[tuple[str, str, str], str] = {}
    labels = []
    for r, c in np.argwhere(np.isfinite(shades)).tolist():
        x, y, shade = left + c * cell, top + r * cell, float(shades[r, c])
        kind = "miss" if diagonal and r != c else "hit"
        key = kind, f"{shade:.3f}", tip(r, c) if R * C <= MOST_NAMED else ""
        shapes[key] = shapes.get(key, "") + f"M{x:g} {y:g}h{cell:g}v{cell:g}h-{cell:g}z"
        if printed and C <= MOST_PRINTED:
            labels.append((x + cell / 2, y + cell / 2 + 4, f"{kind} dark" if shade > 0.7 else kind, printed(r, c)))
    every = max(1, ceil(10 / cell))  # names so that letters do not overlap
    return {
        "heading": heading,
        "size": (max(left + C * cell + 4, 8 + 6.5 * cell_len(heading)), top + R * cell + 4),
        "ground": (C * cell, R * cell),
        "left": left,
        "top": top,
        "cell": cell,
        "longest": LONGEST_NAME,
        "rows": [(top + (i + 0.5) * cell + 3.5, name) for i, name in enumerate(rows) if i % every == 0],
        "columns": [(left + (i + 0.5) * cell + 4, name) for i, name in enumerate(columns) if i % every == 0],
        "shapes": [(*key, path) for key, path in shapes.items()],
        "labels": labels,
        "script": None,
        "kind": "dense" if cell < 13 and not heading else "small" if heading and cell < 44 else "",
    }


def _gutter(names: Sequence[str]) -> float:
    """Pixels beside or above a map for its names, of which very long ones are cut."""
    return 14 + 7.0 * min(LONGEST_NAME, max(map(cell_len, names)))


Pixels = NDArray[np.uint8]
SMALL = 64  # pixels; such images are shown exactly


def image_grid(
    title: str, groups: Sequence[tuple[Sequence[Pixels], Sequence[str]]], note: str, longest: int = MAX_SIDE
) -> Markup:
    """Groups of pictures [H, W, 3] or [H, W] uint8 side by side, with lines of text below (the first one bold).

    Args:
        title: above them.
        groups: pictures with their lines.
        note: below.
        longest: pixels to which larger pictures are shrunk; more than usual makes them larger on the page, too.
    """
    drawn = [
        ([(picture_uri(pixels, longest), max(pixels.shape[:2]) <= SMALL) for pixels in pictures], lines)
        for pictures, lines in groups
    ]
    return fill(
        "pictures.html",
        title=title,
        note=note,
        groups=drawn,
        most=max(len(pictures) for pictures, _ in groups),
        large=longest > MAX_SIDE,
    )


def gallery(shown: Gallery, longest: int = MAX_SIDE) -> Markup:
    """A gallery of photographs and maps; its note alone where there are none."""
    if not shown.groups:
        return Markup("<p>{}</p>").format(shown.note)
    groups = [(_drawn(pictures), lines) for pictures, lines in shown.groups]
    return image_grid(shown.title, groups, shown.note, longest)


def galleries(shown: Sequence[Gallery], longest: int = MAX_SIDE) -> Markup:
    """One below the other; `longest` as for `image_grid`."""
    return Markup().join(gallery(each, longest) for each in shown)


def _drawn(pictures: Sequence[NDArray[Any]]) -> list[Pixels]:
    """Photographs as they are, maps over the photograph before them."""
    drawn: list[Pixels] = []
    below: Pixels | None = None
    for picture in pictures:
        if picture.ndim == 3:
            below = picture
        drawn.append(picture if picture.ndim == 3 else heat(picture) if below is None else overlay(below, picture))
    return drawn


def picture_uri(pixels: Pixels, longest: int = MAX_SIDE) -> str:
    """An image as a data URI: small ones exactly (PNG), others fitted into a square of `longest` pixels (JPEG)."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    small, file = max(image.size) <= SMALL, io.BytesIO()
    image.thumbnail((longest, longest))
    image.save(file, "PNG") if small else image.save(file, "JPEG", quality=80)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
