# SPDX-License-Identifier: Apache-2.0
"""Heat maps of values, such as a weight between every two layers: one, or several on a common scale."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from .heat_map import LONGEST_NAME, MOST_PRINTED, gutter, spaced
from .marks import figure, number, short, svg, text

Values = NDArray[np.float64]
HEADING = 18  # pixels above a map
PALEST = 0.1  # share of color in the least value


def value_map(
    title: str, maps: Sequence[tuple[str, Values]], rows: Sequence[str], columns: Sequence[str], note: str = ""
) -> str:
    """Values as shades of one color, from the least of all maps (palest) to the largest.

    A single map has its values printed where there are few columns; all of them appear under the pointer.

    Args:
        title: what is shown.
        maps: a heading and [R, C] each; NaN stays empty. Maps share one scale.
        rows: R names.
        columns: C names.
        note: a sentence below.
    """
    every = np.concatenate([values[np.isfinite(values)] for _, values in maps])
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    drawn = [_drawn(heading, values, (low, high), rows, columns, len(maps) == 1) for heading, values in maps]
    scale = f"Palest {number(low)}, darkest {number(high)}."
    return figure(title, f'<div class="scroll">{"".join(drawn)}</div>', f"{note} {scale}".strip())


def _drawn(
    heading: str, values: Values, scale: tuple[float, float], rows: Sequence[str], columns: Sequence[str], alone: bool
) -> str:
    R, C = values.shape
    printed = alone and C <= MOST_PRINTED
    cell = 44 if printed else max(4, min(16, 480 // C))
    left, top = gutter(rows), gutter(columns) + HEADING
    low, high = scale
    shares = np.nan_to_num((values - low) / max(high - low, 1e-300))
    shapes = [f'<text x="4" y="12">{text(heading)}</text>']
    for r, c in np.argwhere(np.isfinite(values)).tolist():
        x, y, written = left + c * cell, top + r * cell, number(float(values[r, c]))
        shade = PALEST + (1 - PALEST) * shares[r, c]
        shapes.append(
            f'<path class="hit" fill-opacity="{shade:.3f}" d="M{x:g} {y:g}h{cell:g}v{cell:g}h-{cell:g}z">'
            f"<title>{text(rows[r])}, {text(columns[c])}: {written}</title></path>"
        )
        if printed:
            kind = "middle on-hit dark" if shade > 0.7 else "middle on-hit"
            place = f'x="{x + cell / 2:g}" y="{y + cell / 2 + 4:g}"'
            shapes.append(f'<text {place} class="{kind}" pointer-events="none">{_brief(float(values[r, c]))}</text>')
    for r, name in spaced(rows, cell):
        y = top + (r + 0.5) * cell + 3.5
        shapes.append(f'<text x="{left - 6:g}" y="{y:g}" class="end">{short(name, LONGEST_NAME)}</text>')
    for c, name in spaced(columns, cell):
        turned = f"translate({left + (c + 0.5) * cell + 4:g} {top - 6:g})rotate(-90)"
        shapes.append(f'<text transform="{turned}">{short(name, LONGEST_NAME)}</text>')
    kind = "heat" if printed else "heat small"
    return svg(
        kind, max(left + C * cell + 4, 8 + 6.5 * cell_len(heading)), top + R * cell + 4, heading, "".join(shapes)
    )


def _brief(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.2g}"
