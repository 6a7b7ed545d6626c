# SPDX-License-Identifier: Apache-2.0
"""Photographs and maps inside a page; a click enlarges each, without any script."""

import base64
import io
from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...analysis.galleries import MAX_SIDE, Gallery
from ..html import Markup, fill

Pixels = NDArray[np.uint8]
SMALL = 64  # pixels; such images are shown exactly
MAP = 64  # pixels, the smaller side of a drawn map
HEAT = np.array([[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float64)
"""Five colors of matplotlib's inferno, dark to light: readable without color vision and in print."""


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


def overlay(photograph: Pixels, values: NDArray[np.floating]) -> Pixels:
    """A map [rows, columns] over the photograph [H, W, 3] that it is of, whose gray shows through; the more, the
    less the map says there. Small photographs are enlarged so that both are seen."""
    block = max(1, ceil(MAP / min(photograph.shape[:2])))
    height, width = (block * side for side in photograph.shape[:2])
    gray = Image.fromarray(photograph).convert("L").resize((width, height), Image.Resampling.NEAREST)
    colors = Image.fromarray(heat(values)).resize((width, height), Image.Resampling.NEAREST)
    span = max(float(values.max() - values.min()), 1e-12)
    share = ((values - values.min()) / span * 255).astype(np.uint8)
    above = Image.fromarray(share).resize((width, height), Image.Resampling.NEAREST)
    opacity = 0.35 + 0.4 * np.asarray(above, dtype=np.float64)[..., None] / 255
    mixed: Pixels = ((1 - opacity) * np.asarray(gray)[..., None] + opacity * np.asarray(colors)).astype(np.uint8)
    return mixed


def heat(values: NDArray[np.floating]) -> Pixels:
    """A map [rows, columns] as a picture on its own scale, dark to light, each cell a block of pixels."""
    low, high = values.min(), values.max()
    share = ((values - low) / max(high - low, values.dtype.type(1e-12))).astype(np.float64)
    places = np.linspace(0, 1, len(HEAT))
    picture = np.stack([np.interp(share, places, HEAT[:, channel]) for channel in range(3)], -1).astype(np.uint8)
    block = max(1, MAP // min(picture.shape[:2]))
    return picture.repeat(block, 0).repeat(block, 1)


def picture_uri(pixels: Pixels, longest: int = MAX_SIDE) -> str:
    """An image as a data URI: small ones exactly (PNG), others fitted into a square of `longest` pixels (JPEG)."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    small, file = max(image.size) <= SMALL, io.BytesIO()
    image.thumbnail((longest, longest))
    image.save(file, "PNG") if small else image.save(file, "JPEG", quality=80)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
