# SPDX-License-Identifier: Apache-2.0
"""Crops: which part of each image a network is fed. Boxes are drawn in the original's pixels, whatever the cached size.

The cache resizes every image to a square. A box that is a share of the image's height and width names the same part
of both, so cropping the square equals cropping the original file, and resizing restores the aspect ratio.
"""

import copy
import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UserError
from .resample import ImageBatch, resample, stacked
from .transform import between, check_range, check_share, randint, send

Interpolation = Literal["bilinear", "bicubic"]
MixedInterpolation = Literal["bilinear", "bicubic", "random"]
_T = TypeVar("_T", Interpolation, MixedInterpolation)
TRIES = 10


class Crop(ABC):
    """From cached images to the student's image size."""

    columns: ClassVar[int]  # uniform numbers that it reads for each image

    @abstractmethod
    def __call__(self, images: ImageBatch, sizes: Tensor, u: Tensor, image_size: tuple[int, int]) -> Tensor:
        """Crop each image by its own row.

        Args:
            images: [B, C, S, S] uint8, or one by one.
            sizes: [B, 2] height and width of the originals, pixels, on the CPU.
            u: [B, columns] float64 in [0, 1), on the CPU.
            image_size: H, W of the result, pixels.
        """


class BoxCrop(Crop):
    """A box of the image, resized."""

    interpolation: MixedInterpolation = "bicubic"

    @abstractmethod
    def boxes(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
        """Top, left, height, width as shares of the original's height and width, [B, 4] float64."""

    def bicubic(self, u: Tensor) -> Tensor:
        """[B] bool, True for images resized with the bicubic filter, False with the bilinear one."""
        return torch.full((len(u),), self.interpolation == "bicubic")

    def __call__(self, images: ImageBatch, sizes: Tensor, u: Tensor, image_size: tuple[int, int]) -> Tensor:
        return resample(images, self.boxes(u, sizes, image_size), image_size, self.bicubic(u))


class ResizedCrop(BoxCrop):
    """A box of random area and shape, resized to the image size (torchvision's RandomResizedCrop).

    Ten times at most: area ~ U(scale) of the image, width / height ~ exp(U(log ratio)); the first box that fits is
    placed uniformly. Where none fits: the largest centered box whose shape lies within `ratio`.

    Args:
        scale: smallest and largest area of the box, as shares of the image's.
        ratio: smallest and largest width / height of the box.
        interpolation: `random` picks bilinear or bicubic for each image, as timm does.
    """

    columns = 2 * TRIES + 3

    def __init__(
        self,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: MixedInterpolation = "bicubic",
    ) -> None:
        check_range("resized_crop", "scale", scale, 1)
        check_range("resized_crop", "ratio", ratio)
        self.scale, self.ratio, self.interpolation = scale, ratio, checked(interpolation)

    def boxes(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
        tries, (top_u, left_u) = torch.unflatten(u[:, : 2 * TRIES], 1, (TRIES, 2)), u[:, -3:-1].unbind(1)
        height, width = sizes.double().unbind(1)  # [B]
        area = between(tries[..., 0], *self.scale) * (height * width)[:, None]  # [B, TRIES]
        ratio = between(tries[..., 1], *map(math.log, self.ratio)).exp()
        h, w = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
        fits = (h > 0) & (h <= height[:, None]) & (w > 0) & (w <= width[:, None])
        first = fits.int().argmax(1, keepdim=True)
        h, w = h.gather(1, first)[:, 0], w.gather(1, first)[:, 0]
        top, left = randint(top_u, height - h + 1), randint(left_u, width - w + 1)

        max_h = height.minimum((width / self.ratio[0]).round()).clamp(min=1)
        max_w = width.minimum((height * self.ratio[1]).round()).clamp(min=1)
        center = torch.stack([((height - max_h) / 2).floor(), ((width - max_w) / 2).floor(), max_h, max_w], 1)
        box = torch.where(fits.any(1, keepdim=True), torch.stack([top, left, h, w], 1), center)
        return box / torch.stack([height, width, height, width], 1)

    def bicubic(self, u: Tensor) -> Tensor:
        if self.interpolation == "random":
            return u[:, -1] < 0.5
        return super().bicubic(u)


class CenterCrop(BoxCrop):
    """The center, for evaluation: shrink until the image only just covers image_size / crop_pct, crop the middle.

    With a crop_pct below 1 the shrunk image's size and the margins are rounded to whole pixels, as torchvision's Resize
    and CenterCrop do, which published numbers were measured with; with 1 the largest part is centered exactly.

    Args:
        crop_pct: share of the covered side that remains, in (0, 1]; timm's word.
        interpolation: filter of the resize.
    """

    columns = 0

    def __init__(self, crop_pct: float = 1.0, interpolation: Interpolation = "bicubic") -> None:
        if crop_pct == 0:
            raise UserError("center_crop.crop_pct must be above 0")
        check_share("center_crop", "crop_pct", crop_pct)
        self.crop_pct, self.interpolation = crop_pct, checked(interpolation)

    def boxes(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
        size, target = sizes.double(), torch.tensor(image_size, dtype=torch.float64)
        covered = (target / self.crop_pct).floor()  # timm rounds this size down
        ratio = (size / covered).amin(1, keepdim=True)
        if self.crop_pct < 1:
            shrunk = (size / ratio + 1e-9).floor()  # [B, 2]
            margin = ((shrunk - target) / 2).round()
            return torch.cat([margin, target.expand_as(margin)], 1) / shrunk.repeat(1, 2)
        box = target * ratio / size  # [B, 2]
        return torch.cat([(1 - box) / 2, box], 1)


class Resize(BoxCrop):
    """The whole image, whatever its shape, resized with the bicubic filter."""

    columns = 0

    def boxes(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
        return torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64).expand(len(u), 4)


class PaddedCrop(Crop):
    """Zeros around the cached image, then a window of its old size at a random place, then the center crop of it.

    Args:
        padding: zeros on every side, pixels of the cached image.
        interpolation: filter of the resize.
    """

    columns = 2

    def __init__(self, padding: int = 4, interpolation: Interpolation = "bilinear") -> None:
        if padding < 0:
            raise UserError(f"padded_crop.padding must not be negative, got {padding} pixels")
        self.padding, self.interpolation = padding, checked(interpolation)

    def __call__(self, images: ImageBatch, sizes: Tensor, u: Tensor, image_size: tuple[int, int]) -> Tensor:
        images, padding = stacked(images), self.padding
        side = images.shape[-1]
        padded = F.pad(images, (padding, padding, padding, padding))
        windows = padded.unfold(2, side, 1).unfold(3, side, 1)  # [B, C, 2p + 1, 2p + 1, S, S], a view
        top, left = send(randint(u, 2 * padding + 1).long().mT.contiguous(), images.device)
        window = windows[torch.arange(len(images), device=images.device), :, top, left]  # [B, C, S, S]
        center = CenterCrop().boxes(u, sizes, image_size)
        return resample(window, center, image_size, torch.full((len(u),), self.interpolation == "bicubic"))


class CanvasCrop(Crop):
    """A box of the image, resized to the upper left corner of a canvas, the rest of which is padding.

    Images keep their shape, and boxes and masks can follow (follow.py), which is why detectors and segmenters use
    these crops. The padding has the color that normalization makes zero.
    """

    columns: ClassVar[int]
    interpolation: Interpolation
    fill: tuple[int, ...] = (0, 0, 0)

    @abstractmethod
    def placement(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Choose which part of each image goes where.

        Returns: top, left, height, width as shares of the original's height and width, [B, 4] float64; height and
            width of the part on the canvas, pixels, [B, 2] int64.
        """

    def filled(self, mean: tuple[float, ...]) -> "CanvasCrop":
        """Return a copy with padding of that color, channels in [0, 1]."""
        same = copy.copy(self)
        same.fill = tuple(round(255 * value) for value in mean)
        return same

    def __call__(self, images: ImageBatch, sizes: Tensor, u: Tensor, image_size: tuple[int, int]) -> Tensor:
        boxes, extents = self.placement(u, sizes, image_size)
        bicubic = torch.full((1,), self.interpolation == "bicubic")
        canvas = send(torch.tensor(self.fill, dtype=torch.uint8), images[0].device)[:, None, None]
        out = canvas.expand(len(images), -1, *image_size).clone()
        for number, (height, width) in enumerate(extents.tolist()):
            row = slice(number, number + 1)
            out[number, :, :height, :width] = resample(images[row], boxes[row], (height, width), bicubic)[0]
        return out


class ScaleJitter(CanvasCrop):
    """Large-scale jitter: scale the image by a random factor, then cut or pad it to the canvas.

        factor ~ U(scale) * min(H / h, W / w)       for an image of h x w and a canvas of H x W
        what is larger than the canvas is cut at a uniform place

    Paper: Ghiasi et al., "Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation", CVPR 2021,
    arXiv:2012.07177. Sizes are rounded down, as in torchvision's ScaleJitter.

    Args:
        scale: smallest and largest size of the image, in multiples of the largest that fits the canvas whole.
        interpolation: filter of the resize.
    """

    columns = 3

    def __init__(self, scale: tuple[float, float] = (0.1, 2.0), interpolation: Interpolation = "bilinear") -> None:
        check_range("scale_jitter", "scale", scale)
        self.scale, self.interpolation = scale, checked(interpolation)

    def placement(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return _scaled(sizes, image_size, between(u[:, :1], *self.scale), u[:, 1:])


class Letterbox(CanvasCrop):
    """The whole image, as large as the canvas allows, nothing random: how detectors and segmenters are evaluated.

    Args:
        interpolation: filter of the resize.
    """

    columns = 0

    def __init__(self, interpolation: Interpolation = "bilinear") -> None:
        self.interpolation = checked(interpolation)

    def placement(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        factor, place = torch.ones(len(sizes), 1, dtype=torch.float64), torch.zeros(len(sizes), 2, dtype=torch.float64)
        return _scaled(sizes, image_size, factor, place)


def _scaled(sizes: Tensor, image_size: tuple[int, int], factor: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Placement of images scaled by `factor` [B, 1]; what is too large is cut at `place` [B, 2] in [0, 1)."""
    size, canvas = sizes.double(), torch.tensor(image_size, dtype=torch.float64)
    scaled = (size * ((canvas / size).amin(1, keepdim=True) * factor) + 1e-9).floor().clamp(min=1)  # [B, 2]
    extent = scaled.minimum(canvas)
    start = randint(place, scaled - extent + 1)
    return torch.cat([start, extent], 1) / scaled.repeat(1, 2), extent.long()


def checked(interpolation: _T) -> _T:
    """Return the filter. Raises: UserError for an unknown one."""
    if interpolation not in ("bilinear", "bicubic", "random"):
        raise UserError(f"interpolation must be bilinear, bicubic or random, got {interpolation!r}")
    return interpolation
