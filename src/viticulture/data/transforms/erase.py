# SPDX-License-Identifier: Apache-2.0
"""Random erasing: a rectangle of noise or of the mean color, after normalization."""

import math
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from ...errors import UserError
from .transform import Transform, apply_to_rows, between, check_range, check_share, randint, rows_where, send

TRIES = 10
OFFSETS = 2**16


class Erase(Transform):
    """Erase one rectangle of an image (Zhong et al. 2020, arXiv:1708.04896; timm's RandomErasing, count 1).

    Ten times at most: area ~ U(area) of the image, height / width ~ exp(U(log aspect)); the first rectangle smaller
    than the image is placed uniformly. `pixel` fills it with standard normal noise. The noise of an image is a random
    window of one fixed sequence of normal numbers, which is the same on every device.

    Args:
        probability: of erasing from an image.
        mode: `pixel` is noise, `const` zero, which is the mean color after normalization.
        area: smallest and largest area, as shares of the image's.
        aspect: smallest and largest height / width.
    """

    columns = 2 * TRIES + 4

    def __init__(
        self,
        probability: float = 0.25,
        mode: Literal["pixel", "const"] = "pixel",
        area: tuple[float, float] = (0.02, 1 / 3),
        aspect: tuple[float, float] = (0.3, 1 / 0.3),
    ) -> None:
        check_share("erase", "probability", probability)
        if mode not in ("pixel", "const"):
            raise UserError(f"erase.mode must be pixel or const, got {mode!r}")
        check_range("erase", "area", area, 1)
        check_range("erase", "aspect", aspect)
        self.probability, self.mode, self.area, self.aspect = probability, mode, area, aspect

    def boxes(self, u: Tensor, height: int, width: int) -> Tensor:
        """Top, left, height, width of each image's rectangle, [B, 4] int64 pixels; height 0 where none is erased."""
        tries = torch.unflatten(u[:, 1 : 2 * TRIES + 1], 1, (TRIES, 2))
        area = between(tries[..., 0], *self.area) * (height * width)
        aspect = between(tries[..., 1], *map(math.log, self.aspect)).exp()
        h, w = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
        fits = (h < height) & (w < width) & (h > 0) & (w > 0)
        first = fits.int().argmax(1, keepdim=True)
        h, w = h.gather(1, first)[:, 0], w.gather(1, first)[:, 0]
        top, left = randint(u[:, -3], height - h + 1), randint(u[:, -2], width - w + 1)
        erased = fits.any(1) & (u[:, 0] < self.probability)
        return torch.stack([top, left, h * erased, w], 1).long()

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        boxes = self.boxes(u, *images.shape[-2:])
        starts = randint(u[:, -1], OFFSETS).long()
        erase = erase_slices if images.device.type == "cpu" else erase_masks
        return erase(images, boxes, starts if self.mode == "pixel" else None)


def erase_slices(images: Tensor, boxes: Tensor, starts: Tensor | None) -> Tensor:
    """Fill rectangles one by one; `starts` are positions in the noise, None fills with zeros."""
    noise = None if starts is None else normals(images[0].numel(), images.device)
    for row in rows_where(boxes[:, 2] > 0):
        top, left, h, w = boxes[row].tolist()
        part = (..., slice(top, top + h), slice(left, left + w))
        images[row][part] = 0.0 if noise is None or starts is None else noise[starts[row]].view_as(images[row])[part]
    return images


def erase_masks(images: Tensor, boxes: Tensor, starts: Tensor | None) -> Tensor:
    """Do the same for all images at once, for an accelerator."""
    mask = boxes[:, 2] > 0
    top, left, h, w = send(boxes[mask], images.device)[..., None, None].unbind(1)  # [n, 1, 1]
    y = torch.arange(images.shape[-2], device=images.device)[:, None]
    x = torch.arange(images.shape[-1], device=images.device)
    inside = (y >= top) & (y < top + h) & (x >= left) & (x < left + w)  # [n, H, W]
    filling = torch.zeros((), device=images.device)
    if starts is not None:
        windows = normals(images[0].numel(), images.device).index_select(0, send(starts[mask], images.device))
        filling = torch.unflatten(windows, 1, tuple(images.shape[1:]))
    return apply_to_rows(images, rows_where(mask), lambda some: torch.where(inside[:, None], filling, some))


@cache
def normals(length: int, device: torch.device) -> Tensor:
    """Every window of this length of a fixed normal sequence, [OFFSETS, length], a view."""
    sequence = torch.randn(OFFSETS + length - 1, generator=torch.Generator().manual_seed(0))
    return sequence.to(device).unfold(0, length, 1)
