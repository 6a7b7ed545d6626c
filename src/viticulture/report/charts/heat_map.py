# SPDX-License-Identifier: Apache-2.0
"""A heat map of counts, such as a confusion matrix, readable from 2 to some 200 classes."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from math import ceil

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from ...text import clean
from .marks import figure, short, svg

SHADES = 8
LONGEST_NAME = 20  # letters
MOST_PRINTED = 20  # classes whose counts are printed in the cells


def heat_map(title: str, counts: NDArray[np.int64], rows: Sequence[str], columns: Sequence[str], note: str = "") -> str:
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
    cell, left, top = _cell_size(C), gutter(rows), gutter(columns)
    levels = np.ceil(np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1)) * SHADES).astype(int)
    diagonal = np.eye(R, C, dtype=bool) & (R == C)
    shapes = [f'<rect class="ground" x="{left:g}" y="{top:g}" width="{C * cell:g}" height="{R * cell:g}"/>']
    for kind, among in (("hit", diagonal), ("miss", ~diagonal)):
        for level in range(1, SHADES + 1):
            cells = np.argwhere((levels == level) & among).tolist()
            if cells:
                path = "".join(
                    f"M{left + c * cell:g} {top + r * cell:g}h{cell:g}v{cell:g}h-{cell:g}z" for r, c in cells
                )
                shapes.append(f'<path class="{kind}" fill-opacity="{level / SHADES:g}" d="{path}"/>')
    for r, name in spaced(rows, cell):
        y = top + (r + 0.5) * cell + 3.5
        shapes.append(f'<text x="{left - 6:g}" y="{y:g}" class="end">{short(name, LONGEST_NAME)}</text>')
    for c, name in spaced(columns, cell):
        turned = f"translate({left + (c + 0.5) * cell + 4:g} {top - 6:g})rotate(-90)"
        shapes.append(f'<text transform="{turned}">{short(name, LONGEST_NAME)}</text>')
    filled = np.argwhere(counts).tolist()
    for r, c in filled if C <= MOST_PRINTED else []:
        kind = ("on-hit" if diagonal[r, c] else "on-miss") + (" dark" if levels[r, c] > 0.7 * SHADES else "")
        place = f'x="{left + (c + 0.5) * cell:g}" y="{top + (r + 0.5) * cell + 4:g}"'
        shapes.append(f'<text {place} class="middle {kind}">{_brief(int(counts[r, c]))}</text>')
    shapes.append(f'<rect class="cursor" width="{cell:g}" height="{cell:g}"/>')
    data = {
        "cells": [[r, c, int(counts[r, c])] for r, c in filled],
        "rows": [clean(name) for name in rows],
        "columns": [clean(name) for name in columns],
        "sums": counts.sum(1).tolist(),
        "box": [left, top, cell],
    }
    attribute = escape(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    size = (left + C * cell + 4, top + R * cell + 4)
    drawing = svg("heat dense" if cell < 13 else "heat", *size, title, "".join(shapes), f'data-heat="{attribute}"')
    return figure(title, f'<div class="scroll">{drawing}</div>', note)


def _cell_size(C: int) -> float:
    """Pixels: wide enough for a number up to twenty classes, then what fits a page."""
    if C <= MOST_PRINTED:
        return 36 if C <= 12 else 28
    return max(4, min(20, 2000 // C / 2))


def gutter(names: Sequence[str]) -> float:
    """Pixels beside or above a map for its names, of which very long ones are cut."""
    return 14 + 7.0 * min(LONGEST_NAME, max(map(cell_len, names)))


def spaced(names: Sequence[str], cell: float) -> Iterator[tuple[int, str]]:
    """Every n-th name, so that letters do not overlap."""
    every = max(1, ceil(10 / cell))
    return ((i, name) for i, name in enumerate(names) if i % every == 0)


def _brief(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"
