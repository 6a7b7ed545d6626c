# SPDX-License-Identifier: Apache-2.0
"""Which part of each image is looked at. Boxes are drawn in the original's pixels, whatever size the store keeps.

A store squeezes every image to one square. A box that is a share of the image's height and width names the same part
of both, so cropping the square gives what cropping the original file would, and the squeeze is undone on the way.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UserError
from ..resample import ImageBatch, resample, stacked
from ..transfer import send
from .transform import between, check_range, check_share, randint

Interpolation = Literal["bilinear", "bicubic", "random"]
TRIES = 10


class Crop(ABC):
    """From stored images to the student's image size."""

    columns: ClassVar[int]
    """Uniform numbers that it reads for each image."""

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

    @abstractmethod
    def boxes(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
        """Top, left, height, width as shares of the original's height and width, [B, 4] float64."""

    @abstractmethod
    def bicubic(self, u: Tensor) -> Tensor:
        """Which images are resized with the bicubic filter, [B] bool; the others with the bilinear one."""

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
        interpolation: Interpolation = "bicubic",
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

        most_h = height.minimum((width / self.ratio[0]).round()).clamp(min=1)
        most_w = width.minimum((height * self.ratio[1]).round()).clamp(min=1)
        middle = torch.stack([((height - most_h) / 2).floor(), ((width - most_w) / 2).floor(), most_h, most_w], 1)
        box = torch.where(fits.any(1, keepdim=True), torch.stack([top, left, h, w], 1), middle)
        return box / torch.stack([height, width, height, width], 1)

    def bicubic(self, u: Tensor) -> Tensor:
        if self.interpolation == "random":
            return u[:, -1] < 0.5
        return torch.full((len(u),), self.interpolation == "bicubic")


class CenterCrop(BoxCrop):
    """The center, for evaluation: shrink until the image only just covers image_size / crop_pct, keep the middle.

    Args:
        crop_pct: share of the covered side that is kept, in (0, 1]; timm's word.
        interpolation: filter of the resize.
    """

    columns = 0

    def __init__(self, crop_pct: float = 1.0, interpolation: Literal["bilinear", "bicubic"] = "bicubic") -> None:
        if crop_pct == 0:
            raise UserError("center_crop.crop_pct must be above 0")
        check_share("center_crop", "crop_pct", crop_pct)
        self.crop_pct, self.interpolation = crop_pct, checked(interpolation)

    def boxes(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
        size, target = sizes.double(), torch.tensor(image_size, dtype=torch.float64)
        covered = (target / self.crop_pct).floor()  # timm rounds this size down
        box = target * (size / covered).amin(1, keepdim=True) / size  # [B, 2]
        return torch.cat([(1 - box) / 2, box], 1)

    def bicubic(self, u: Tensor) -> Tensor:
        return torch.full((len(u),), self.interpolation == "bicubic")


class Squeeze(BoxCrop):
    """The whole image, whatever its shape, resized."""

    columns = 0

    def boxes(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
        return torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64).expand(len(u), 4)

    def bicubic(self, u: Tensor) -> Tensor:
        return torch.ones(len(u), dtype=torch.bool)


class PaddedCrop(Crop):
    """Zeros around the stored image, then a window of its old size at random, of which the largest centered part of the
    input's shape is seen, as in evaluation; then a resize if sizes differ.

    Args:
        padding: zeros on every side, stored pixels.
        interpolation: filter of the resize.
    """

    columns = 2

    def __init__(self, padding: int = 4, interpolation: Literal["bilinear", "bicubic"] = "bilinear") -> None:
        if padding < 0:
            raise UserError(f"padded_crop.padding must not be negative, got {padding} pixels")
        self.padding, self.interpolation = padding, checked(interpolation)

    def __call__(self, images: ImageBatch, sizes: Tensor, u: Tensor, image_size: tuple[int, int]) -> Tensor:
        images, padding = stacked(images), self.padding
        side = images.shape[-1]
        padded = F.pad(images, (padding, padding, padding, padding))
        windows = padded.unfold(2, side, 1).unfold(3, side, 1)  # [B, C, 2p + 1, 2p + 1, S, S], a view
        top, left = send(randint(u, 2 * padding + 1).long().mT.contiguous(), images.device)
        cut = windows[torch.arange(len(images), device=images.device), :, top, left]  # [B, C, S, S]
        middle = CenterCrop().boxes(u, sizes, image_size)
        return resample(cut, middle, image_size, torch.full((len(u),), self.interpolation == "bicubic"))


def checked(interpolation: Interpolation) -> Interpolation:
    """Raise UserError for an unknown filter."""
    if interpolation not in ("bilinear", "bicubic", "random"):
        raise UserError(f"interpolation must be bilinear, bicubic or random, got {interpolation!r}")
    return interpolation
