# SPDX-License-Identifier: Apache-2.0
"""Changes that mix a pixel with its grey value or with its neighbours, in Pillow's arithmetic."""

import torch
import torch.nn.functional as F
from torch import Tensor


def luma(images: Tensor) -> Tensor:
    """The grey value of each pixel, ITU-R 601-2: 0.299 R + 0.587 G + 0.114 B in 16-bit fixed point, rounded.

    Shape: [n, 3, H, W] uint8 -> [n, H, W] int32 in 0..255.
    """
    red, green, blue = images.int().unbind(1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (images - base), cut off to a grey level: 0 is the base, 1 the images, more exaggerates."""
    return (base + factor.float() * (images - base)).clamp_(0, 255).to(torch.uint8)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with each pixel's grey value: 0 is grey, 1 the image. images [n, 3, H, W] uint8, factor [n]."""
    return blend(luma(images)[:, None].float(), images, factor[:, None, None, None])


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a smoothed image: 0 is smooth, 1 the image. The outermost pixels stay.

    Smoothing is a 3 x 3 window with weight 5 in the centre and 1 around it, over 13.
    """
    if min(images.shape[-2:]) < 3:
        return images
    kernel = torch.ones(3, 1, 3, 3, device=images.device)
    kernel[:, :, 1, 1] = 5
    smooth = images.float()
    smooth[..., 1:-1, 1:-1] = (F.conv2d(smooth, kernel, groups=3) / 13 + 0.5).floor_()
    return blend(smooth, images, factor[:, None, None, None])
