# SPDX-License-Identifier: Apache-2.0
"""RandAugment as timm's `rand-mM-mstdS-inc1` means it, and AutoAugment, with operations drawn per image.

Cubuk et al. 2020, "RandAugment", arXiv:1909.13719; timm's fifteen operations that grow with the magnitude. Operations
are chosen with replacement, each layer happens with `probability`, and where it does, its level is normal around the
magnitude, cut to [0, 10]. Level 10 of posterize leaves black, as in timm with a Pillow that allows it. What moves
pixels filters bicubically, an option of timm's that all of our papers use.

AutoAugment: Cubuk et al. 2019, arXiv:1805.09501; each image gets one of 25 pairs of operations that were searched for
on a data set. Policies and magnitudes are torchvision's.
"""

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor
from torchvision import transforms

from ...errors import UserError
from . import pixels
from .geometry import Color, rotate, slide
from .transform import Transform, apply_to_rows, check_share, randint, send

OPERATIONS = (
    "auto_contrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add", "color",
    "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
ALL = (*OPERATIONS, "posterize_half")  # and one of AutoAugment's
PLAIN = {"auto_contrast": pixels.auto_contrast, "equalize": pixels.equalize, "invert": pixels.invert}
GRADED = {
    "posterize": pixels.posterize,
    "posterize_half": pixels.posterize,
    "solarize": pixels.solarize,
    "solarize_add": pixels.solarize_add,
    "color": pixels.saturate,
    "contrast": pixels.contrast,
    "brightness": pixels.brightness,
    "sharpness": pixels.sharpen,
}
TOP = 10.0  # the highest level


class Filling(Transform):
    """A transform that moves pixels and fills what lies beyond the image."""

    fill: Color = (128, 128, 128)

    def filled(self, mean: tuple[float, ...]) -> Self:
        """Return a copy that fills with the data's mean color (in [0, 1]) beyond the image."""
        other = copy.copy(self)
        other.fill = tuple(min(255, round(255 * level)) for level in mean)
        return other


class RandAugment(Filling):
    """Two random operations out of fifteen, each with probability one half (timm's `rand-m9-mstd0.5-inc1`).

    Args:
        magnitude: mean level of the operations, 0 (weakest) to 10.
        std: standard deviation of the level.
        probability: of each of the two layers.
    """

    columns = 8
    layers = 2

    def __init__(self, magnitude: float = 9.0, std: float = 0.5, probability: float = 0.5) -> None:
        if not 0 <= magnitude <= TOP:
            raise UserError(f"rand_augment.magnitude must lie between 0 and {TOP:g}, got {magnitude}")
        if std < 0:
            raise UserError(f"rand_augment.std must not be negative, got {std}")
        check_share("rand_augment", "probability", probability)
        self.magnitude, self.std, self.probability = magnitude, std, probability

    def draw(self, u: Tensor) -> "Drawn":
        """Choose what one layer does to each image, from its four columns [B, 4]."""
        happens, operation, level, sign = u.unbind(1)
        return Drawn(
            torch.where(happens < self.probability, randint(operation, len(OPERATIONS)), -1).long(),
            (self.magnitude + self.std * torch.special.ndtri(level)).clamp(0, TOP),
            torch.where(sign < 0.5, 1.0, -1.0).double(),
        )

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        for layer in u.chunk(self.layers, 1):
            images = apply(images, self.draw(layer), self.fill)
        return images


class Drawn(NamedTuple):
    """One layer: at most one operation an image. All [B], on the CPU."""

    operation: Tensor  # position in ALL, -1 for none
    level: Tensor  # 0 to 10
    sign: Tensor  # 1 or -1, for operations that go two ways

    def rows(self) -> dict[str, list[int]]:
        """Operation -> its images, for operations that occur."""
        rows: dict[str, list[int]] = {}
        for row, operation in enumerate(self.operation.tolist()):
            if operation >= 0:
                rows.setdefault(ALL[operation], []).append(row)
        return rows

    @property
    def share(self) -> Tensor:
        """Level as a share of the highest."""
        return self.level / TOP


def apply(images: Tensor, drawn: Drawn, fill: Color) -> Tensor:
    """Apply one layer to images [B, C, H, W] uint8, overwritten; `fill` is the color beyond an image."""
    (height, width), device, rows = images.shape[-2:], images.device, drawn.rows()
    for name, some in rows.items():
        if name in PLAIN:
            apply_to_rows(images, some, PLAIN[name])
        elif name in GRADED:
            strength = send(strengths(name, drawn.share[some], drawn.sign[some]).float(), device)
            apply_to_rows(images, some, _with_strength(GRADED[name], strength))
    turns = rows.get("rotate", [])
    degrees = send((30 * drawn.sign[turns] * drawn.share[turns]).float(), device)
    apply_to_rows(images, turns, partial(rotate, degrees=degrees, fill=fill))
    for axis, dim, lines, length in (("x", 3, height, width), ("y", 2, width, height)):
        shears, moves = (rows.get(f"{move}_{axis}", []) for move in ("shear", "translate"))
        offset = send(offsets(drawn, shears, moves, lines, length).float(), device)
        apply_to_rows(images, shears + moves, partial(slide, offset=offset, dim=dim, fill=fill))
    return images


def strengths(name: str, share: Tensor, sign: Tensor) -> Tensor:
    """Return the second argument of a graded operation, from the level as a share of the highest."""
    match name:
        case "posterize":
            return 4 - (4 * share).floor()  # bits
        case "posterize_half":
            return 8 - (4 * share).round()
        case "solarize":
            return 256 - (256 * share).floor()  # threshold
        case "solarize_add":
            return (110 * share).floor()  # levels
        case _:
            return (1 + 0.9 * sign * share).clamp(min=0.1)  # factor, 1 changes nothing


def _with_strength(change: Callable[[Tensor, Tensor], Tensor], strength: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda images: change(images, strength)


def offsets(drawn: Drawn, shears: list[int], moves: list[int], lines: int, length: int) -> Tensor:
    """Return how far each line of pixels slides, [n, lines]; at level 10: 0.3 of its place, or 0.45 of its length."""
    signed = drawn.sign * drawn.share
    sheared = 0.3 * signed[shears, None] * (torch.arange(lines) + 0.5)
    return torch.cat([sheared, (0.45 * length * signed[moves, None]).expand(-1, lines)])


POLICIES = {policy.value: policy for policy in transforms.AutoAugmentPolicy}
REACH = (150 / 331) / 0.45  # translation at AutoAugment's highest magnitude, 9, in RandAugment's at level 10


class AutoAugment(Filling):
    """One of the 25 pairs of operations of AutoAugment's policy, each operation with the probability found for it.

    A random sign where an operation goes two ways. Deviation from torchvision: what moves pixels filters bicubically
    and fills with the data's mean color.

    Args:
        policy: the data set on which it was searched for.
    """

    columns = 5

    def __init__(self, policy: Literal["cifar10", "imagenet", "svhn"] = "cifar10") -> None:
        if policy not in POLICIES:
            raise UserError(f"auto_augment.policy must be cifar10, imagenet or svhn, got {policy!r}")
        pairs = transforms.AutoAugment(POLICIES[policy]).policies
        self.policy = torch.tensor(
            [[_entry(*one) for one in pair] for pair in pairs], dtype=torch.float64
        )  # [25, 2, 3]

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        for layer in (0, 1):
            images = apply(images, self.draw(u, layer), self.fill)
        return images

    def draw(self, u: Tensor, layer: int) -> Drawn:
        """Choose what layer 0 or 1 does to each image, from its five columns [B, 5]."""
        pair, happens, sign = randint(u[:, 0], len(self.policy)).long(), u[:, 1 + layer], u[:, 3 + layer]
        operation, probability, level = self.policy[pair, layer].unbind(1)
        operation = torch.where(happens < probability, operation, -1).long()
        return Drawn(operation, level, torch.where(sign < 0.5, 1.0, -1.0).double())


def _entry(name: str, probability: float, magnitude: int | None) -> tuple[int, float, float]:
    """Return an operation's position in ALL, its probability, and its level in RandAugment's terms."""
    operation = {"Posterize": "posterize_half"}.get(name, re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())
    level = TOP * (magnitude or 0) / 9 * (REACH if name.startswith("Translate") else 1.0)
    return ALL.index(operation), probability, level
