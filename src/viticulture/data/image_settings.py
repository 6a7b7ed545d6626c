# SPDX-License-Identifier: Apache-2.0
"""Sizes, crop, channels and normalization of images, the `images` section of a recipe."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..errors import UserError, counted
from ..keywords import check_fields
from .images.fit import Fit
from .images.format import PixelFormat, Ranges
from .transforms.crop import CenterCrop

Channels = tuple[float, ...]  # a number for each channel

NORMALIZE: dict[str, tuple[Channels, Channels]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2023, 0.1994, 0.2010)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation of channels in [0, 1]. Those of CIFAR are the ones of "Bootstrapping ViTs", whose code
uses the standard deviation of CIFAR-10 for both; `dataset` computes the true ones."""

MAX_CHANNELS = 1024  # hyperspectral cameras have hundreds

MAX_SIDE = 4096
"""Of input and cache, pixels: one image takes 50 MB. Larger numbers are typing errors that would fill memory."""

MAX_MARGIN = 8.0  # of the cache over the input; a larger one is a size in pixels by mistake

Fitting = Literal["crop", "pad", "stretch"]

CROP_MODES: dict[Fitting, str] = {"crop": "center", "pad": "border", "stretch": "squash"}
"""`images.fit` -> timm's name of it in a model's config."""

_USUAL = (64, 96, 128, 160, 224)

_SMALL = 64


@dataclass(frozen=True)
class ImageSettings:
    """Size and format of images, in the cache and as the network's input.

    Args:
        image_size: height and width of the network's input, pixels; null chooses by the data's typical size. Two
            numbers, [height, width], make a non-square input, for methods supervised, multilabel and
            regression without guides and students that take one.
        cache_size: height and width in the cache of decoded images, pixels; null takes cache_margin times image_size,
            but not more than the images have.
        cache_margin: room for random crops: a crop of 1 / cache_margin^2 of an image still has image_size pixels a
            side. 1.25 suits crops of two fifths and more, 2.25 crops of a twelfth and more, for a cache 3.2 times as
            large.
        teacher_size: height and width of the images that guides' teachers read, pixels: the student's crop, with the
            same changes, as sharp as this size allows; the cache has room for it. null: teachers read the student's
            images, enlarged.
        normalize: mean and standard deviation of the colors. imagenet, cifar10, cifar100, half (0.5 each), dataset
            (computed from the training images), or numbers in [0, 1], [[mean of every channel], [deviation of every
            channel]], which a public network brings. Of other than three channels: half, dataset, or numbers.
        max_cache_gb: maximum size of the cache, 10^9 bytes; larger data sets are streamed.
        stream: true decodes images in every epoch, false caches them; null streams what exceeds max_cache_gb.
        eval_crop: evaluation shrinks an image until it only just covers image_size / eval_crop and crops the center of
            image_size, both rounded to whole pixels as torchvision's Resize and CenterCrop do; with 1 that is the
            largest part of the input's shape, exactly centered.
        eval_interpolation: filter of that resize.
        eval_views: test-time augmentation of a trained classifier, the mean of probabilities over views. one: the image
            as evaluation crops it; mirrored: and its mirror image; middle: and its middle, a tenth cut off at every
            edge; four: both, each also mirrored; six: and with a fifth cut off, also mirrored; best: the most accurate
            of these on validation images after training (of several labels, by mAP), one where there are none. Two,
            four or six views take as many times as long. Teachers, and measurements while training, use one.
        fit: how images get the shape of the network's input. crop: training and evaluation crop parts of this shape;
            pad: images stay whole, with the normalization's mean color around them (where that is computed, ImageNet's,
            and of other than three channels middle gray); stretch: images stay whole, and their sides are scaled apart.
        channels: of an image. 3 makes color of gray, 1 makes gray of color, 4 adds a picture's opacity; any other
            number is that of the files (.npy [H, W, C], TIFF of many bands) or arrays.
        range: values that become black and white, [low, high], or such a pair for every channel. Between them are 256
            levels: values closer together than (high - low) / 255 become equal. null takes the whole range of the
            values' type, of 16 bits 0 and 65535, of floats 0 and 1.
    """

    image_size: int | list[int] | None = None
    cache_size: int | None = None
    cache_margin: float = 1.25
    teacher_size: int | None = None
    normalize: Literal["imagenet", "cifar10", "cifar100", "half", "dataset"] | list[list[float]] = "imagenet"
    max_cache_gb: float = 16.0
    stream: bool | None = None
    eval_crop: float = 1.0
    eval_interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    eval_views: Literal["one", "mirrored", "middle", "four", "six", "best"] = "one"
    fit: Fitting = "crop"
    channels: int = 3
    range: list[float] | list[list[float]] | None = None

    def __post_init__(self) -> None:
        check_fields("images", self)
        if isinstance(self.image_size, list | tuple):
            pair = list(self.image_size)
            if len(pair) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in pair):
                raise UserError(f"image_size is a side or [height, width], pixels, got {pair}")
            object.__setattr__(self, "image_size", pair[0] if pair[0] == pair[1] else pair)
        sides = list(self.shape) if self.image_size is not None else []
        named = [*(("image_size", side) for side in sides), ("cache_size", self.cache_size)]
        for name, value in [*named, ("teacher_size", self.teacher_size)]:
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1 pixel, got {value}")
            if value is not None and value > MAX_SIDE:
                gb = f"{self.channels * value**2 / 1e9:,.2f} GB"
                raise UserError(f"{name} must not exceed {MAX_SIDE} pixels, got {value}: each image would take {gb}")
        if not 1 <= self.cache_margin <= MAX_MARGIN:
            raise UserError(f"images.cache_margin must lie in 1 to {MAX_MARGIN:g}, got {self.cache_margin}")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise UserError(f"images.channels must lie in 1 to {MAX_CHANNELS}, got {self.channels}")
        if not isinstance(self.normalize, str):
            as_listed = [len(values) for values in self.normalize] == [self.channels] * 2
            if not as_listed or min(self.normalize[1]) <= 0 or not all(0 <= mean <= 1 for mean in self.normalize[0]):
                raise UserError(
                    f"images.normalize has means in [0, 1] and positive deviations of "
                    f"{counted(self.channels, 'channel')}, [[0.5, ...], [0.5, ...]], got {self.normalize}"
                )
        elif self.channels != 3 and self.normalize not in ("half", "dataset"):
            raise UserError(
                f"images.normalize {self.normalize} is for three colors, and images.channels is {self.channels}: "
                "--images.normalize dataset"
            )
        self._check_range()
        if self.max_cache_gb <= 0:
            raise UserError(f"max_cache_gb must be positive, got {self.max_cache_gb}")
        if not 0 < self.eval_crop <= 1:
            raise UserError(f"eval_crop must lie in (0, 1], got {self.eval_crop}")
        if self.fit != "crop" and self.eval_crop < 1:
            raise UserError(
                f"images.fit {self.fit} keeps images whole, and images.eval_crop {self.eval_crop:g} crops them; leave "
                "one of them out"
            )

    def _check_range(self) -> None:
        pairs: list[Any] = self._pairs
        if not all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(isinstance(value, int | float) and not isinstance(value, bool) for value in pair)
            and pair[0] < pair[1]
            for pair in pairs
        ):
            raise UserError(f"images.range is [low, high], low below high, or a list of such pairs, got {self.range}")
        if len(pairs) not in (0, 1, self.channels) or self.range == []:
            raise UserError(
                f"images.range has one pair or one for each of the {self.channels} channels, got {len(pairs)}"
            )

    @property
    def _pairs(self) -> list[Any]:
        if not self.range:
            return []
        return list(self.range) if isinstance(self.range[0], list | tuple) else [self.range]

    @property
    def pixel_format(self) -> PixelFormat:
        """Channels and value range of decoded images."""
        pairs: Ranges = tuple((float(low), float(high)) for low, high in self._pairs)
        return PixelFormat(self.channels, pairs)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the network's input, pixels, once chosen."""
        assert self.image_size is not None, "chosen before a run"
        return shape_of(self.image_size)

    @property
    def longest_input(self) -> int:
        """Longest side of the student's and the teachers' input, pixels."""
        return max(*self.shape, self.teacher_size or 1)

    @property
    def crop(self) -> CenterCrop:
        """The crop in evaluation."""
        return CenterCrop(self.eval_crop, self.eval_interpolation)

    @property
    def without_statistics(self) -> "ImageSettings":
        """The same for a network whose DataSpec holds the statistics: none are computed."""
        usual: Literal["imagenet", "half"] = "imagenet" if self.channels == 3 else "half"
        return replace(self, normalize=usual) if self.normalize == "dataset" else self

    @property
    def fitting(self) -> Fit | None:
        """The fit of images that stay whole; None where they are cropped."""
        if self.fit == "crop":
            return None
        mean, _ = normalization(self.without_statistics.normalize, self.channels)
        return Fit(self.fit, tuple(round(255 * level) for level in mean), self.shape)


