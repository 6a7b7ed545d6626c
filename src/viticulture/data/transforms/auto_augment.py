# SPDX-License-Identifier: Apache-2.0
"""AutoAugment: each image gets one of 25 pairs of operations that were searched for on a data set.

Cubuk et al. 2019, "AutoAugment", arXiv:1805.09501. Policies and magnitudes are torchvision's.
"""

import re
from typing import Literal

import torch
from torch import Tensor
from torchvision import transforms

from ...errors import UserError
from .rand_augment import ALL, TOP, Drawn, Filling, apply
from .transform import randint

POLICIES = {policy.value: policy for policy in transforms.AutoAugmentPolicy}
REACH = (150 / 331) / 0.45
"""Translation at AutoAugment's highest magnitude, 9, in RandAugment's at level 10."""


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
