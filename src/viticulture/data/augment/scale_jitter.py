# SPDX-License-Identifier: Apache-2.0
"""Images that keep their shape: scaled, cut where they are too large, padded where they are too small.

Objects and masks can follow what is done here, which is why detectors and segmenters learn by it. Padding lies at the
right and at the bottom, in the color that normalization makes zero.
"""

import copy
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..resample import ImageBatch, resample
from ..transfer import send
from .crop import Crop, checked
from .transform import between, check_range, randint

Interpolation = Literal["bilinear", "bicubic"]


class Placed(Crop):
    """A box of the image, resized to a corner of the canvas, the rest of which is padding."""

    columns: ClassVar[int]
    interpolation: Interpolation
    fill: tuple[int, ...] = (0, 0, 0)

    @abstractmethod
    def placement(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Which part of each image goes where.

        Returns: top, left, height, width as shares of the original's height and width, [B, 4] float64; height and
            width of the part on the canvas, pixels, [B, 2] int64.
        """

    def filled(self, mean: tuple[float, ...]) -> "Placed":
        """The same with padding of that color, channels in [0, 1]."""
        same = copy.copy(self)
        same.fill = tuple(round(255 * value) for value in mean)
        return same

    def __call__(self, images: ImageBatch, sizes: Tensor, u: Tensor, image_size: tuple[int, int]) -> Tensor:
        boxes, extents = self.placement(u, sizes, image_size)
        bicubic = torch.full((1,), self.interpolation == "bicubic")
        device = images[0].device
        canvas = send(torch.tensor(self.fill, dtype=torch.uint8), device)[:, None, None]
        out = canvas.expand(len(images), -1, *image_size).clone()
        for number, (height, width) in enumerate(extents.tolist()):
            row = slice(number, number + 1)
            out[number, :, :height, :width] = resample(images[row], boxes[row], (height, width), bicubic)[0]
        return out


class ScaleJitter(Placed):
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
        checked(interpolation)
        self.scale, self.interpolation = scale, interpolation

    def placement(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        factor = between(u[:, :1], *self.scale)
        return _cut(sizes, image_size, factor, u[:, 1:])


class Letterbox(Placed):
    """The whole image, as large as the canvas allows, nothing drawn: what detectors and segmenters are judged by.

    Args:
        interpolation: filter of the resize.
    """

    columns = 0

    def __init__(self, interpolation: Interpolation = "bilinear") -> None:
        checked(interpolation)
        self.interpolation = interpolation

    def placement(self, u: Tensor, sizes: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        nowhere = torch.zeros(len(sizes), 2, dtype=torch.float64)
        return _cut(sizes, image_size, torch.ones(len(sizes), 1, dtype=torch.float64), nowhere)


def _cut(sizes: Tensor, image_size: tuple[int, int], factor: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Placement of images scaled by `factor` [B, 1], cut at `place` [B, 2] in [0, 1) of what is too large."""
    size, canvas = sizes.double(), torch.tensor(image_size, dtype=torch.float64)
    scaled = (size * ((canvas / size).amin(1, keepdim=True) * factor) + 1e-9).floor().clamp(min=1)  # [B, 2]
    extent = scaled.minimum(canvas)
    start = randint(place, scaled - extent + 1)
    return torch.cat([start, extent], 1) / scaled.repeat(1, 2), extent.long()
