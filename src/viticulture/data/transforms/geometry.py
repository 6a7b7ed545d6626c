# SPDX-License-Identifier: Apache-2.0
"""Mirroring, and rotations, shears and translations by Pillow's convention: where in the input does an output pixel's
center lie?

    x_in = a (x + 1/2) + b (y + 1/2) + c,    likewise y_in;    pixels, the origin in the upper left corner

A center outside the input takes the fill color; inside, neighbors beyond the edge repeat the edge. Values are cut off
to whole numbers. Shears and translations move rows (or columns) along themselves, which takes four pixels instead of
sixteen. The filter is bicubic (Keys): Pillow's arithmetic, a = -1, where rows slide, torch's, a = -3/4, in rotations.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .pixels import below, clip_to_bytes, cut_rows
from .transform import Transform, apply_to_rows, check_share, rows_where

Color = tuple[int, ...]


class Flip(Transform):
    """Mirror left and right. Leave it out where sides mean something: digits, letters.

    Args:
        probability: of mirroring an image.
    """

    columns = 1

    def __init__(self, probability: float = 0.5) -> None:
        check_share("flip", "probability", probability)
        self.probability = probability

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return apply_to_rows(images, rows_where(u[:, 0] < self.probability), lambda some: some.flip(-1))


def slide(images: Tensor, offset: Tensor, dim: int, fill: Color) -> Tensor:
    """Read each row `offset` pixels further right: x_in = x + 1/2 + offset(y); or each column further down.

    Args:
        images: [n, C, H, W] uint8.
        offset: [n, H] along rows, [n, W] along columns, on the images' device.
        dim: 3 for rows, 2 for columns.
        fill: color beyond the image, 0 to 255.
    """
    if dim == 2:
        return slide(images.mT, offset, 3, fill).mT
    (height, width), whole = images.shape[2:], offset.floor()
    d = (offset - whole)[..., None, None]  # [n, H, 1, 1]
    neighbors = cut_rows(images, whole.long() - 1, width + 3).float()  # [n, H, C, W + 3]
    weights = (((2 - d) * d - 1) * d, (d - 2) * d * d + 1, ((1 - d) * d + 1) * d, (d - 1) * d * d)
    # A whole number may come out a little below itself.
    moved = torch.full((len(images), height, images.shape[1], width), 2**-8, device=images.device)
    for k, weight in enumerate(weights):
        moved.addcmul_(weight, neighbors.narrow(3, k, width))
    place = torch.arange(width, device=images.device) + 0.5 + offset[..., None]  # [n, H, W]
    return _filled(moved.transpose(1, 2), below(place, 0) | (1 - below(place, width)), fill)


def rotate(images: Tensor, degrees: Tensor, fill: Color) -> Tensor:
    """Turn counter-clockwise around the center: images [n, C, H, W] uint8, degrees [n] on their device."""
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + 0.5 - width / 2
    y = torch.arange(height, device=images.device)[:, None] + 0.5 - height / 2
    angle = degrees[:, None, None] * (math.pi / 180)  # [n, 1, 1]
    cos, sin = angle.cos(), angle.sin()
    grid = torch.empty(len(images), height, width, 2, device=images.device)
    torch.add(cos * (x * (2 / width)), sin * (y * (-2 / width)), out=grid[..., 0])  # -1 to 1 across the image
    torch.add(sin * (x * (2 / height)), cos * (y * (2 / height)), out=grid[..., 1])
    turned = F.grid_sample(images.float(), grid, "bicubic", padding_mode="border", align_corners=False)
    outside = below(-grid.abs_(), -1)  # [n, H, W, 2]
    return _filled(turned.add_(2**-8), outside[..., 0] | outside[..., 1], fill)


def _filled(values: Tensor, outside: Tensor, fill: Color) -> Tensor:
    """Clip to [n, C, H, W] uint8; pixels where `outside`, [n, H, W] uint8, is 1 take the fill color."""
    pixels = clip_to_bytes(values).mul_((1 - outside)[:, None])  # products of bytes: faster than a masked fill
    for channel, value in enumerate(fill):
        pixels[:, channel].add_(outside, alpha=value)
    return pixels
