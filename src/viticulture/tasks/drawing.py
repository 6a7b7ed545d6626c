# SPDX-License-Identifier: Apache-2.0
"""Boxes, masks and classes of pixels drawn on the images that they belong to."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..data.targets.objects import UNLABELED, Objects
from ..data.targets.outlines import bitmap
from .detection_metrics import DetectedObjects, pairs

COLORS = (
    (0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66),
    (68, 17, 0), (0, 0, 136), (187, 0, 255), (153, 0, 102), (255, 221, 255), (85, 85, 0), (0, 0, 255),
    (0, 238, 187), (0, 204, 0), (119, 0, 187), (255, 153, 255), (0, 68, 85), (136, 102, 102),
    (187, 0, 17),
)  # fmt: skip
"""Distinct with and without color vision: the seven of Okabe and Ito (2008), then each the farthest from those before
it in OKLab, seen normally and by simulated deuteranopia and protanopia."""
RIGHT, MISSED, WRONG = (0, 114, 178), (240, 228, 66), (213, 94, 0)
HALF = 0.5
READABLE = 200  # pixels of an image's longer side from which words find room
LETTERS = 40  # of their height to an image's longer side, so that a page's smaller picture can be read
SMALLEST = 10  # pixels of their height
TRIES = 12  # further places of words below and above

Color = tuple[int, int, int]
Picture = NDArray[np.uint8]  # [H, W, 3]


def color_of(label: int) -> Color:
    """A class's color; after the last one they repeat."""
    return COLORS[label % len(COLORS)]


def palette(classes: int) -> list[int]:
    """Return the palette of an indexed image, 256 colors: those of the classes, black for the rest."""
    colors = [value for label in range(classes) for value in color_of(label)]
    return colors + [0] * (768 - len(colors))


def draw_found(image: Picture, detections: DetectedObjects, names: Sequence[str], threshold: float) -> Picture:
    """Draw detections of at least that score: boxes with class and score, masks shaded."""
    canvas = image.copy()
    shown = np.flatnonzero(detections.scores >= threshold)
    if detections.outlines is not None:
        for i in shown:
            inside = bitmap(detections.outlines[i], *image.shape[:2]).astype(bool)
            canvas[inside] = (canvas[inside] + np.array(color_of(int(detections.labels[i]))) * 1.0) / 2
    drawn = [
        (detections.boxes[i].tolist(), color_of(label), f"{names[label]} {detections.scores[i]:.2f}")
        for i, label in ((i, int(detections.labels[i])) for i in shown[::-1])  # the most certain one on top
    ]
    return _with_boxes(canvas, drawn)


def draw_compared(
    image: Picture, detections: DetectedObjects, true: Objects, names: Sequence[str], threshold: float
) -> Picture:
    """Draw correct boxes in blue, wrong ones or those of another class in orange, missed objects in yellow."""
    taken, over, missed = pairs(detections, true, threshold)
    drawn = [(true.boxes[i].tolist(), MISSED, names[int(true.labels[i])]) for i in missed]
    for i in [*over, *taken]:
        right = i in taken and int(true.labels[taken[i]]) == int(detections.labels[i])
        drawn.append((detections.boxes[i].tolist(), RIGHT if right else WRONG, names[int(detections.labels[i])]))
    return _with_boxes(image, drawn)


def draw_classes(image: Picture, classes: NDArray[np.uint8]) -> Picture:
    """Draw the colors of pixels' classes over an image; pixels without class as they are."""
    colors = np.array([color_of(label) for label in range(256)])[classes]
    mixed = (image * (1 - HALF) + colors * HALF).astype(np.uint8)
    return np.where((classes == UNLABELED)[..., None], image, mixed)


def counts_of(detections: DetectedObjects, true: Objects, threshold: float) -> Mapping[str, int]:
    """Count the boxes of an image that are correct, wrong and missed."""
    taken, over, missed = pairs(detections, true, threshold)
    right = sum(int(true.labels[j]) == int(detections.labels[i]) for i, j in taken.items())
    return {"correct": right, "wrong": len(over) + len(taken) - right, "missed": len(missed)}


def _with_boxes(image: Picture, boxes: Sequence[tuple[list[float], Color, str]]) -> Picture:
    """Draw the edges of boxes, the last ones on top, then their words, each on its color and where there is room.

    Words stand above their box, below or inside it, or else further away, and never outside the image.
    """
    picture = Image.fromarray(image)
    draw, longest = ImageDraw.Draw(picture), max(image.shape[:2])
    wide, size = max(1, round(longest / 300)), max(SMALLEST, longest / LETTERS)
    for (left, top, right, bottom), color, _ in boxes:
        draw.rectangle((left, top, max(right - 1, left), max(bottom - 1, top)), outline=color, width=wide)
    if longest < READABLE:
        return np.asarray(picture)
    used: list[tuple[float, float, float, float]] = []
    for (left, top, _, bottom), color, words in reversed(boxes):
        _, _, width, height = draw.textbbox((0, 0), words, font_size=size)
        width, height = width + 4, height + 4
        x = max(0, min(left, picture.width - width))
        rows = [top - height, bottom, *(top + k * height for step in range(TRIES) for k in (step, -step - 2))]
        tags = [(x, y, x + width, y + height) for y in (max(0, min(y, picture.height - height)) for y in rows)]
        free = [tag for tag in tags if not any(_overlap(tag, other) for other in used)]
        used.append((free or tags)[0])
        draw.rectangle(used[-1], fill=color)
        dark = np.dot(color, (0.299, 0.587, 0.114)) < 140
        draw.text((used[-1][0] + 2, used[-1][1] + 2), words, fill="white" if dark else "black", font_size=size)
    return np.asarray(picture)


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
