# SPDX-License-Identifier: Apache-2.0
"""All transforms of a view in their one order: from uint8 images of a store to what the student sees.

crop, flip, rand_augment, color_jitter, gray, blur, solarize, normalise, erase, mix. Everything before normalisation
works on grey levels (uint8), as Pillow's pipelines do.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import UserError
from ..resample import Pile
from ..transfer import send
from .blur import Blur
from .crop import Crop, PaddedCrop, ResizedCrop, Squeeze
from .erase import Erase
from .flip import Flip
from .grayscale import Gray
from .jitter import ColorJitter
from .mix import Mix
from .rand_augment import RandAugment
from .scale_jitter import Placed, ScaleJitter
from .solarize import Solarize
from .transform import Transform

TRANSFORMS = (
    ResizedCrop, PaddedCrop, ScaleJitter, Flip, RandAugment, ColorJitter, Gray, Blur, Solarize, Erase, Mix,
)  # fmt: skip
"""What a recipe may name (in snake case), in the order in which it is applied."""
CACHED = 2**17
"""Floating-point numbers that a core's cache holds."""


class Augment:
    """One view of an image: its transforms, then normalisation.

    Args:
        transforms: any of TRANSFORMS, each at most once, in any order; without a crop, images are resized whole. Those
            of other classes come last before normalisation, as they are given.
        image_size: H, W of the result, pixels.
        mean: per channel, of images in [0, 1].
        std: per channel.
        classes: C, for mixed labels.
        noise: further uniform numbers drawn for each image; the batch holds them, no transform reads them.
    """

    def __init__(
        self,
        transforms: Sequence[Crop | Transform | Mix],
        image_size: tuple[int, int],
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        classes: int,
        noise: int = 0,
    ) -> None:
        kinds = [type(transform) for transform in transforms]
        crops = [transform for transform in transforms if isinstance(transform, Crop)]
        if len(set(kinds)) < len(kinds) or len(crops) > 1:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise UserError(f"each transform may stand once, and one crop at most; got {names}")
        place: dict[type, int] = {kind: place for place, kind in enumerate(TRANSFORMS)}
        ordered = sorted(
            (t for t in transforms if isinstance(t, Transform)), key=lambda t: place.get(type(t), len(place))
        )
        crop = crops[0] if crops else Squeeze()
        self.crop = crop.filled(mean) if isinstance(crop, Placed) else crop
        self.before = [t.filled(mean) if isinstance(t, RandAugment) else t for t in ordered if not isinstance(t, Erase)]
        self.after = [t for t in ordered if isinstance(t, Erase)]
        self.mix = next((t for t in transforms if isinstance(t, Mix)), None)
        self.image_size, self.classes, self.noise = image_size, classes, noise
        self.scale = 1 / (255 * torch.tensor(std).view(3, 1, 1))
        self.shift = -(torch.tensor(mean) / torch.tensor(std)).view(3, 1, 1)

    @property
    def columns(self) -> int:
        """Uniform numbers that an image takes."""
        return self.crop.columns + columns_of(self.before) + columns_of(self.after) + self.noise

    def __call__(
        self, images: Pile, sizes: Tensor, u: Tensor, batch_u: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Crop, change, normalise, mix.

        Args:
            images: [B, 3, S, S] uint8, or one by one, on the device where the work is to be done; may be overwritten.
            sizes: [B, 2] height and width of the originals, pixels, on the CPU.
            u: [B, columns] float64 in [0, 1), on the CPU.
            batch_u: [Mix.columns] float64 in [0, 1), on the CPU.
            labels: [B] int64, on the images' device.

        Returns: [B, 3, H, W] float32, and the labels, [B, C] float32 once mixed.
        """
        return self.finish(self.change(self.cut(images, sizes, u), u), u, batch_u, labels)

    def cut(self, images: Pile, sizes: Tensor, u: Tensor) -> Tensor:
        """The crop: stored images -> [B, 3, H, W] uint8. All three parts read their columns out of the same u."""
        return self.crop(images, sizes, u[:, : self.crop.columns], self.image_size)

    def change(self, images: Tensor, u: Tensor) -> Tensor:
        """What works on grey levels: [B, 3, H, W] uint8, overwritten."""
        return in_turn(self.before, images, u[:, self.crop.columns :])

    def finish(self, images: Tensor, u: Tensor, batch_u: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise, erase, mix: [B, 3, H, W] uint8 -> float32, and the labels."""
        first = self.columns - self.noise - columns_of(self.after)
        images = in_turn(self.after, self.normalise(images), u[:, first:])
        return (images, labels) if self.mix is None else self.mix(images, labels, batch_u, self.classes)

    def normalise(self, images: Tensor) -> Tensor:
        """(x / 255 - mean) / std, uint8 -> float32."""
        scale, shift = send(self.scale, images.device), send(self.shift, images.device)
        values = torch.empty(images.shape, device=images.device)
        # On a CPU, some images go through all three passes while its cache holds them.
        count = max(1, CACHED // images[:1].numel() if images.device.type == "cpu" else len(images))
        for source, target in zip(torch.split(images, count), torch.split(values, count), strict=True):
            target.copy_(source).mul_(scale).add_(shift)
        return values


def columns_of(transforms: Sequence[Transform]) -> int:
    """Uniform numbers that an image takes in all of them."""
    return sum(transform.columns for transform in transforms)


def in_turn(transforms: Sequence[Transform], images: Tensor, u: Tensor) -> Tensor:
    """Apply transforms one after the other, each with its own columns of u."""
    for transform in transforms:
        images, u = transform(images, u[:, : transform.columns]), u[:, transform.columns :]
    return images
