# SPDX-License-Identifier: Apache-2.0
"""Operations on uint8 pixels in Pillow's arithmetic.

Images are [n, C, H, W] uint8, and so are results; parameters are [n], one an image, on the images' device. Bytes stay
bytes where they can: a CPU works on 64 of them at once. Where numpy is several times faster than torch on a CPU, it
does the work, with the same values on any device. Microseconds for an image of 128 px on one core (AVX-512):
comparisons 4 against 50, floating point to bytes 9 against 20, rows cut at individual places 16 against 110.
"""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor


def to_bytes(values: Tensor) -> Tensor:
    """Convert floating point from 0 to 255 to uint8; fractions are dropped."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().astype(np.uint8))
    return values.to(torch.int16).to(torch.uint8)


def clip_to_bytes(values: Tensor) -> Tensor:
    """Clip to 0..255 in place and convert to uint8."""
    return to_bytes(values.clamp_(0, 255))


def below(values: Tensor, limit: Tensor | float) -> Tensor:
    """uint8, 1 where values < limit, else 0; a limit has the type of the values or is a plain number."""
    if values.device.type == "cpu":
        mask = np.less(values.numpy(), limit.numpy() if isinstance(limit, Tensor) else limit)
        return torch.from_numpy(mask.view(np.uint8))
    return (values < limit).view(torch.uint8)


def cut_rows(images: Tensor, start: Tensor, length: int) -> Tensor:
    """Cut a window out of each row; beyond the image its outermost pixels repeat.

    Args:
        images: [n, C, H, W] uint8.
        start: [n, H] int64 on the images' device, may be negative.
        length: pixels.

    Returns: [n, H, C, length], the channels of a row together.
    """
    width = images.shape[3]
    if images.device.type != "cpu":
        columns = (start[..., None] + torch.arange(length, device=images.device)).clamp_(0, width - 1)
        return images.gather(3, columns[:, None].expand(-1, images.shape[1], -1, -1)).transpose(1, 2)
    start = start.clamp(-length, width)  # further away there is nothing else
    low, high = (int(edge) for edge in start.aminmax()) if start.numel() else (0, 0)
    left, right = max(0, -low), max(0, high + length - width)
    rows = images.numpy().transpose(0, 2, 1, 3)
    wide = np.empty((*rows.shape[:3], left + width + right), dtype=np.uint8)
    wide[..., left : left + width] = rows
    wide[..., :left] = rows[..., :1]
    wide[..., left + width :] = rows[..., -1:]
    windows = sliding_window_view(wide, length, axis=3)  # [n, H, C, places, length]
    image, row = np.ogrid[: rows.shape[0], : rows.shape[1]]
    return torch.from_numpy(windows[image, row, :, (start + left).numpy()])


def luma(images: Tensor) -> Tensor:
    """Return the gray value of each pixel, ITU-R 601-2: 0.299 R + 0.587 G + 0.114 B in 16-bit fixed point, rounded.

    Whole numbers below 2^24, which float32 holds exactly. For other than three channels it is their mean, rounded.

    Shape: [n, C, H, W] in 0..255 -> [n, H, W] float32, whole numbers in 0..255.
    """
    if images.shape[1] != 3:
        return images.sum(1, dtype=torch.float32).div_(images.shape[1]).add_(0.5).floor_()
    red, green, blue = images.float().unbind(1)
    return torch.add(19595 * red, green, alpha=38470).add_(blue, alpha=7471).add_(32768).mul_(2**-16).floor_()


def per_image(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n] -> [n, 1, 1, 1]."""
    return values.to(dtype)[:, None, None, None]


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (images - base) as uint8: 0 is the base, 1 the images, more exaggerates.

    Args:
        base: broadcasts to the images, float32.
        images: [n, C, H, W] float32 in 0..255.
        factor: [n].
    """
    return clip_to_bytes((images - base).mul_(per_image(factor)).add_(base))


def invert(images: Tensor) -> Tensor:
    """255 - i."""
    return images ^ 255


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits, 0 to 8 of them; 0 leaves black."""
    return images & per_image(256 - 2 ** (8 - bits), torch.uint8)


def solarize(images: Tensor, threshold: Tensor | int) -> Tensor:
    """Invert values from the threshold on, 0 to 256; 256 changes nothing."""
    if isinstance(threshold, int):
        return images ^ (1 - below(images, threshold)).mul_(255)
    limit, all_bits = per_image(threshold.clamp(max=255), torch.uint8), per_image(255 * (threshold < 256), torch.uint8)
    return images ^ (1 - below(images, limit)).mul_(all_bits)


def solarize_add(images: Tensor, added: Tensor) -> Tensor:
    """Add 0 to 128 to values below 128."""
    return images + below(images, 128).mul_(per_image(added, torch.uint8))


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """factor i: 0 is black, 1 the image."""
    return clip_to_bytes(images.float().mul_(per_image(factor)))


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """m + factor (i - m), m being the image's mean luma: 0 is flat gray, 1 the image."""
    values = images.float()
    gray = luma(values).flatten(1)
    mean = (gray.sum(1, dtype=torch.float64).float() / gray.shape[1] + 0.5).floor()
    return blend(per_image(mean), values, factor)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with each pixel's gray value: 0 is gray, 1 the image."""
    values = images.float()
    return blend(luma(values)[:, None], values, factor)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a smoothed image: 0 is smooth, 1 the image. The outermost pixels stay.

    Smoothing is a 3 x 3 window with weight 5 in the center and 1 around it, over 13.
    """
    if min(images.shape[-2:]) < 3:
        return images
    values, short = images.float(), images.short()
    rows = short[..., :-2, :] + short[..., 1:-1, :] + short[..., 2:, :]
    window = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * short[..., 1:-1, 1:-1]
    smooth = values.clone()
    smooth[..., 1:-1, 1:-1] = window.float().div_(13).add_(0.5).floor_()
    return blend(smooth, values, factor)


def auto_contrast(images: Tensor) -> Tensor:
    """Stretch each channel so that its darkest value becomes 0 and its brightest 255; a flat channel stays."""
    pixels = images.flatten(2)
    low, high = pixels.amin(2)[..., None, None].float(), pixels.amax(2)[..., None, None].float()  # [n, C, 1, 1]
    scale = torch.where(high > low, 255 / (high - low), 1.0)
    start = torch.where(high > low, low, 0.0)
    # A whole value may come out a little below itself, hence 2^-10.
    return clip_to_bytes(images.float().sub_(start).mul_(scale).add_(2**-10))


def equalize(images: Tensor) -> Tensor:
    """Give each value of a channel about equally many pixels, by Pillow's rule in whole numbers.

        i -> (s // 2 + pixels below i) // s,   s = (pixels - pixels of the brightest value) // 255

    A channel with s = 0 stays as it is.
    """
    pixels = images.flatten(2).long()
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, pixels, torch.ones((), dtype=torch.int32, device=images.device).expand_as(pixels))
    darker = counts.cumsum(2, dtype=torch.int32) - counts
    brightest = counts.gather(2, pixels.amax(2, keepdim=True))  # [n, C, 1]
    step = (pixels.shape[2] - brightest) // 255
    equal = ((step // 2 + darker) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, equal, torch.arange(256, dtype=torch.int32, device=images.device)).to(torch.uint8)
    return table.gather(2, pixels).view_as(images)
