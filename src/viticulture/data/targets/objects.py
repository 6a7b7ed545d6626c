# SPDX-License-Identifier: Apache-2.0
"""What is known of an image beyond a class: objects with boxes and masks, or the class of every pixel.

Boxes are [n, 4] left, top, right, bottom in pixels of the upright original, where pixel i reaches from i to i + 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Shape = list[Any] | Mapping[str, Any]
"""An object's outline as COCO writes it: polygons [[x, y, x, y, ...], ...], or run lengths {counts, size}."""

UNLABELED = 255
"""In a mask of classes: a pixel that is learnt from and judged by nowhere."""


@dataclass(frozen=True, eq=False)
class Objects:
    """Objects of one image.

    Args:
        boxes: [n, 4] float32.
        labels: [n] int64, position of the class.
        crowd: [n] bool: a box around many objects, which is not learnt from and in which nothing counts as wrong.
        shapes: n outlines; None where the data has no masks.
        size: height and width of the upright image that they were drawn in; None where the data does not say.
        areas: [n] float64, pixels of the original, by which they are small or large; None where the data does not say.
    """

    boxes: Tensor
    labels: Tensor
    crowd: Tensor
    shapes: tuple[Shape, ...] | None = None
    size: tuple[int, int] | None = None
    areas: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, rows: Tensor) -> "Objects":
        """Some of them, by a mask or by numbers."""
        numbers = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        shapes = None if self.shapes is None else tuple(self.shapes[i] for i in numbers.tolist())
        areas = None if self.areas is None else self.areas[numbers]
        return Objects(self.boxes[numbers], self.labels[numbers], self.crowd[numbers], shapes, self.size, areas)


NOTHING = Objects(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool))
"""An image without objects."""


@dataclass(frozen=True, eq=False)
class Boxed:
    """Objects of a split's images, in their order.

    Args:
        objects: one entry an image.
        masks: whether they have shapes.
    """

    objects: list[Objects]
    masks: bool

    def first(self, count: int) -> "Boxed":
        """Those of so many images from the beginning."""
        return Boxed(self.objects[:count], self.masks)


@dataclass(frozen=True, eq=False)
class Masked:
    """Classes of the pixels of a split's images, in their order.

    Args:
        pixels: [M, S, S] uint8, squeezed to a square as the images are; 255 is no class.
        rows: [N] int64, which of the M belong to this split.
        original: of image i the mask as it lies on disk, upright, [H, W] uint8.
    """

    pixels: Tensor
    rows: Tensor
    original: Callable[[int], np.ndarray]

    def first(self, count: int) -> "Masked":
        """Those of so many images from the beginning."""
        return Masked(self.pixels, self.rows[:count], self.original)


Annotations = Boxed | Masked
