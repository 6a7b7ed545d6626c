# SPDX-License-Identifier: Apache-2.0
"""Changes of grey levels as tables of 256 entries, one per image and channel, applied by one look-up.

Each function returns [n, 256] or [n, 3, 256] uint8, entry i being what grey level i becomes. Arithmetic is Pillow's:
blends are float32, cut off (not rounded) to whole levels.
"""

import torch
from torch import Tensor

from .colour import blend, luma


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Replace every grey level: images [n, 3, H, W] uint8 by tables [n, 3, 256] uint8."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def levels(device: torch.device | None = None) -> Tensor:
    """The 256 grey levels, int32."""
    return torch.arange(256, dtype=torch.int32, device=device)


def invert(count: int) -> Tensor:
    """255 - i."""
    return (255 - levels()).to(torch.uint8).expand(count, 256)


def posterize(bits: Tensor) -> Tensor:
    """Keep the highest bits, 0 to 8 of them; 0 leaves black."""
    mask = 256 - 2 ** (8 - bits.int())  # [n]
    return (levels() & mask[:, None]).to(torch.uint8)


def solarize(threshold: Tensor) -> Tensor:
    """Invert levels from the threshold on, 0 to 256; 256 changes nothing."""
    i = levels()
    return torch.where(i < threshold[:, None], i, 255 - i).to(torch.uint8)


def solarize_add(added: Tensor) -> Tensor:
    """Add to levels below 128."""
    i = levels()
    return torch.where(i < 128, (i + added.int()[:, None]).clamp(max=255), i).to(torch.uint8)


def brightness(factor: Tensor) -> Tensor:
    """factor i: 0 is black, 1 the image."""
    return blend(torch.zeros(1, 1), levels(), factor[:, None])


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """m + factor (i - m), m being the image's mean luma: 0 is flat grey, 1 the image."""
    grey = luma(images).flatten(1)
    mean = (grey.sum(1, keepdim=True, dtype=torch.int64) / grey.shape[1] + 0.5).floor()  # [n, 1]
    return blend(mean, levels(images.device), factor[:, None])[:, None].expand(-1, 3, -1)


def auto_contrast(images: Tensor) -> Tensor:
    """Stretch each channel so that its darkest level becomes 0 and its brightest 255; a flat channel stays."""
    pixels = images.flatten(2)
    low, high = (end.int()[..., None] for end in (pixels.amin(2), pixels.amax(2)))  # [n, 3, 1]
    i = levels(images.device)
    stretched = ((i - low).clamp(min=0) * 255 // (high - low).clamp(min=1)).clamp(max=255)
    return torch.where(high > low, stretched, i).to(torch.uint8)


def equalize(images: Tensor) -> Tensor:
    """Give each channel about equal numbers of pixels per level, by Pillow's rule in whole numbers.

        entry i = (s // 2 + pixels below i) // s,   s = (pixels - pixels of the brightest level) // 255

    A channel with s = 0 stays as it is.
    """
    pixels = images.flatten(2).long()
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, pixels, torch.ones_like(pixels, dtype=torch.int32))
    below = counts.cumsum(2, dtype=torch.int32) - counts
    brightest = counts.gather(2, pixels.amax(2, keepdim=True))  # [n, 3, 1]
    step = (pixels.shape[2] - brightest) // 255
    equal = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equal, levels(images.device)).to(torch.uint8)
