# SPDX-License-Identifier: Apache-2.0
"""How images enter a network: sizes, crop and normalization, the `images` section of a recipe."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import UserError
from ..keywords import check_fields
from .augment.crop import CenterCrop

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


@dataclass(frozen=True)
class ImageSettings:
    """How images are kept and shown to the network.

    Args:
        image_size: height and width of the network's input, pixels; null chooses by the data's typical size.
        store_size: height and width in the store of decoded images, pixels; null takes a quarter more than image_size,
            room for random crops, but not more than the images have.
        normalize: mean and standard deviation of the colors. imagenet, cifar10, cifar100, half (0.5 each), or dataset
            (computed from the training images).
        budget_gb: largest store, 10^9 bytes; sets that take more are streamed.
        stream: true decodes images in every epoch, false keeps them in a store; null streams what exceeds the budget.
        eval_crop: evaluation shrinks an image until it only just covers image_size / eval_crop and shows the center of
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
        if self.budget_gb <= 0:
            raise UserError(f"budget_gb must be positive, got {self.budget_gb}")
        if not 0 < self.eval_crop <= 1:
            raise UserError(f"eval_crop must lie in (0, 1], got {self.eval_crop}")

    @property
    def crop(self) -> CenterCrop:
        """The part of an image that evaluation shows."""
        return CenterCrop(self.eval_crop, self.eval_interpolation)


def choose_image_size(sizes: np.ndarray) -> int:
    """The network's input for images of these sizes [n, 2].

    Where all fit into 64 x 64: their own size down to a multiple of 4, so that patches tile it, at least 8 (of several
    sizes, the median short side to the nearest such).
    Else the largest of 64, 96, 128, 160 and 224 that the median short side reaches, in pixels.
    """
    typical = float(np.median(sizes.min(axis=1)))
    if sizes.max() > _SMALL:
        return max([size for size in _USUAL if size <= typical], default=_USUAL[0])
    if (sizes == sizes[0, 0]).all():
        return max(int(sizes[0, 0]) // 4 * 4, 8)
    return max(round(typical / 4) * 4, 8)


def choose_store_size(image_size: int, sizes: np.ndarray) -> int:
    """The store's size for images of these sizes [n, 2]: theirs where all are as the network wants them, else 5/4 of
    `image_size` up to a multiple of 16, but no more than the longest side of any."""
    if (sizes == image_size).all():
        return image_size
    return min(math.ceil(image_size * 1.25 / 16) * 16, int(sizes.max()))
