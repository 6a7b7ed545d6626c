# SPDX-License-Identifier: Apache-2.0
"""Images too many for memory: worker processes decode and crop them when asked for; the rest stays batched."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .augment.augment import Augment
from .augment.crop import BoxCrop
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
    """

    def __init__(self, source: Source, rows: Tensor, records: Records, size: int) -> None:
        super().__init__(records)
        self.source, self.rows, self.size = source, rows, size

    def part(self, numbers: Tensor) -> "StreamImages":
        return StreamImages(self.source, self.rows[numbers], self.records.part(numbers), self.size)

    def original(self, number: int) -> np.ndarray:
        return np.asarray(self.source.read(int(self.rows[number])))

    def cut(self, numbers: Tensor, augments: Sequence[Augment], u: Sequence[Tensor]) -> list[Tensor]:
        """Decode each image once and cut every view out of it.

        Args:
            numbers: [B] numbers of images.
            augments: one for each view.
            u: for each view its uniform numbers, [B, columns].

        Returns: for each view [B, 3, H, W] uint8.
        """
        views: list[list[Tensor]] = [[] for _ in augments]
        for position, row in enumerate(self.rows[numbers].tolist()):
            image = self.source.read(row)
            for augment, table, view in zip(augments, u, views, strict=True):
                view.append(self._cut(image, augment, table[position : position + 1]))
        return [torch.cat(view) for view in views]

    def _cut(self, image: Image.Image, augment: Augment, u: Tensor) -> Tensor:
        """One view of one image, [1, 3, H, W] uint8."""
        crop, sizes = augment.crop, torch.tensor([[image.height, image.width]])
        if not isinstance(crop, BoxCrop):
            return augment.cut([pixels(image, (self.size, self.size), True)], sizes, u)
        u = u[:, : crop.columns]
        boxes = on_pixels(crop.boxes(u, sizes, augment.image_size), image.height, image.width)
        ((top, left, height, width),) = boxes.tolist()
        part = image.crop((left, top, left + width, top + height))
        return pixels(part, augment.image_size, bool(crop.bicubic(u)))[None]


def pixels(image: Image.Image, size: tuple[int, int], bicubic: bool) -> Tensor:
    """An image resized to H, W as [3, H, W] uint8."""
    way = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    resized = np.array(image.resize((size[1], size[0]), way))
    return torch.from_numpy(resized).permute(2, 0, 1).contiguous()


def helpers(wanted: int | None, needed: bool) -> int:
    """Worker processes: as many as wanted; by default none, or where they are needed one a core, up to eight."""
    if wanted is not None:
        return wanted
    return min(len(os.sched_getaffinity(0)), 8) if needed else 0


class _Steps(Dataset[T]):
    """What a worker computes for a key."""

    def __init__(self, produce: Callable[[Any], T]) -> None:
        self.produce = produce

    def __getitem__(self, key: Any) -> T:
        return self.produce(key)


def ahead(produce: Callable[[Any], T], keys: Iterable[Any], workers: int) -> Iterator[T]:
    """`produce(key)` for each key in order, computed ahead by worker processes of one thread each; 0 compute here."""
    # A generator of its own: a DataLoader draws a seed for its workers, which must not move the global stream.
    generator = torch.Generator()
    return iter(DataLoader(_Steps(produce), None, sampler=keys, num_workers=workers, generator=generator))
