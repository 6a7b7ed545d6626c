# SPDX-License-Identifier: Apache-2.0
"""All transforms of a view in their one order: from uint8 images of the cache to the student's input.

crop, flip, auto_augment, rand_augment, color_jitter, gray, blur, solarize, normalize, erase, mix. Everything before
normalization works on uint8, as Pillow's pipelines do.

Images have any number of channels, C. Transforms that need the gray value of a pixel take the mean of its channels
where these are not three (`pixels.luma`); hue needs three.
"""

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError, counted
from .color import Blur, ColorJitter, Gray, Solarize
from .crop import CanvasCrop, CenterCrop, Crop, PaddedCrop, ResizedCrop, ScaleJitter
from .erase import Erase
from .geometry import Flip
from .mix import Mix
from .rand_augment import AutoAugment, Filling, RandAugment
from .resample import ImageBatch
from .transform import Transform, send

TRANSFORMS = (
    ResizedCrop, PaddedCrop, ScaleJitter, Flip, AutoAugment, RandAugment, ColorJitter, Gray, Blur, Solarize, Erase,
    Mix,
)  # fmt: skip
"""Transforms that a recipe may name (in snake case), in the order in which they are applied."""
CACHED = 2**17  # Floating-point numbers that a core's cache holds


class Augment:
    """One view of an image: its transforms, then normalization.

    Args:
        transforms: any of TRANSFORMS, each at most once, in any order; without a crop, the largest centered part of the
            result's shape, as in evaluation. Those of other classes come last before normalization, in their order.
        image_size: H, W of the result, pixels.
        mean: per channel, of images in [0, 1].
        std: per channel.
        classes: C, for mixed labels.
        noise: further uniform numbers for each image; the batch holds them, no transform reads them.
    """

    def __init__(
        self,
        transforms: Sequence[Crop | Transform | Mix],
        image_size: tuple[int, int],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        classes: int,
        noise: int = 0,
    ) -> None:
        kinds = [type(transform) for transform in transforms]
        crops = [transform for transform in transforms if isinstance(transform, Crop)]
        if len(set(kinds)) < len(kinds) or len(crops) > 1:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise UserError(f"each transform may appear once, and at most one crop; got {names}")
        place: dict[type, int] = {kind: place for place, kind in enumerate(TRANSFORMS)}
        ordered = sorted(
            (t for t in transforms if isinstance(t, Transform)), key=lambda t: place.get(type(t), len(place))
        )
        check_channels(transforms, len(mean))
        crop = crops[0] if crops else CenterCrop()
        self.crop = crop.filled(mean) if isinstance(crop, CanvasCrop) else crop
        self.before = [t.filled(mean) if isinstance(t, Filling) else t for t in ordered if not isinstance(t, Erase)]
        self.after = [t for t in ordered if isinstance(t, Erase)]
        self.mix = next((t for t in transforms if isinstance(t, Mix)), None)
        self.image_size, self.classes, self.noise = image_size, classes, noise
        self.first_after = self.crop.columns + sum(t.columns for t in self.before)
        self.columns = self.first_after + sum(t.columns for t in self.after) + noise  # uniform numbers of an image
        self.scale = 1 / (255 * torch.tensor(std).view(-1, 1, 1))
        self.shift = -(torch.tensor(mean) / torch.tensor(std)).view(-1, 1, 1)

    def resized(self, image_size: tuple[int, int]) -> Self:
        """Return the same view in another size: by equal numbers u, the same crop and changes; blur grows with it."""
        same = copy.copy(self)
        same.image_size, factor = image_size, image_size[0] / self.image_size[0]
        same.before = [t.scaled(factor) if isinstance(t, Blur) else t for t in self.before]
        return same

    def __call__(
        self, images: ImageBatch, sizes: Tensor, u: Tensor, batch_u: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Crop, change, normalize, mix.

        Args:
            images: [B, C, S, S] uint8, or one by one, on the device that does the work; may be overwritten.
            sizes: [B, 2] height and width of the originals, pixels, on the CPU.
            u: [B, columns] float64 in [0, 1), on the CPU.
            batch_u: [Mix.columns] float64 in [0, 1), on the CPU.
            labels: [B] int64, or [B, C] float, on the images' device.

        Returns: [B, C, H, W] float32, and the labels, [B, C] float32 once mixed.
        """
        return self.mixed(self.finish(self.change(self.cut(images, sizes, u), u), u), batch_u, labels)

    def cut(self, images: ImageBatch, sizes: Tensor, u: Tensor) -> Tensor:
        """Crop: cached images -> [B, C, H, W] uint8. All parts read their columns out of the same u."""
        return self.crop(images, sizes, u[:, : self.crop.columns], self.image_size)

    def change(self, images: Tensor, u: Tensor) -> Tensor:
        """Apply the transforms of uint8 images: [B, C, H, W], overwritten."""
        return in_turn(self.before, images, u[:, self.crop.columns :])

    def finish(self, images: Tensor, u: Tensor) -> Tensor:
        """Normalize and erase: [B, C, H, W] uint8 -> float32."""
        return in_turn(self.after, self.normalize(images), u[:, self.first_after :])

    def mixed(self, images: Tensor, batch_u: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix the images of one batch, normalized, and their labels."""
        return (images, labels) if self.mix is None else self.mix(images, labels, batch_u, self.classes)

    def normalize(self, images: Tensor) -> Tensor:
        """(x / 255 - mean) / std, uint8 -> float32."""
        scale, shift = send(self.scale, images.device), send(self.shift, images.device)
        if images.device.type == "cpu":
            # numpy requests large pages, which spares thousands of page faults a batch. Some images at a
            # time go through all three passes while the processor's cache holds them.
            values = torch.from_numpy(np.empty(images.shape, np.float32))
            count = max(1, CACHED // images[:1].numel())
        else:
            values, count = torch.empty(images.shape, device=images.device), max(1, len(images))
        for source, target in zip(torch.split(images, count), torch.split(values, count), strict=True):
            target.copy_(source).mul_(scale).add_(shift)
        return values


def check_channels(transforms: Sequence[Crop | Transform | Mix], channels: int) -> None:
    """Raises: UserError where a transform needs three colors, and images have other channels."""
    if channels != 3 and any(isinstance(transform, ColorJitter) and transform.hue for transform in transforms):
        raise UserError(f"color_jitter.hue turns colors, and images have {counted(channels, 'channel')}: set it to 0")


def in_turn(transforms: Sequence[Transform], images: Tensor, u: Tensor) -> Tensor:
    """Apply transforms one after the other, each with its own columns of u."""
    for transform in transforms:
        images, u = transform(images, u[:, : transform.columns]), u[:, transform.columns :]
    return images