def normalization(named: str | Sequence[Sequence[float]], channels: int) -> tuple[Channels, Channels]:
    """Mean and standard deviation of `images.normalize`; of the names only `half` has any number of channels."""
    if not isinstance(named, str):
        return tuple(map(float, named[0])), tuple(map(float, named[1]))
    return ((0.5,) * channels, (0.5,) * channels) if named == "half" else NORMALIZE[named]


def shape_of(image_size: int | list[int]) -> tuple[int, int]:
    """Height and width, pixels, of a recipe's size."""
    height, width = image_size if isinstance(image_size, list) else (image_size, image_size)
    return height, width


def choose_image_size(sizes: np.ndarray) -> int:
    """Choose the network's input for images of these sizes [n, 2].

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


def usual_sizes(sizes: np.ndarray) -> list[int]:
    """Input sizes for images of these sizes [n, 2], up to that of `choose_image_size`; none where they are small."""
    return [] if sizes.max() <= _SMALL else [size for size in _USUAL if size <= choose_image_size(sizes)]


def choose_cache_size(image_size: int | list[int], sizes: np.ndarray, margin: float) -> int:
    """Choose the cache's size for images of these sizes [n, 2]: theirs where all equal the input's, else `margin` times
    the longer side of `image_size` up to a multiple of 16, but no more than the longest side of any."""
    longer = max(shape_of(image_size))
    if (sizes == longer).all():
        return longer
    return min(math.ceil(longer * margin / 16) * 16, int(sizes.max()))
