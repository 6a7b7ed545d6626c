# SPDX-License-Identifier: Apache-2.0
"""Boxes, masks and classes of pixels drawn on the images that they belong to."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...data.annotations import UNLABELED, Objects
from ...data.dense.outlines import bitmap
from .objects import pairs
from .subject import Found

COLORS = (
    (0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66),
)  # fmt: skip
"""Told apart without color vision (Okabe and Ito 2008)."""
SHADES = ((0, 0.0), (255, 0.5), (0, 0.5))
"""Of each, as more classes come: itself, half way to white, half way to black."""
RIGHT, MISSED, WRONG = (0, 114, 178), (240, 228, 66), (213, 94, 0)
HALF = 0.5
READABLE = 200  # pixels of an image's longer side from which words find room
LETTERS = 40  # of their height to an image's longer side, so that a page's smaller picture can be read
SMALLEST = 10  # pixels of their height

Picture = NDArray[np.uint8]
"""[H, W, 3]."""


def color_of(label: int) -> tuple[int, int, int]:
    """A class's color; seven, then the same lighter, then darker, then all again."""
    towards, share = SHADES[label // len(COLORS) % len(SHADES)]
    red, green, blue = (round(value + share * (towards - value)) for value in COLORS[label % len(COLORS)])
    return red, green, blue


def palette(classes: int) -> list[int]:
    """Of an indexed image, 256 colors: those of the classes, black for the rest."""
    colors = [value for label in range(classes) for value in color_of(label)]
    return colors + [0] * (768 - len(colors))


def draw_found(image: Picture, detections: Found, names: Sequence[str], least: float) -> Picture:
    """What is found with at least that score: boxes with class and score, masks shaded.

    Args:
        image: the original, in the size that the boxes mean.
        detections: of it.
        names: of the classes.
        least: score.
    """
    canvas = image.copy()
    kept = np.flatnonzero(detections.scores >= least)
    if detections.outlines is not None:
        for i in kept:
            inside = bitmap(detections.outlines[i], *image.shape[:2]).astype(bool)
            canvas[inside] = (canvas[inside] + np.array(color_of(int(detections.labels[i]))) * 1.0) / 2
    picture = Image.fromarray(canvas)
    draw = ImageDraw.Draw(picture)
    for i in kept[::-1]:  # the most certain one on top
        label = int(detections.labels[i])
        _box(
            draw,
            detections.boxes[i].tolist(),
            color_of(label),
            f"{names[label]} {detections.scores[i]:.2f}",
            _wide(image),
        )
    return np.asarray(picture)


def draw_judged(image: Picture, detections: Found, true: Objects, names: Sequence[str], least: float) -> Picture:
    """Blue what is right, orange what is not there or of another class, yellow what is missed."""
    picture = Image.fromarray(image)
    draw, wide = ImageDraw.Draw(picture), _wide(image)
    taken, over, missed = pairs(detections, true, least)
    for i in missed:
        _box(draw, true.boxes[i].tolist(), MISSED, names[int(true.labels[i])], wide)
    for i in [*over, *taken]:
        right = i in taken and int(true.labels[taken[i]]) == int(detections.labels[i])
        _box(draw, detections.boxes[i].tolist(), RIGHT if right else WRONG, names[int(detections.labels[i])], wide)
    return np.asarray(picture)


def draw_classes(image: Picture, classes: NDArray[np.uint8]) -> Picture:
    """An image under the colors of its pixels' classes; pixels without class as they are."""
    colors = np.array([color_of(label) for label in range(256)])[classes]
    mixed = (image * (1 - HALF) + colors * HALF).astype(np.uint8)
    return np.where((classes == UNLABELED)[..., None], image, mixed)


def counted_words(detections: Found, true: Objects, least: float) -> Mapping[str, int]:
    """How many boxes of an image are right, wrong and missed."""
    taken, over, missed = pairs(detections, true, least)
    right = sum(int(true.labels[j]) == int(detections.labels[i]) for i, j in taken.items())
    return {"right": right, "wrong": len(over) + len(taken) - right, "missed": len(missed)}


def _wide(image: Picture) -> int:
    """Pixels of a line that can be seen in an image of that size."""
    return max(1, round(max(image.shape[:2]) / 300))


def _box(draw: ImageDraw.ImageDraw, box: Sequence[float], color: tuple[int, int, int], words: str, wide: int) -> None:
    left, top, right, bottom = box
    draw.rectangle((left, top, max(right - 1, left), max(bottom - 1, top)), outline=color, width=wide)
    if max(draw.im.size) >= READABLE:
        size = max(draw.im.size) / LETTERS
        draw.text((left + wide + 1, top + wide), words, fill=color, font_size=max(SMALLEST, size))
