# SPDX-License-Identifier: Apache-2.0
"""RandAugment as timm's `rand-mM-mstdS-inc1` means it, with operations drawn for every image by itself.

Cubuk et al. 2020, "RandAugment", arXiv:1909.13719; timm's fifteen operations that grow with the magnitude. Operations
are chosen with replacement, each layer happens with `probability`, and where it does, its level is normal around the
magnitude, cut to [0, 10]. Level 10 of posterize leaves black, as in timm with a Pillow that allows it.

Images are gathered by operation: all eight that only change grey levels share one table look-up, all five that move
pixels share one affine map per filter.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import UserError
from ..transfer import send
from . import tables
from .colour import saturate, sharpen
from .transform import Transform, alter, check_share, whole
from .warp import rotation, shear, translation, warp

OPERATIONS = (
    "auto_contrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add", "color",
    "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
BY_TABLE = ("auto_contrast", "equalize", "invert", "posterize", "solarize", "solarize_add", "contrast", "brightness")
BY_MAP = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
TOP = 10.0  # the highest level


class RandAugment(Transform):
    """Two random operations out of fifteen, each with probability one half (timm's `rand-m9-mstd0.5-inc1`).

    Args:
        magnitude: mean level of the operations, 0 (least) to 10.
        std: standard deviation of the level.
        probability: of each of the two layers.
    """

    columns = 10
    layers = 2

    def __init__(self, magnitude: float = 9.0, std: float = 0.5, probability: float = 0.5) -> None:
        if not 0 <= magnitude <= TOP:
            raise UserError(f"rand_augment.magnitude must lie between 0 and {TOP:g}, got {magnitude}")
        if std < 0:
            raise UserError(f"rand_augment.std must not be negative, got {std}")
        check_share("rand_augment", "probability", probability)
        self.magnitude, self.std, self.probability = magnitude, std, probability
        self.fill = (128, 128, 128)

    def filled(self, mean: tuple[float, float, float]) -> "RandAugment":
        """The same with the data's mean colour (in [0, 1]) where a map looks beyond the image."""
        other = copy.copy(self)
        red, green, blue = (min(255, round(255 * level)) for level in mean)
        other.fill = (red, green, blue)
        return other

    def draw(self, u: Tensor) -> "Drawn":
        """What one layer does to each image, from its five columns [B, 5]."""
        happens, operation, level, sign, cubic = u.unbind(1)
        return Drawn(
            torch.where(happens < self.probability, whole(operation, len(OPERATIONS)), -1).long(),
            (self.magnitude + self.std * torch.special.ndtri(level)).clamp(0, TOP),
            torch.where(sign < 0.5, 1.0, -1.0).double(),
            cubic < 0.5,
        )

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        for layer in u.chunk(self.layers, 1):
            images = apply(images, self.draw(layer), self.fill)
        return images


class Drawn(NamedTuple):
    """One layer: at most one operation an image. All [B], on the CPU.

    Args:
        operation: position in OPERATIONS, -1 for none.
        level: 0 to 10.
        sign: 1 or -1, for operations that go two ways.
        cubic: filter of the maps, bilinear where False.
    """

    operation: Tensor
    level: Tensor
    sign: Tensor
    cubic: Tensor

    def where(self, mask: Tensor) -> "Drawn":
        """The same of some images."""
        return Drawn(*(values[mask] for values in self))

    def among(self, *names: str) -> Tensor:
        """Which images meet one of these operations, [B] bool."""
        return torch.isin(self.operation, torch.tensor([OPERATIONS.index(name) for name in names]))

    @property
    def strength(self) -> Tensor:
        """Factor of brightness, contrast, color and sharpness: 1 changes nothing."""
        return (1 + self.sign * self.level * 0.09).clamp(min=0.1)


def apply(images: Tensor, drawn: Drawn, fill: tuple[int, int, int]) -> Tensor:
    """Do what is drawn to images [B, 3, H, W] uint8, overwritten; `fill` is what lies beyond an image."""
    device = images.device
    mask = drawn.among(*BY_TABLE)
    here = drawn.where(mask)
    images = alter(images, mask, lambda some: tables.look_up(some, table(some, here)))
    for name, change in (("color", saturate), ("sharpness", sharpen)):
        mask = drawn.among(name)
        images = alter(images, mask, partial(change, factor=send(drawn.strength[mask].float(), device)))
    for bicubic in (False, True):
        mask = drawn.among(*BY_MAP) & (drawn.cubic == bicubic)
        maps = send(affine(drawn.where(mask), *images.shape[-2:]).float(), device)
        images = alter(images, mask, partial(warp, maps=maps, fill=fill, bicubic=bicubic))
    return images


def table(images: Tensor, drawn: Drawn) -> Tensor:
    """The grey-level table of each image's operation, [n, 3, 256]; what sees no pixel is worked out on the CPU."""
    device, share = images.device, drawn.level / TOP
    known = {
        "invert": tables.invert(len(images)),
        "posterize": tables.posterize(4 - (share * 4).floor()),
        "solarize": tables.solarize(256 - (share * 256).floor()),
        "solarize_add": tables.solarize_add((share * 110).floor()),
        "brightness": tables.brightness(drawn.strength),
    }
    entries = torch.zeros(len(images), 256, dtype=torch.uint8)
    for name, values in known.items():
        mask = drawn.among(name)
        entries[mask] = values[mask]
    entries = send(entries, device)[:, None].repeat(1, 3, 1)
    seen: dict[str, Callable[[Tensor], Tensor]] = {
        "auto_contrast": tables.auto_contrast,
        "equalize": tables.equalize,
        "contrast": partial(tables.contrast, factor=send(drawn.strength[drawn.among("contrast")].float(), device)),
    }
    for name, make in seen.items():
        rows = drawn.among(name).nonzero()[:, 0]
        if len(rows):
            rows = send(rows, device)
            entries.index_copy_(0, rows, make(images.index_select(0, rows)))
    return entries


def affine(drawn: Drawn, height: int, width: int) -> Tensor:
    """The map of each image's operation, [n, 2, 3]; at level 10: 30 degrees, a shear of 0.3, 0.45 of a side."""
    share = drawn.sign * drawn.level / TOP
    zero = torch.zeros_like(share)
    known = {
        "rotate": rotation(30 * share, height, width),
        "shear_x": shear(0.3 * share, zero),
        "shear_y": shear(zero, 0.3 * share),
        "translate_x": translation(0.45 * share * width, zero),
        "translate_y": translation(zero, 0.45 * share * height),
    }
    maps = torch.zeros(len(share), 2, 3, dtype=share.dtype)
    for name, values in known.items():
        mask = drawn.among(name)
        maps[mask] = values[mask]
    return maps
