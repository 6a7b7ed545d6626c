# SPDX-License-Identifier: Apache-2.0
"""Targets beyond one label per image: objects with boxes and outlines, or the class of every pixel.

Boxes are [n, 4] left, top, right, bottom in pixels of the upright original, where pixel i reaches from i to i + 1.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError

Shape = list[Any] | Mapping[str, Any]
"""An object's outline as COCO writes it: polygons [[x, y, x, y, ...], ...], or run lengths {counts, size}."""

UNLABELED = 255  # in a mask of classes: a pixel without a class, ignored in training and evaluation


@dataclass(frozen=True, eq=False)
class Objects:
    """Objects of one image."""

    boxes: Tensor  # [n, 4] float32
    labels: Tensor
    crowd: Tensor  # [n] bool, a box around many objects: not trained on, and predictions in it do not count as wrong
    shapes: tuple[Shape, ...] | None = None  # n outlines; None where the data has no masks
    # Height and width of the upright image that was annotated; None where the data does not say.
    size: tuple[int, int] | None = None
    # [n] float64, pixels of the original, by which objects are small or large; None where the data has none.
    areas: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(
        cls,
        boxes: Iterable[Sequence[float]],
        labels: Sequence[int],
        shapes: tuple[Shape, ...] | None = None,
        size: tuple[int, int] | None = None,
        crowd: Sequence[bool] | None = None,
    ) -> "Objects":
        """Make objects of one image from numbers; none is a crowd by default."""
        corners = torch.tensor([list(box) for box in boxes], dtype=torch.float32).reshape(-1, 4)
        crowds = torch.tensor(crowd or [False] * len(labels), dtype=torch.bool)
        return cls(corners, torch.tensor(labels, dtype=torch.int64), crowds, shapes, size)

    def part(self, rows: Tensor) -> "Objects":
        """Select objects by a mask or by positions."""
        numbers = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        shapes = None if self.shapes is None else tuple(self.shapes[i] for i in numbers.tolist())
        areas = None if self.areas is None else self.areas[numbers]
        return Objects(self.boxes[numbers], self.labels[numbers], self.crowd[numbers], shapes, self.size, areas)

    def without_duplicates(self) -> "Objects":
        """Drop objects that repeat another one in class, box and outline, which would count several times."""
        outlines = map(repr, self.shapes) if self.shapes else repeat("")
        marks = zip(map(tuple, self.boxes.tolist()), self.labels.tolist(), self.crowd.tolist(), outlines, strict=False)
        first = {mark: row for row, mark in reversed([*enumerate(marks)])}
        return self if len(first) == len(self) else self.part(torch.tensor(sorted(first.values())))

    def turned(self, size: tuple[int, int], orientation: int, name: str) -> "Objects":
        """Turn objects that were drawn on an image as it lies in its file with it, as its EXIF tag says.

        Raises: UserError unless the sizes differ by the turn alone.
        """
        assert self.size is not None
        height, width = self.size
        if (width, height) != size or orientation not in _TURNS:
            raise UserError(
                f"{name} is {size[1]}x{size[0]} pixels, and the list of its objects says {width}x{height}; use the "
                "image that was annotated"
            )
        if any(not isinstance(shape, list) for shape in self.shapes or ()):
            raise UserError(
                f"{name} is turned by its EXIF tag, and run lengths of masks cannot follow; save it upright"
            )

        def turn(points: Tensor) -> Tensor:
            """[..., 2 n] x, y, x, y, ... -> the same of the upright image."""
            moved = _TURNS[orientation](points[..., 0::2], points[..., 1::2], height, width)
            return torch.stack(moved, -1).flatten(-2)

        x, y = (turn(self.boxes)[:, axis::2] for axis in (0, 1))
        boxes = torch.stack([x.amin(1), y.amin(1), x.amax(1), y.amax(1)], 1)
        shapes = self.shapes and tuple(
            [turn(torch.tensor(part, dtype=torch.float64)).tolist() for part in shape] for shape in self.shapes
        )
        return replace(self, boxes=boxes, shapes=shapes, size=size)


# EXIF orientation -> where a point (x, y) of a lying image of h x w comes to lie in the upright one, for those that
# swap height and width. Where they stay the same (2, 3, 4), a list's declared size does not show which was annotated.
_TURNS: dict[int, Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]] = {
    5: lambda x, y, h, w: (y, x),
    6: lambda x, y, h, w: (h - y, x),
    7: lambda x, y, h, w: (h - y, w - x),
    8: lambda x, y, h, w: (y, w - x),
}

NO_OBJECTS = Objects.of([], [])  # of an image without objects


@dataclass(frozen=True, eq=False)
class MaskFiles:
    """Masks whose pixels are classes, one file per image."""

    paths: list[Path]
    values: np.ndarray  # [256] uint8, for each pixel value its class, 255 for none, 254 for a value that has no meaning


@dataclass(frozen=True, eq=False)
class Boxed:
    """Objects of a split's images, in their order."""

    objects: list[Objects]
    masks: bool

    def first(self, count: int) -> "Boxed":
        """Return the objects of the first `count` images."""
        return Boxed(self.objects[:count], self.masks)


@dataclass(frozen=True, eq=False)
class Masked:
    """Classes of the pixels of a split's images, in their order."""

    pixels: Tensor  # [M, S, S] uint8, resized to a square as the images are; 255 is no class
    rows: Tensor  # [N] int64, which of the M belong to this split
    original: Callable[[int], np.ndarray]  # of image i the mask as stored on disk, upright, [H, W] uint8

    def first(self, count: int) -> "Masked":
        """Return the masks of the first `count` images."""
        return Masked(self.pixels, self.rows[:count], self.original)


Annotations = Boxed | Masked


def digest_of(targets: Sequence[Objects] | MaskFiles | Annotations) -> str:
    """Return a digest that changes with any target of a source or split."""
    hashed = hashlib.blake2b(digest_size=16)
    if isinstance(targets, MaskFiles):
        hashed.update(repr([str(path) for path in targets.paths]).encode() + targets.values.tobytes())
    elif isinstance(targets, Masked):
        for part in torch.split(targets.rows, 64):
            hashed.update(targets.pixels[part].numpy().tobytes())
    else:
        for objects in targets.objects if isinstance(targets, Boxed) else targets:
            for values in (objects.boxes, objects.labels, objects.crowd):
                hashed.update(values.numpy().tobytes())
            hashed.update(repr(objects.shapes).encode())
    return hashed.hexdigest()
