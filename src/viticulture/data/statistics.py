# SPDX-License-Identifier: Apache-2.0
"""Statistics of a data set's pixels: sizes, mean and standard deviation."""

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..parallel import in_parallel
from .image_settings import Channels
from .images.decode import Unreadable
from .sources.source import Source
from .subsets import evenly
from .transforms.resample import resize_to_square

_SAMPLE, _STREAM_SAMPLE = 512, 2048


def sample_sizes(source: Source) -> np.ndarray:
    """Height and width of up to 512 images, evenly spaced over the source; [n, 2], pixels.

    Raises: UserError if none of them can be read.
    """

    def size(i: int) -> tuple[int, int] | str:
        try:
            return source.size_of(i)
        except Unreadable as error:
            return str(error)

    readings = list(in_parallel(size, evenly(np.arange(len(source)), _SAMPLE).tolist()))
    sizes = [pair for pair in readings if not isinstance(pair, str)]
    if not sizes:
        raise UserError(f"none of {len(readings)} images of {source.name} can be read, such as {readings[0]}")
    return np.array(sizes)


def cached_statistics(pixels: Tensor, rows: Tensor) -> tuple[Channels, Channels]:
    """Compute mean and standard deviation of each channel over cached images, in [0, 1]; images weigh the same."""
    total, squares = torch.zeros(2, pixels.shape[1], dtype=torch.float64).unbind()
    for part in torch.split(rows, 64):
        values = pixels[part].contiguous().float().flatten(2)  # [64, C, S * S]
        total += values.sum(dim=2).double().sum(dim=0)
        squares += torch.linalg.vector_norm(values, dim=2).double().square().sum(dim=0)
    count = len(rows) * pixels[0, 0].numel()
    return _mean_and_std(total / count, squares / count)


def streamed_statistics(source: Source, rows: np.ndarray, size: int) -> tuple[Channels, Channels]:
    """The same from up to 2,048 images, evenly spaced, each resized to a square of `size`."""

    def moments(i: int) -> np.ndarray:
        values = resize_to_square(source.picture(i, shrink=size).pixels, size).astype(np.float64)
        return np.stack([values.mean(axis=(0, 1)), np.square(values).mean(axis=(0, 1))])

    mean, squares = torch.from_numpy(np.mean(list(in_parallel(moments, evenly(rows, _STREAM_SAMPLE).tolist())), axis=0))
    return _mean_and_std(mean, squares)


def _mean_and_std(mean: Tensor, squares: Tensor) -> tuple[Channels, Channels]:
    """Compute mean and deviation from moments of 0..255; the deviation of a constant channel is 1."""
    deviation = (squares - mean.square()).clamp(min=0).sqrt()
    deviation = torch.where(deviation > 0, deviation, torch.tensor(255.0, dtype=deviation.dtype))
    return tuple((mean / 255).tolist()), tuple((deviation / 255).tolist())
