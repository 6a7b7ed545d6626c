# SPDX-License-Identifier: Apache-2.0
"""Affine maps of images, by Pillow's convention: where in the input does the centre of each output pixel lie?

    x_in = a (x + 1/2) + b (y + 1/2) + c,    y_in = d (x + 1/2) + e (y + 1/2) + f

Lengths are pixels, the origin is the upper left corner. A centre outside the input takes the fill colour; inside,
neighbours beyond the edge repeat the edge. Values are cut off to whole levels. Bilinear is Pillow's; bicubic is torch's
(Keys with a = -3/4, where Pillow's affine maps use -1), a few levels apart at sharp edges.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Counter-clockwise around the middle, [n] -> [n, 2, 3]."""
    angle = -degrees * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    return rows_of([cos, sin, x - cos * x - sin * y], [-sin, cos, y + sin * x - cos * y])


def shear(x: Tensor, y: Tensor) -> Tensor:
    """x_in = x + x_shear y and y_in = y + y_shear x, the upper left corner staying in place."""
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    return rows_of([one, x, zero], [y, one, zero])


def translation(x: Tensor, y: Tensor) -> Tensor:
    """Look x pixels to the right and y pixels below."""
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    return rows_of([one, zero, x], [zero, one, y])


def rows_of(first: list[Tensor], second: list[Tensor]) -> Tensor:
    return torch.stack([torch.stack(first, -1), torch.stack(second, -1)], -2)


def warp(images: Tensor, maps: Tensor, fill: tuple[int, int, int], bicubic: bool) -> Tensor:
    """Apply one affine map to each image.

    Args:
        images: [n, 3, H, W] uint8.
        maps: [n, 2, 3], a b c and d e f above, on the images' device.
        fill: grey levels of what lies beyond the image.
        bicubic: bilinear where False.
    """
    height, width = images.shape[-2:]
    grid = torch.empty(len(images), height, width, 2, device=images.device)
    inside = torch.ones(grid.shape[:-1], dtype=torch.bool, device=images.device)
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    for axis, side in enumerate((width, height)):
        a, b, c = maps[:, axis, :, None, None].unbind(1)  # [n, 1, 1]
        place = a * x + (b * y + c)  # [n, H, W]
        inside &= (place >= 0) & (place < side)
        torch.sub(place * (2 / side), 1, out=grid[..., axis])
    mode = "bicubic" if bicubic else "bilinear"
    seen = F.grid_sample(images.float(), grid, mode, padding_mode="border", align_corners=False)
    seen = seen.add_(2**-8).clamp_(0, 255).to(torch.uint8)  # a whole level may come out a little below itself
    for channel, level in enumerate(fill):
        seen[:, channel].masked_fill_(~inside, level)
    return seen
