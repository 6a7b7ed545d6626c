# SPDX-License-Identifier: Apache-2.0
"""Changes that mix a pixel with its gray value or with its neighbors, in Pillow's arithmetic."""

import torch
from torch import Tensor


def luma(images: Tensor) -> Tensor:
    """The gray value of each pixel, ITU-R 601-2: 0.299 R + 0.587 G + 0.114 B in 16-bit fixed point, rounded.

    Shape: [n, 3, H, W] uint8 -> [n, H, W] int32 in 0..255.
    """
    red, green, blue = images.int().unbind(1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (images - base), cut off to a gray level: 0 is the base, 1 the images, more exaggerates; [n]."""
    return cut_off(base + (images.float() - base).mul_(per_image(factor)))


def per_image(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n] -> [n, 1, 1, 1]."""
    return values.to(dtype)[:, None, None, None]


def cut_off(values: Tensor) -> Tensor:
    """Floating point to gray levels, overwritten: less than 0 is 0, more than 255 is 255, fractions are dropped."""
    return values.clamp_(0, 255).to(torch.int16).to(torch.uint8)  # straight to uint8 takes four times as long


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with each pixel's gray value: 0 is gray, 1 the image. images [n, 3, H, W] uint8, factor [n]."""
    return blend(luma(images)[:, None].float(), images, factor)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a smoothed image: 0 is smooth, 1 the image. The outermost pixels stay.

    Smoothing is a 3 x 3 window with weight 5 in the center and 1 around it, over 13.
    """
    if min(images.shape[-2:]) < 3:
        return images
    levels = images.short()
    rows = levels[..., :-2, :] + levels[..., 1:-1, :] + levels[..., 2:, :]
    window = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * levels[..., 1:-1, 1:-1]
    smooth = images.float()
    smooth[..., 1:-1, 1:-1] = (window.float() / 13 + 0.5).floor_()
    return blend(smooth, images, factor)
