# SPDX-License-Identifier: Apache-2.0
"""Mirroring, and rotations, shears and translations by Pillow's convention: where in the input does an output pixel's
center lie?

    x_in = a (x + 1/2) + b (y + 1/2) + c,    likewise y_in;    pixels, the origin in the upper left corner

A center outside the input takes the fill color; inside, neighbors beyond the edge repeat the edge. Values are cut off
to whole numbers. Shears and translations move rows (or columns) along themselves, which takes four pixels instead of
sixteen. The filter is bicubic (Keys), a = -1, Pillow's arithmetic.
"""

import math

import numpy as np
import torch
from PIL import Image
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
    # A whole number may come out a little below itself.
    moved = torch.full((len(images), height, images.shape[1], width), 2**-8, device=images.device)
    for k, weight in enumerate(keys(d)):
        moved.addcmul_(weight, neighbors.narrow(3, k, width))
    place = torch.arange(width, device=images.device) + 0.5 + offset[..., None]  # [n, H, W]
    return _filled(moved.transpose(1, 2), below(place, 0) | (1 - below(place, width)), fill)


def rotate(images: Tensor, degrees: Tensor, fill: Color) -> Tensor:
    """Turn counter-clockwise around the center, exactly as Pillow does: by Pillow itself on a CPU, which takes a sixth
    of the time that the same arithmetic takes in torch.

    Args:
        images: [n, C, H, W] uint8.
        degrees: [n], on the images' device.
        fill: color beyond the image, 0 to 255.
    """
    if images.device.type != "cpu":
        return rotate_by_taps(images, degrees, fill)
    turned = torch.empty_like(images)
    for image, angle, target in zip(images.numpy(), degrees.tolist(), turned.numpy(), strict=True):
        for channel, value in enumerate(fill):
            plane = Image.fromarray(image[channel]).rotate(angle, Image.Resampling.BICUBIC, fillcolor=value)
            target[channel] = np.asarray(plane)
    return turned


def rotate_by_taps(images: Tensor, degrees: Tensor, fill: Color) -> Tensor:
    """The same for an accelerator: sixteen neighbors of every pixel; one in 200 values may differ by 1."""
    (height, width), device = images.shape[-2:], images.device
    x = torch.arange(width, device=device) + 0.5 - width / 2
    y = torch.arange(height, device=device)[:, None] + 0.5 - height / 2
    angle = degrees[:, None, None] * (math.pi / 180)  # [n, 1, 1]
    cos, sin = angle.cos(), angle.sin()
    across, down = cos * x - sin * y + width / 2, sin * x + cos * y + height / 2  # [n, H, W]
    left, top = (across - 0.5).floor(), (down - 0.5).floor()
    columns, rows = keys(across - 0.5 - left), keys(down - 0.5 - top)
    pixels = images.flatten(2).float()
    turned = torch.full_like(pixels, 2**-8)  # a whole number may come out a little below itself
    for i, row in enumerate(rows):
        line = (top.long() + (i - 1)).clamp_(0, height - 1) * width
        for k, column in enumerate(columns):
            place = (line + (left.long() + (k - 1)).clamp_(0, width - 1)).flatten(1)[:, None]
            turned.addcmul_(pixels.gather(2, place.expand_as(pixels)), (row * column).flatten(1)[:, None])
    outside = below(across, 0) | below(down, 0) | (1 - below(across, width)) | (1 - below(down, height))
    return _filled(turned.view_as(images), outside, fill)


def keys(d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the bicubic filter's weights, a = -1, of the four neighbors of a place `d` behind the second of them."""
    return ((2 - d) * d - 1) * d, (d - 2) * d * d + 1, ((1 - d) * d + 1) * d, (d - 1) * d * d


def _filled(values: Tensor, outside: Tensor, fill: Color) -> Tensor:
    """Clip to [n, C, H, W] uint8; pixels where `outside`, [n, H, W] uint8, is 1 take the fill color."""
    pixels = clip_to_bytes(values).mul_((1 - outside)[:, None])  # products of bytes: faster than a masked fill
    for channel, value in enumerate(fill):
        pixels[:, channel].add_(outside, alpha=value)
    return pixels
