# SPDX-License-Identifier: Apache-2.0
"""The contract of a transform: a pure function of images and of random numbers drawn in advance on the CPU.

A step draws one table of uniform numbers for its global batch; each transform reads its own columns, one row an image.
Hence a batch depends on (seed, epoch, step) alone: on no device, no process and no earlier transform.
What a row decides (if, which, how much) is known on the CPU, so nothing waits for the accelerator.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import UserError


class Transform(ABC):
    """Changes images that keep their size. Its constructor's keywords are its section of a recipe."""

    columns: ClassVar[int]  # uniform numbers that it reads for each image

    @abstractmethod
    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """Transform each image by its own row.

        Args:
            images: [B, C, H, W], uint8 before normalization and float32 after it; may be overwritten.
            u: [B, columns] float64 in [0, 1), on the CPU.
        """


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device unless already there; to CUDA from pinned memory, so that the CPU does not wait."""
    if device.type == "cuda" and values.device.type == "cpu" and values.numel():
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def apply_to_rows(images: Tensor, rows: list[int], change: Callable[[Tensor], Tensor]) -> Tensor:
    """Replace some images by the result of `change`.

    Args:
        images: [B, C, H, W], overwritten.
        rows: n positions in the batch.
        change: [n, C, H, W] -> the same shape and type; not called for n = 0.
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
    """Return the rows at which a mask on the CPU is true."""
    return mask.nonzero()[:, 0].tolist()


def between(u: Tensor, low: float, high: float) -> Tensor:
    """Map uniform numbers in [0, 1) to [low, high)."""
    return low + (high - low) * u


def randint(u: Tensor, count: Tensor | int) -> Tensor:
    """Map uniform numbers in [0, 1) to whole numbers from 0 to count - 1, in floating point."""
    return (u * count).floor()


def check_share(owner: str, name: str, value: float) -> None:
    """Raise UserError unless a probability or another share lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise UserError(f"{owner}.{name} must lie between 0 and 1, got {value}")


def check_range(owner: str, name: str, value: tuple[float, float], maximum: float = float("inf")) -> None:
    """Raise UserError unless 0 < value[0] <= value[1] <= maximum."""
    if len(value) != 2 or not 0 < value[0] <= value[1] <= maximum:
        within = "above 0" + ("" if maximum == float("inf") else f" and at most {maximum}")
        raise UserError(f"{owner}.{name} must be a pair (low, high), {within}, got {tuple(value)}")
