# SPDX-License-Identifier: Apache-2.0
"""Sampling of an epoch's images: pure functions of labels, a seed and the epoch."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ..balance import balanced_order

BLOCK = 256  # DeiT counts the images of a repeated epoch in these


@dataclass(frozen=True)
class Sampling:
    """Sampling of an epoch's images."""

    # Times that each image stands in a row in the order, so that copies fall into one batch (repeated augmentation of
    # DeiT, where an epoch still has about as many steps, with 1 / repeats of the images).
    repeats: int = 1
    balanced: bool = False  # every class as often as any other, instead of every image once
    fixed_views: int | None = None  # epochs after which all begins again; null: never

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise UserError(f"repeats must be at least 1, got {self.repeats}")

    def drawn_in(self, epoch: int) -> int:
        """Return the first epoch with an epoch's random numbers."""
        return epoch % self.fixed_views if self.fixed_views else epoch

    def order(self, labels: Tensor, generator: torch.Generator, world: int) -> Tensor:
        """Numbers of an epoch's images in the order in which all W processes take them."""
        permutation = (
            balanced_order(labels, generator) if self.balanced else torch.randperm(len(labels), generator=generator)
        )
        return repeated(permutation, self.repeats, world)


NATURAL = Sampling()  # every image once


def seeded(*key: int) -> torch.Generator:
    """Make a generator that depends on all of a key's whole numbers; a last 0 has no effect."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def repeated(permutation: Tensor, repeats: int, world: int) -> Tensor:
    """DeiT's repeated augmentation: each number `repeats` times in a row, then cut.

    Each of W processes takes floor(N // 256 * 256 / W) numbers; with fewer than 256 images, where that is none,
    floor(N / W). One repeat leaves the permutation as it is.
    """
    if repeats == 1:
        return permutation
    images = len(permutation)
    each = (images // BLOCK * BLOCK or images) // world
    return permutation.repeat_interleave(repeats)[: each * world]
