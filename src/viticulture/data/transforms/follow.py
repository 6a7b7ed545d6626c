# SPDX-License-Identifier: Apache-2.0
"""What happened to an image happens to its boxes and masks: the same numbers, hence the same part, place and side.

A point (x, y) of the original lies on the canvas at

    x' = (x S / w - left) e / width          S: side of the store, w: width of the original, e: extent on the canvas

with `left` and `width` in whole stored pixels, as the image is cut; mirrored, at W - x'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UserError
from ..targets.objects import UNLABELED, Objects, Shape
from ..targets.outlines import bounded
from .color import Blur, ColorJitter, Gray, Solarize
from .crop import CanvasCrop, ScaleJitter
from .geometry import Flip
from .resample import on_pixels
from .view import Augment

LEAST = 1.0  # pixels on the canvas that a box keeps each way
FOLLOWED = {
    "scale_jitter": ScaleJitter,
    "flip": Flip,
    "color_jitter": ColorJitter,
    "gray": Gray,
    "blur": Blur,
    "solarize": Solarize,
}
"""Transforms that objects and masks can follow, by their names in a recipe."""


@dataclass(frozen=True)
class Placement:
    """Where a batch of images went.

    Args:
        edges: [B, 4] int64 top, left, height, width of the part that is shown, stored pixels.
        extents: [B, 2] int64 height and width of that part on the canvas, pixels.
        mirrored: [B] bool.
        sizes: [B, 2] height and width of the originals, pixels.
        side: S of the store, pixels.
        canvas: H, W, pixels.
    """

    edges: Tensor
    extents: Tensor
    mirrored: Tensor
    sizes: Tensor
    side: int
    canvas: tuple[int, int]

    def factors(self, i: int) -> tuple[Tensor, Tensor]:
        """Scale and shift of image i, (down, across) each: canvas = scale * original - shift, before mirroring."""
        scale = self.extents[i] / self.edges[i, 2:].double()
        return scale * self.side / self.sizes[i], scale * self.edges[i, :2]

    def boxes(self, i: int, boxes: Tensor) -> Tensor:
        """Boxes [n, 4] of image i on the canvas, cut off where the image is; they may be empty."""
        scale, shift = self.factors(i)
        placed = boxes.double() * scale.flip(0).repeat(2) - shift.flip(0).repeat(2)
        height, width = self.extents[i].tolist()
        placed = torch.stack([placed[:, 0::2].clamp(0, width), placed[:, 1::2].clamp(0, height)], 2).flatten(1)
        if self.mirrored[i]:
            left, top, right, bottom = placed.unbind(1)
            placed = torch.stack([self.canvas[1] - right, top, self.canvas[1] - left, bottom], 1)
        return placed.float()

    def back(self, i: int, boxes: Tensor) -> Tensor:
        """Boxes [n, 4] on the canvas in pixels of the original i, inside it. What is judged is not mirrored."""
        assert not self.mirrored[i]
        scale, shift = self.factors(i)
        placed = (boxes.double() + shift.flip(0).repeat(2)) / scale.flip(0).repeat(2)
        height, width = self.sizes[i].tolist()
        return torch.stack([placed[:, 0::2].clamp(0, width), placed[:, 1::2].clamp(0, height)], 2).flatten(1).float()

    def mask(self, i: int, pixels: Tensor, outside: int) -> Tensor:
        """Values of image i on the canvas, the nearest at each place, and `outside` where the image is not.

        Args:
            pixels: [h, w] of the original's shape, whatever its size: the original's own pixels or the store's.
        """
        rows, columns = (self._places(i, axis, pixels.shape[axis]) for axis in (0, 1))
        height, width = self.extents[i].tolist()
        out = pixels.new_full(self.canvas, outside)
        out[:height, :width] = pixels[rows[:, None], columns]
        return out.flip(1) if self.mirrored[i] else out

    def outlines(self, i: int, shapes: Sequence[Shape]) -> NDArray[np.uint8]:
        """Outlines of image i on the canvas, [n, H, W], each as `mask` puts its bitmap: the part alone in which it is
        anything is looked up."""
        height, width = self.sizes[i].tolist()
        rows, columns = (self._places(i, axis, side).numpy() for axis, side in enumerate((height, width)))
        planes = np.zeros((len(shapes), *self.canvas), np.uint8)
        for plane, shape in zip(planes, shapes, strict=True):
            pixels, top, left = bounded(shape, height, width)
            down = slice(*np.searchsorted(rows, (top, top + pixels.shape[0])))
            across = slice(*np.searchsorted(columns, (left, left + pixels.shape[1])))
            plane[down, across] = pixels.T[columns[across] - left][:, rows[down] - top].T  # columns lie together
        return planes[..., ::-1].copy() if self.mirrored[i] else planes

    def _places(self, i: int, axis: int, count: int) -> Tensor:
        """For every place of the extent, which of `count` pixels lies under its center."""
        extent, (start, length) = int(self.extents[i, axis]), self.edges[i, [axis, axis + 2]].tolist()
        stored = start + (torch.arange(extent, dtype=torch.float64) + 0.5) * length / extent
        return (stored * count / self.side).long().clamp(max=count - 1)


def placement(augment: Augment, sizes: Tensor, side: int, u: Tensor) -> Placement:
    """Where an augmentation puts images.

    Args:
        augment: as `check_follows` wants it.
        sizes: [B, 2] of the originals, pixels.
        side: of the store, pixels.
        u: [B, columns] the very numbers by which the images are augmented.
    """
    crop = augment.crop
    assert isinstance(crop, CanvasCrop)
    boxes, extents = crop.placement(u[:, : crop.columns], sizes, augment.image_size)
    mirrored = torch.zeros(len(u), dtype=torch.bool)
    if augment.before and isinstance(flip := augment.before[0], Flip):
        mirrored = u[:, crop.columns] < flip.probability
    return Placement(on_pixels(boxes, side, side), extents, mirrored, sizes, side, augment.image_size)


def check_follows(kinds: Mapping[str, type]) -> None:
    """Raises: UserError unless objects can follow every transform of a view, whose classes are given by their names in
    a recipe. What a person's own class does to an image nobody knows, whatever it is called."""
    for name, kind in kinds.items():
        if kind not in FOLLOWED.values():
            raise UserError(f"objects and masks cannot follow augment.{name}; take it out, of {', '.join(FOLLOWED)}")
    if ScaleJitter not in kinds.values():
        raise UserError(
            "objects and masks follow augment.scale_jitter, and the recipe has none; scale: [1, 1] fits all"
        )


