# SPDX-License-Identifier: Apache-2.0
"""Where augmentation puts images, for their boxes and masks: the same numbers, hence the same part, place and side.

A point (x, y) of the original lies on the canvas at

    x' = (x S / w - left) e / width          S: side in the cache, w: width of the original, e: extent on the canvas

with `left` and `width` in whole cached pixels, as the image is cut; mirrored, at W - x'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UserError
from ..targets.objects import Shape
from ..targets.outlines import bounded
from .color import Blur, ColorJitter, Gray, Solarize
from .crop import CanvasCrop, ScaleJitter
from .geometry import Flip
from .resample import on_pixels
from .view import Augment

MIN_SIDE = 1.0  # pixels on the canvas, of a box that is trained on
FOLLOWED = {
    "scale_jitter": ScaleJitter,
    "flip": Flip,
    "color_jitter": ColorJitter,
    "gray": Gray,
    "blur": Blur,
    "solarize": Solarize,
}
"""Transforms that boxes and masks can follow, by their names in a recipe."""


@dataclass(frozen=True)
class Placement:
    """Positions of a batch of images."""

    edges: Tensor  # [B, 4] int64 top, left, height, width of the part, cached pixels
    extents: Tensor  # [B, 2] int64 height and width of that part on the canvas, pixels
    mirrored: Tensor  # [B] bool
    sizes: Tensor  # [B, 2] height and width of the originals, pixels
    side: int  # S, pixels
    canvas: tuple[int, int]  # H, W, pixels

    def factors(self, i: int) -> tuple[Tensor, Tensor]:
        """Scale and shift of image i, (down, across) each: canvas = scale * original - shift, before mirroring."""
        scale = self.extents[i] / self.edges[i, 2:].double()
        return scale * self.side / self.sizes[i], scale * self.edges[i, :2]

    def boxes(self, i: int, boxes: Tensor) -> Tensor:
        """Map boxes [n, 4] of image i to the canvas, clipped to the image; they may be empty."""
        scale, shift = self.factors(i)
        placed = boxes.double() * scale.flip(0).repeat(2) - shift.flip(0).repeat(2)
        height, width = self.extents[i].tolist()
        placed = torch.stack([placed[:, 0::2].clamp(0, width), placed[:, 1::2].clamp(0, height)], 2).flatten(1)
        if self.mirrored[i]:
            left, top, right, bottom = placed.unbind(1)
            placed = torch.stack([self.canvas[1] - right, top, self.canvas[1] - left, bottom], 1)
        return placed.float()

    def back(self, i: int, boxes: Tensor) -> Tensor:
        """Map boxes [n, 4] on the canvas, not mirrored, back to pixels of the original i, inside it."""
        assert not self.mirrored[i]
        scale, shift = self.factors(i)
        placed = (boxes.double() + shift.flip(0).repeat(2)) / scale.flip(0).repeat(2)
        height, width = self.sizes[i].tolist()
        return torch.stack([placed[:, 0::2].clamp(0, width), placed[:, 1::2].clamp(0, height)], 2).flatten(1).float()

    def mask(self, i: int, pixels: Tensor, outside: int) -> Tensor:
        """Map values of image i to the canvas, the nearest at each place, and `outside` beyond the image. `pixels`:
        [h, w] of the original's shape, whatever its size: the original's pixels or the cache's.
        """
        rows, columns = (self._places(i, axis, pixels.shape[axis]) for axis in (0, 1))
        height, width = self.extents[i].tolist()
        out = pixels.new_full(self.canvas, outside)
        out[:height, :width] = pixels[rows[:, None], columns]
        return out.flip(1) if self.mirrored[i] else out

    def outlines(self, i: int, shapes: Sequence[Shape]) -> NDArray[np.uint8]:
        """Draw outlines of image i on the canvas, [n, H, W], each as `mask` maps its bitmap, though only the part
        around it is computed."""
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
        """For every place of the extent, the pixel of `count` under its center."""
        extent, (start, length) = int(self.extents[i, axis]), self.edges[i, [axis, axis + 2]].tolist()
        stored = start + (torch.arange(extent, dtype=torch.float64) + 0.5) * length / extent
        return (stored * count / self.side).long().clamp(max=count - 1)


def placement(augment: Augment, sizes: Tensor, side: int, u: Tensor) -> Placement:
    """Compute where an augmentation puts images.

    Args:
        augment: one that `check_follows` accepts.
        sizes: [B, 2] of the originals, pixels.
        side: of the cached images, pixels.
        u: [B, columns] the numbers that the images are augmented by.
    """
    crop = augment.crop
    assert isinstance(crop, CanvasCrop)
    boxes, extents = crop.placement(u[:, : crop.columns], sizes, augment.image_size)
    mirrored = torch.zeros(len(u), dtype=torch.bool)
    if augment.before and isinstance(flip := augment.before[0], Flip):
        mirrored = u[:, crop.columns] < flip.probability
    return Placement(on_pixels(boxes, side, side), extents, mirrored, sizes, side, augment.image_size)


def check_follows(kinds: Mapping[str, type]) -> None:
    """Raises: UserError unless boxes and masks can follow every transform of a view, given as name in a recipe ->
    class. A user's class of the same name is refused."""
    for name, kind in kinds.items():
        if kind not in FOLLOWED.values():
            raise UserError(f"boxes and masks cannot follow augment.{name}, only {', '.join(FOLLOWED)}; take it out")
    if ScaleJitter not in kinds.values():
        raise UserError(
            "boxes and masks need augment.scale_jitter, and the recipe has none; scale: [1, 1] fits the whole image"
        )
