# SPDX-License-Identifier: Apache-2.0
"""The contract of a transform: a pure function of images and of numbers drawn beforehand on the CPU.

A step draws one table of uniform numbers for its global batch; each transform reads its own columns, one row an image.
Hence a batch depends on (seed, epoch, step) alone: on no device, no process and no transform that came before.
What a row decides (whether, which, how much) is known on the CPU, so nothing waits for the accelerator.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import UserError
from ..transfer import send


class Transform(ABC):
    """Changes images that keep their size. Its constructor's keywords are its section of a recipe."""

    columns: ClassVar[int]
    """Uniform numbers that it reads for each image."""

    @abstractmethod
    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """Transform each image by its own row.

        Args:
            images: [B, C, H, W], uint8 before normalization and float32 after it; may be overwritten.
            u: [B, columns] float64 in [0, 1), on the CPU.
        """


def apply_to_rows(images: Tensor, rows: list[int], change: Callable[[Tensor], Tensor]) -> Tensor:
    """Replace some images by what `change` makes of them.

    Args:
        images: [B, C, H, W], overwritten.
        rows: which, n of them.
        change: [n, C, H, W] -> the same shape and type; not called where there are none.
    """
    if not rows:
        return images
    if images.device.type == "cpu":  # copies image by image are ten times faster than an index
        for row, image in zip(rows, change(torch.stack([images[row] for row in rows])), strict=True):
            images[row] = image
        return images
    where = send(torch.tensor(rows), images.device)
    return images.index_copy_(0, where, change(images.index_select(0, where)))


def rows_where(mask: Tensor) -> list[int]:
    """Rows at which a mask on the CPU holds."""
    return mask.nonzero()[:, 0].tolist()


def between(u: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers in [0, 1) as uniform numbers in [low, high)."""
    return low + (high - low) * u


def randint(u: Tensor, count: Tensor | int) -> Tensor:
    """Uniform numbers in [0, 1) as whole numbers from 0 to count - 1, each equally likely; still floating point."""
    return (u * count).floor()


def check_share(owner: str, name: str, value: float) -> None:
    """Raise UserError unless a probability or another share lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise UserError(f"{owner}.{name} must lie between 0 and 1, got {value}")


def check_range(owner: str, name: str, value: tuple[float, float], most: float = float("inf")) -> None:
    """Raise UserError unless 0 < value[0] <= value[1] <= most."""
    if len(value) != 2 or not 0 < value[0] <= value[1] <= most:
        within = "above 0" + ("" if most == float("inf") else f" and at most {most}")
        raise UserError(f"{owner}.{name} must be a pair (low, high), {within}, got {tuple(value)}")
