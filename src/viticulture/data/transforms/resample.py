# SPDX-License-Identifier: Apache-2.0
"""Cut a box out of each image and resize it, antialiased as in Pillow: one box and one filter per image.

A separable filter of support s (1 bilinear, 2 bicubic with a = -1/2), stretched by the reduction r = max(1, box / out):

    out[o] = sum_i w_oi in[i],    w_oi ~ f((i + 1/2 - (o + 1/2) box / out) / r),    sum_i w_oi = 1

Columns first, then rows, rounded to whole numbers after each, as Pillow does. Pixels outside the box never count,
as in torchvision: cut first, then resize.
Boxes end on whole pixels of the cached image: an edge moves by half a cached pixel at most.

Two ways, equal up to 1 of 255. A CPU takes image by image through torch's uint8 kernel, which is five times faster
there than matrices; an accelerator takes the batch as two matrix products, where 2 B small kernels would starve it.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .transform import send

STRIP = 64  # times the larger of the shorter side and the new size; a longer side is averaged first

ImageBatch = Tensor | Sequence[Tensor]
"""Images as one tensor [B, C, S, S], or one by one [C, S, S]: views into the cache on a CPU, which saves a copy."""


def resample(images: ImageBatch, boxes: Tensor, size: tuple[int, int], bicubic: Tensor) -> Tensor:
    """Cut and resize.

    Args:
        images: uint8; on a CPU, channels-last memory, as in the cache, is faster.
        boxes: [B, 4] top, left, height, width as shares of the image's height and width, on the CPU.
        size: H, W of the result, pixels.
        bicubic: [B] bool, on the CPU; bilinear where False.

    Returns: [B, C, H, W] uint8, in new memory, for later transforms to overwrite.
    """
    height, width = images[0].shape[-2:]
    edges = on_pixels(boxes, height, width)
    if (height, width) == size and bool((edges == torch.tensor([0, 0, *size])).all()):
        return images.clone() if isinstance(images, Tensor) else stacked(images)
    if images[0].device.type == "cpu":
        return one_by_one(images, edges, size, bicubic)
    return by_matrices(stacked(images), edges, size, bicubic)


def resize_to_square(pixels: np.ndarray, size: int) -> np.ndarray:
    """Resize an image as it is cached, [H, W, C] -> [S, S, C] uint8, with the bicubic filter, whatever its shape.

    Within 1 of 255 of Pillow's resize, which takes four times as long. The longer side of strips is averaged first, as
    the filter's memory grows with it.
    """
    if pixels.shape[:2] == (size, size):
        return pixels
    height, width = pixels.shape[:2]
    for axis, maximum in enumerate((STRIP * max(size, width), STRIP * max(size, height))):
        if pixels.shape[axis] > maximum:
            pixels = _averaged(pixels, axis, maximum)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(image, size=(size, size), mode="bicubic", antialias=True)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


def _averaged(pixels: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Average neighboring rows (axis 0) or columns (1) of an image [H, W, C], about as many into each of `count`."""
    starts = np.arange(1, count) * pixels.shape[axis] // count
    means = [part.mean(axis) for part in np.split(pixels, starts, axis)]
    return np.rint(np.stack(means, axis)).astype(np.uint8)


def stacked(images: ImageBatch) -> Tensor:
    """Return the images as one tensor, channels first in memory where they came one by one."""
    if isinstance(images, Tensor):
        return images
    if images[0].device.type == "cpu" and images[0].stride(0) == 1:  # of the cache: joined as they lie, then permuted
        joined = torch.stack([image.permute(1, 2, 0) for image in images])
        return torch.from_numpy(np.ascontiguousarray(joined.numpy().transpose(0, 3, 1, 2)))
    return torch.stack(list(images))


def on_pixels(boxes: Tensor, height: int, width: int) -> Tensor:
    """Shares of an image's sides as whole pixels, at least one each way: [B, 4] int64 top, left, height, width."""
    sides = torch.tensor([height, width])
    start = (boxes[:, :2] * sides).round()
    stop = ((boxes[:, :2] + boxes[:, 2:]) * sides).round()
    extent = (stop - start).clamp(min=1).minimum(sides)
    return torch.cat([start.minimum(sides - extent), extent], 1).long()


def one_by_one(images: ImageBatch, edges: Tensor, size: tuple[int, int], bicubic: Tensor) -> Tensor:
    """Resample image by image with torch's antialiased uint8 kernel."""
    out = torch.empty(len(images), images[0].shape[0], *size, dtype=torch.uint8)
    for image, (top, left, height, width), cubic, target in zip(
        images, edges.tolist(), bicubic.tolist(), out, strict=True
    ):
        part = image[None, :, top : top + height, left : left + width]
        part = part.contiguous(memory_format=torch.channels_last)  # the kernel's fast layout
        resized = F.interpolate(part, size=size, mode="bicubic" if cubic else "bilinear", antialias=True)
        np.copyto(target.numpy(), resized[0].numpy())  # half of the time that torch takes from layout to layout
    return out


def by_matrices(images: Tensor, edges: Tensor, size: tuple[int, int], bicubic: Tensor) -> Tensor:
    """Resample the whole batch as two matrix products a channel."""
    top, left, height, width, cubic = send(torch.cat([edges, bicubic[:, None]], 1), images.device).unbind(1)
    columns = weights(left, width, images.shape[-1], size[1], cubic)  # [B, 1, W, S]
    rows = weights(top, height, images.shape[-2], size[0], cubic)  # [B, 1, H, S]
    wide = quantize(images.float() @ columns.mT)  # [B, C, S, W]
    return quantize(rows @ wide).to(torch.uint8)


def quantize(values: Tensor) -> Tensor:
    """Round to whole numbers in 0..255, halves upwards."""
    return values.add_(0.5).floor_().clamp_(0, 255)


def weights(start: Tensor, extent: Tensor, side: int, out: int, cubic: Tensor) -> Tensor:
    """The filter of every output pixel as a matrix over the image's pixels, [B, 1, out, side]; rows sum to 1."""
    start, extent, cubic = (values[:, None, None, None] for values in (start, extent, cubic))
    scale = extent / out
    pixel = torch.arange(side, device=start.device) - start  # 0 is the box's first
    center = (torch.arange(out, device=start.device)[:, None] + 0.5) * scale
    x = ((pixel + 0.5 - center) / scale.clamp(min=1)).abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2  # Keys 1981, a = -1/2
    keys = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    values = torch.where(cubic > 0, keys, (1 - x).clamp(min=0)) * ((pixel >= 0) & (pixel < extent))
    return values / values.sum(-1, keepdim=True)
