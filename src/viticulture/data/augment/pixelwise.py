# SPDX-License-Identifier: Apache-2.0
"""Changes of gray levels that look at one pixel, its image's extremes or its histogram, in Pillow's arithmetic.

Images are [n, C, H, W] uint8, and so are results; parameters are [n], one an image, on the images' device. Bytes stay
bytes where they can: a CPU works on 64 of them at once.
"""

import torch
from torch import Tensor

from .color import blend, cut_off, luma, per_image
from .kernels import below


def invert(images: Tensor) -> Tensor:
    """255 - i."""
    return images ^ 255


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits, 0 to 8 of them; 0 leaves black."""
    return images & per_image(256 - 2 ** (8 - bits), torch.uint8)


def solarize(images: Tensor, threshold: Tensor | int) -> Tensor:
    """Invert levels from the threshold on, 0 to 256; 256 changes nothing."""
    if isinstance(threshold, int):
        return images ^ (1 - below(images, threshold)).mul_(255)
    limit, all_bits = per_image(threshold.clamp(max=255), torch.uint8), per_image(255 * (threshold < 256), torch.uint8)
    return images ^ (1 - below(images, limit)).mul_(all_bits)


def solarize_add(images: Tensor, added: Tensor) -> Tensor:
    """Add 0 to 128 to levels below 128."""
    return images + below(images, 128).mul_(per_image(added, torch.uint8))


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """factor i: 0 is black, 1 the image."""
    return cut_off(images.float().mul_(per_image(factor)))


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """m + factor (i - m), m being the image's mean luma: 0 is flat gray, 1 the image."""
    levels = images.float()
    gray = luma(levels).flatten(1)
    mean = (gray.sum(1, dtype=torch.float64).float() / gray.shape[1] + 0.5).floor()
    return blend(per_image(mean), levels, factor)


def auto_contrast(images: Tensor) -> Tensor:
    """Stretch each channel so that its darkest level becomes 0 and its brightest 255; a flat channel stays."""
    pixels = images.flatten(2)
    low, high = pixels.amin(2)[..., None, None].float(), pixels.amax(2)[..., None, None].float()  # [n, C, 1, 1]
    scale = torch.where(high > low, 255 / (high - low), 1.0)
    start = torch.where(high > low, low, 0.0)
    return cut_off(
        images.float().sub_(start).mul_(scale).add_(2**-10)
    )  # a whole level may come out a little below itself


def equalize(images: Tensor) -> Tensor:
    """Give each channel about equal numbers of pixels per level, by Pillow's rule in whole numbers.

        i -> (s // 2 + pixels below i) // s,   s = (pixels - pixels of the brightest level) // 255

    A channel with s = 0 stays as it is.
    """
    pixels = images.flatten(2).long()
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, pixels, torch.ones((), dtype=torch.int32, device=images.device).expand_as(pixels))
    below = counts.cumsum(2, dtype=torch.int32) - counts
    brightest = counts.gather(2, pixels.amax(2, keepdim=True))  # [n, C, 1]
    step = (pixels.shape[2] - brightest) // 255
    equal = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, equal, torch.arange(256, dtype=torch.int32, device=images.device)).to(torch.uint8)
    return table.gather(2, pixels).view_as(images)
