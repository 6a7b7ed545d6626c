# SPDX-License-Identifier: Apache-2.0
"""In which size images are kept and shown to the network, and how their colours are normalised."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError
from ..keywords import check_fields
from .augment.crop import CentreCrop
from .decode import Unreadable
from .sources import Source
from .store import in_parallel

Channels = tuple[float, float, float]

NORMALIZE: dict[str, tuple[Channels, Channels]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2023, 0.1994, 0.2010)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation of channels in [0, 1]. Those of CIFAR are the ones of "Bootstrapping ViTs", whose code
uses the standard deviation of CIFAR-10 for both; `dataset` computes the true ones."""

MAX_SIDE = 4096
"""Largest input and store, pixels: an image of it takes 50 MB. Larger numbers are typing errors that would fill memory
one image at a time."""

_USUAL = (64, 96, 128, 160, 224)
_SMALL = 64
_SAMPLE = 512
_STREAM_SAMPLE = 2048


@dataclass(frozen=True)
class Pictures:
    """How images are kept and shown to the network.

    Args:
        image_size: height and width of the network's input, pixels; null chooses by the data's typical size.
        store_size: height and width in the store of decoded images, pixels; null takes a quarter more than image_size,
            room for random crops, but not more than the images have.
        normalize: mean and standard deviation of the colours. imagenet, cifar10, cifar100, half (0.5 each), or dataset
            (computed from the training images).
        budget_gb: largest store, 10^9 bytes; sets that take more are streamed.
        stream: true decodes images in every epoch, false keeps them in a store; null streams what exceeds the budget.
        eval_crop: evaluation shrinks an image until it only just covers image_size / eval_crop and shows the centre of
            image_size; with 1 that is the largest square.
        eval_interpolation: filter of that resize.
    """

    image_size: int | None = None
    store_size: int | None = None
    normalize: Literal["imagenet", "cifar10", "cifar100", "half", "dataset"] = "imagenet"
    budget_gb: float = 16.0
    stream: bool | None = None
    eval_crop: float = 1.0
    eval_interpolation: Literal["bilinear", "bicubic"] = "bicubic"

    def __post_init__(self) -> None:
        check_fields("images", self)
        for name in ("image_size", "store_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1 pixel, got {value}")
            if value is not None and value > MAX_SIDE:
                memory = f"{3 * value**2 / 1e9:,.2f} GB"
                raise UserError(
                    f"{name} must not exceed {MAX_SIDE} pixels, got {value}: each image would take {memory}"
                )
        if not 0 < self.budget_gb < math.inf:
            raise UserError(f"budget_gb must be positive and finite, got {self.budget_gb}")
        if not 0 < self.eval_crop <= 1:
            raise UserError(f"eval_crop must lie in (0, 1], got {self.eval_crop}")

    @property
    def crop(self) -> CentreCrop:
        """The part of an image that evaluation shows."""
        return CentreCrop(self.eval_crop, self.eval_interpolation)


def sample_sizes(source: Source) -> np.ndarray:
    """Height and width of up to 512 images, evenly spaced over the source; [n, 2], pixels.

    Raises: UserError if none of them can be read.
    """
    rows = np.unique(np.linspace(0, len(source) - 1, min(len(source), _SAMPLE)).astype(np.int64))

    def size(i: int) -> tuple[int, int] | str:
        try:
            return source.measure(i)
        except Unreadable as error:
            return str(error)

    found = list(in_parallel(size, rows.tolist()))
    sizes = [pair for pair in found if not isinstance(pair, str)]
    if not sizes:
        raise UserError(f"none of {len(found)} images of {source.name} can be read, such as {found[0]}")
    return np.array(sizes)


def choose_image_size(sizes: np.ndarray) -> int:
    """The network's input for images of these sizes [n, 2].

    Where all fit into 64 x 64: their own size, at least 8 (of several sizes, the median short side to a multiple of 4).
    Else the largest of 64, 96, 128, 160 and 224 that the median short side reaches, in pixels.
    """
    typical = float(np.median(sizes.min(axis=1)))
    if sizes.max() > _SMALL:
        return max([size for size in _USUAL if size <= typical], default=_USUAL[0])
    if (sizes == sizes[0, 0]).all():
        return max(int(sizes[0, 0]), 8)
    return max(round(typical / 4) * 4, 8)


def choose_store_size(image_size: int, sizes: np.ndarray) -> int:
    """The store's size for images of these sizes [n, 2]: theirs where all are as the network wants them, else 5/4 of
    `image_size` up to a multiple of 16, but no more than the longest side of any."""
    if (sizes == image_size).all():
        return image_size
    return min(math.ceil(image_size * 1.25 / 16) * 16, int(sizes.max()))


def stored_statistics(pixels: Tensor, rows: Tensor) -> tuple[Channels, Channels]:
    """Mean and standard deviation of each channel over stored images, in [0, 1]; every image weighs the same.

    Args:
        pixels: [M, 3, S, S] uint8.
        rows: [N] int64, the images that count.
    """
    total, squares = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for part in torch.split(rows, 64):
        values = pixels[part].float().flatten(2)  # [64, 3, S * S]
        total += values.sum(dim=2).double().sum(dim=0)
        squares += torch.linalg.vector_norm(values, dim=2).double().square().sum(dim=0)
    count = len(rows) * pixels[0, 0].numel()
    return _channels(total / count, squares / count)


def streamed_statistics(source: Source, rows: np.ndarray, size: int) -> tuple[Channels, Channels]:
    """The same from up to 2,048 images, evenly spaced, each squeezed to `size` pixels."""
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _STREAM_SAMPLE)).astype(np.int64))]

    def moments(i: int) -> np.ndarray:
        image = source.picture(i, shrink=size).image.resize((size, size), Image.Resampling.BICUBIC)
        values = np.asarray(image, dtype=np.float64)
        return np.stack([values.mean(axis=(0, 1)), np.square(values).mean(axis=(0, 1))])

    mean, squares = torch.from_numpy(np.mean(list(in_parallel(moments, chosen.tolist())), axis=0))
    return _channels(mean, squares)


def _channels(mean: Tensor, squares: Tensor) -> tuple[Channels, Channels]:
    """From moments of 0..255; a channel that never varies is divided by 1."""
    deviation = (squares - mean.square()).clamp(min=0).sqrt()
    deviation = torch.where(deviation > 0, deviation, torch.tensor(255.0, dtype=deviation.dtype))
    first, second = (mean / 255).tolist(), (deviation / 255).tolist()
    return (first[0], first[1], first[2]), (second[0], second[1], second[2])
