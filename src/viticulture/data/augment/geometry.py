# SPDX-License-Identifier: Apache-2.0
"""Rotations, shears and translations by Pillow's convention: where in the input does an output pixel's center lie?

    x_in = a (x + 1/2) + b (y + 1/2) + c,    likewise y_in;    pixels, the origin in the upper left corner

A center outside the input takes the fill color; inside, neighbors beyond the edge repeat the edge. Values are cut off
to whole levels. Shears and translations move rows (or columns) along themselves, which takes four pixels instead of
sixteen. The filter is bicubic (Keys): Pillow's arithmetic, a = -1, where rows slide, torch's, a = -3/4, in rotations.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .color import cut_off
from .kernels import below, cut_rows

Color = tuple[int, ...]


def slide(images: Tensor, offset: Tensor, dim: int, fill: Color) -> Tensor:
    """Look `offset` pixels to the right, in each row by its own: x_in = x + 1/2 + offset(y). Or down, in each column.

    Args:
        images: [n, C, H, W] uint8.
        offset: [n, H] along rows, [n, W] along columns, on the images' device.
        dim: 3 to look right, 2 to look down.
        fill: gray levels of what lies beyond the image.
    """
    if dim == 2:
        return slide(images.mT, offset, 3, fill).mT
    (height, width), whole = images.shape[2:], offset.floor()
    d = (offset - whole)[..., None, None]  # [n, H, 1, 1]
    neighbors = cut_rows(images, whole.long() - 1, width + 3).float()  # [n, H, C, W + 3]
    weights = (((2 - d) * d - 1) * d, (d - 2) * d * d + 1, ((1 - d) * d + 1) * d, (d - 1) * d * d)
    # A whole level may come out a little below itself.
    seen = torch.full((len(images), height, images.shape[1], width), 2**-8, device=images.device)
    for k, weight in enumerate(weights):
        seen.addcmul_(weight, neighbors.narrow(3, k, width))
    place = torch.arange(width, device=images.device) + 0.5 + offset[..., None]  # [n, H, W]
    return paint(seen.transpose(1, 2), below(place, 0) | (1 - below(place, width)), fill)


def rotate(images: Tensor, degrees: Tensor, fill: Color) -> Tensor:
    """Turn counter-clockwise around the middle: images [n, C, H, W] uint8, degrees [n] on their device."""
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + 0.5 - width / 2
    y = torch.arange(height, device=images.device)[:, None] + 0.5 - height / 2
    angle = degrees[:, None, None] * (math.pi / 180)  # [n, 1, 1]
    cos, sin = angle.cos(), angle.sin()
    grid = torch.empty(len(images), height, width, 2, device=images.device)
    torch.add(cos * (x * (2 / width)), sin * (y * (-2 / width)), out=grid[..., 0])  # -1 to 1 across the image
    torch.add(sin * (x * (2 / height)), cos * (y * (2 / height)), out=grid[..., 1])
    seen = F.grid_sample(images.float(), grid, "bicubic", padding_mode="border", align_corners=False)
    outside = below(-grid.abs_(), -1)  # [n, H, W, 2]
    outside = outside[..., 0] | outside[..., 1]
    return paint(seen.add_(2**-8), outside, fill)


def paint(seen: Tensor, outside: Tensor, fill: Color) -> Tensor:
    """Cut off to levels, [n, C, H, W] uint8; pixels where `outside`, [n, H, W] uint8, is 1 take the fill color."""
    levels = cut_off(seen).mul_((1 - outside)[:, None])  # products of bytes: many times faster than a masked fill
    for channel, level in enumerate(fill):
        levels[:, channel].add_(outside, alpha=level)
    return levels