def follow(place: Placement, i: int, objects: Objects, masks: bool) -> dict[str, Tensor]:
    """What is to be learnt of image i: boxes [n, 4], labels [n], and masks [n, H, W] uint8 where they are wanted.

    Crowds are left out, and so are objects of which less than a pixel is left, or no pixel of their mask.
    """
    objects = objects.part(~objects.crowd)
    boxes = place.boxes(i, objects.boxes)
    seen = (boxes[:, 2:] - boxes[:, :2] >= LEAST).all(1)
    boxes, objects = boxes[seen], objects.part(seen)
    if not masks:
        return {"boxes": boxes, "labels": objects.labels}
    assert objects.shapes is not None or not len(objects)  # an image without objects names no shapes either
    planes = place.outlines(i, objects.shapes or ())
    seen = torch.from_numpy(planes.any((1, 2)))
    return {"boxes": boxes[seen], "labels": objects.labels[seen], "masks": torch.from_numpy(planes)[seen]}


def follow_crowds(place: Placement, i: int, objects: Objects) -> dict[str, Tensor]:
    """What counts for nothing where image i is judged: boxes [n, 4] and labels [n] of its crowds."""
    crowds = objects.part(objects.crowd)
    return {"boxes": place.boxes(i, crowds.boxes), "labels": crowds.labels}


def follow_classes(place: Placement, i: int, pixels: Tensor) -> Tensor:
    """The classes of an image's pixels on the canvas, [H, W] int64, 255 where there is no image."""
    return place.mask(i, pixels, UNLABELED).long()
