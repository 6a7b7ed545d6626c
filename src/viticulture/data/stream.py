# SPDX-License-Identifier: Apache-2.0
"""Images too many for memory: worker processes decode and crop them when asked for; the rest stays batched."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .augment.crop import BoxCrop, Crop
from .images import Images, Records
from .resample import on_pixels
from .sources import Source

T = TypeVar("T")


class StreamImages(Images):
    """Images of one split that are decoded again each time.

    Args:
        source: reads image i, upright RGB; must survive pickling.
        rows: [N] int64, which of the source's images belong to this split, in the split's order.
        records: labels and names of those N; sizes may be unknown (-1), since a worker sees the opened image.
        size: side of the square to which images are squeezed where a crop starts from stored pixels.
        workers: processes that read ahead; null takes one a core, up to eight.
    """

    def __init__(self, source: Source, rows: Tensor, records: Records, size: int, workers: int | None = None) -> None:
        super().__init__(records)
        self.source, self.rows, self.size = source, rows, size
        self.workers = min(len(os.sched_getaffinity(0)), 8) if workers is None else workers

    def original(self, number: int) -> np.ndarray:
        return np.asarray(self.source.read(int(self.rows[number])))

    def cropped(
        self, numbers: Tensor, views: Sequence[tuple[Crop, Tensor]], image_size: tuple[int, int]
    ) -> list[Tensor]:
        """Decode each image once and cut every view out of it.

        Args:
            numbers: [B] numbers of images.
            views: for each view its crop and the crop's uniform numbers, [B, columns].
            image_size: H, W of a view, pixels.

        Returns: for each view [B, 3, H, W] uint8, or [B, 3, S, S] squeezed where its crop is no box of the original.
        """
        taken: list[list[Tensor]] = [[] for _ in views]
        for position, row in enumerate(self.rows[numbers].tolist()):
            image = self.source.read(row)
            for (crop, u), pile in zip(views, taken, strict=True):
                pile.append(self._cut(image, crop, u[position : position + 1], image_size))
        return [torch.stack(pile) for pile in taken]

    def _cut(self, image: Image.Image, crop: Crop, u: Tensor, image_size: tuple[int, int]) -> Tensor:
        """One view of one image, [3, H, W] uint8."""
        size, cubic = (self.size, self.size), True
        if isinstance(crop, BoxCrop):
            size, cubic = image_size, bool(crop.bicubic(u))
            boxes = crop.boxes(u, torch.tensor([[image.height, image.width]]), image_size)
            ((top, left, height, width),) = on_pixels(boxes, image.height, image.width).tolist()
            image = image.crop((left, top, left + width, top + height))
        way = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
        pixels = np.array(image.resize((size[1], size[0]), way))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


class _Steps(Dataset[T]):
    """What a worker computes for a key."""

    def __init__(self, produce: Callable[[Any], T]) -> None:
        self.produce = produce

    def __getitem__(self, key: Any) -> T:
        return self.produce(key)


def ahead(produce: Callable[[Any], T], keys: Sequence[Any], workers: int) -> Iterator[T]:
    """`produce(key)` for each key in order, computed ahead by worker processes; 0 workers compute here."""
    # A generator of its own: a DataLoader draws a seed for its workers, which must not move the global stream.
    generator = torch.Generator()
    return iter(DataLoader(_Steps(produce), None, sampler=keys, num_workers=workers, generator=generator))
