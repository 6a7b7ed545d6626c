# SPDX-License-Identifier: Apache-2.0
"""Changes that mix a pixel with its gray value or with its neighbors, in Pillow's arithmetic."""

import torch
from torch import Tensor

from .kernels import to_bytes


def luma(images: Tensor) -> Tensor:
    """The gray value of each pixel, ITU-R 601-2: 0.299 R + 0.587 G + 0.114 B in 16-bit fixed point, rounded.

    Whole numbers below 2^24, which float32 holds exactly. Of other than three channels it is their mean, rounded.

    Shape: [n, C, H, W] in 0..255 -> [n, H, W] float32, whole numbers in 0..255.
    """
    if images.shape[1] != 3:
        return images.sum(1, dtype=torch.float32).div_(images.shape[1]).add_(0.5).floor_()
    red, green, blue = images.float().unbind(1)
    return torch.add(19595 * red, green, alpha=38470).add_(blue, alpha=7471).add_(32768).mul_(2**-16).floor_()


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (images - base), cut off to a gray level: 0 is the base, 1 the images, more exaggerates.

    Args:
        base: broadcasts to the images, float32.
        images: [n, C, H, W] float32 in 0..255.
        factor: [n].
    """
    return cut_off((images - base).mul_(per_image(factor)).add_(base))


def per_image(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n] -> [n, 1, 1, 1]."""
    return values.to(dtype)[:, None, None, None]


def cut_off(values: Tensor) -> Tensor:
    """Floating point to gray levels, overwritten: less than 0 is 0, more than 255 is 255, fractions are dropped."""
    return to_bytes(values.clamp_(0, 255))


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with each pixel's gray value: 0 is gray, 1 the image. images [n, C, H, W] uint8, factor [n]."""
    levels = images.float()
    return blend(luma(levels)[:, None], levels, factor)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a smoothed image: 0 is smooth, 1 the image. The outermost pixels stay.

    Smoothing is a 3 x 3 window with weight 5 in the center and 1 around it, over 13.
    """
    if min(images.shape[-2:]) < 3:
        return images
    levels, short = images.float(), images.short()
    rows = short[..., :-2, :] + short[..., 1:-1, :] + short[..., 2:, :]
    window = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * short[..., 1:-1, 1:-1]
    smooth = levels.clone()
    smooth[..., 1:-1, 1:-1] = window.float().div_(13).add_(0.5).floor_()
    return blend(smooth, levels, factor)
