# SPDX-License-Identifier: Apache-2.0
"""The labeled images of one split, as the loader reads them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .images.format import as_picture


@dataclass(frozen=True)
class Records:
    """What is known of a split's images without decoding them again; all share length N.

    Args:
        labels: [N] int64, position of the class in the source's `classes`, -1 without a label; or [N, C] float32.
        sizes: [N, 2] int32, height and width of the upright original, pixels; -1 where only opening it would tell.
        names: N paths or names that a person recognizes.
    """

    labels: Tensor
    sizes: Tensor
    names: list[str]

    def part(self, numbers: Tensor) -> "Records":
        """What is known of some of them."""
        return Records(self.labels[numbers], self.sizes[numbers], [self.names[i] for i in numbers.tolist()])


class Images(ABC):
    """Images of one split: decoded once in a store (`store.py`), or decoded when asked for (`stream.py`)."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records.names)

    @abstractmethod
    def part(self, numbers: Tensor) -> "Images":
        """The images with these numbers, [n], as a split of their own."""

    @abstractmethod
    def extent(self, number: int) -> tuple[int, int]:
        """Height and width of one upright original, pixels."""

    @abstractmethod
    def original(self, number: int) -> np.ndarray:
        """One image as a person is shown it (`channels.as_picture`), [H, W, 3] uint8, for pages."""


class CachedImages(Images):
    """Images of a store: all of one size, uint8, memory-mapped.

    Args:
        pixels: [M, C, S, S] uint8 of any memory layout, every image of the source squeezed to a square (aspect ratio in
            `records.sizes`).
        rows: [N] int64, which of the M belong to this split, in the split's order.
        records: labels, sizes and names of those N.
    """

    def __init__(self, pixels: Tensor, rows: Tensor, records: Records) -> None:
        super().__init__(records)
        self.pixels, self.rows = pixels, rows

    def take(self, numbers: Tensor) -> Tensor:
        """Pixels of the images with these numbers, [B] -> [B, C, S, S] uint8."""
        return self.pixels[self.rows[numbers]].contiguous()

    def part(self, numbers: Tensor) -> "CachedImages":
        return CachedImages(self.pixels, self.rows[numbers], self.records.part(numbers))

    def to(self, device: torch.device) -> "CachedImages":
        """The same split with its pixels (only its own) on a device, so that no step copies images."""
        numbers = torch.arange(len(self))
        return CachedImages(self.take(numbers).to(device), numbers.to(device), self.records)

    def extent(self, number: int) -> tuple[int, int]:
        height, width = self.records.sizes[number].tolist()
        return height, width

    def original(self, number: int) -> np.ndarray:
        """Stretched back to the proportions of the original; the longer side has S pixels."""
        pixels = as_picture(self.take(torch.tensor([number]))[0].permute(1, 2, 0).cpu().numpy())
        height, width = self.extent(number)
        side, longest = len(pixels), max(height, width)
        shape = (max(1, round(side * width / longest)), max(1, round(side * height / longest)))
        return pixels if shape == (side, side) else np.asarray(Image.fromarray(pixels).resize(shape))
