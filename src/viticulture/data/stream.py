# SPDX-License-Identifier: Apache-2.0
"""Images too many for a store: worker processes decode them when asked for, squeeze them as a store would, and crop.

Batches are those of a store, bit for bit on a CPU; where a store's crops are made on a GPU, up to a gray level. Only
`normalize: dataset` differs, whose statistics a stream takes from a sample.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import UserError
from ..parallel import cores
from .augment.augment import Augment
from .channels import as_picture
from .decode import Unreadable
from .images import Images, Records
from .resample import squeeze
from .sources.source import Source

T = TypeVar("T")


class StreamImages(Images):
    """Images of one split that are decoded again each time, to the very pixels that a store would keep.

    Args:
        source: reads image i, upright; must survive pickling.
        rows: [N] int64, which of the source's images belong to this split, in the split's order.
        records: labels and names of those N; sizes may be unknown (-1), since a worker sees the opened image.
        size: side of the square to which images are squeezed, as in a store.
    """

    def __init__(self, source: Source, rows: Tensor, records: Records, size: int) -> None:
        super().__init__(records)
        self.source, self.rows, self.size = source, rows, size

    def part(self, numbers: Tensor) -> "StreamImages":
        return StreamImages(self.source, self.rows[numbers], self.records.part(numbers), self.size)

    def original(self, number: int) -> np.ndarray:
        return as_picture(self.source.picture(int(self.rows[number])).pixels)

    def extent(self, number: int) -> tuple[int, int]:
        return self.source.size_of(int(self.rows[number]))

    def cut(self, numbers: Tensor, augments: Sequence[Augment], u: Sequence[Tensor]) -> list[Tensor]:
        """Decode each image once and cut every view out of it.

        Args:
            numbers: [B] numbers of images.
            augments: one for each view.
            u: for each view its uniform numbers, [B, columns].

        Returns: for each view [B, C, H, W] uint8.
        Raises: UserError for an image that cannot be read.
        """
        try:
            pictures = [self.source.picture(row, shrink=self.size) for row in self.rows[numbers].tolist()]
        except Unreadable as error:
            raise UserError(
                f"{error}; bring it back as it was and go on; or mend or remove it, or have every image read once"
                " beforehand and leave out those that cannot be read (--skip-unreadable), and train anew"
            ) from error
        squeezed = [squeeze(picture.pixels, self.size) for picture in pictures]
        pixels = [torch.from_numpy(image).permute(2, 0, 1) for image in squeezed]
        sizes = torch.tensor([[picture.height, picture.width] for picture in pictures])
        return [augment.cut(pixels, sizes, table) for augment, table in zip(augments, u, strict=True)]


def helpers(wanted: int | None, needed: bool) -> int:
    """Worker processes: as many as wanted; by default none, or where they are needed one a core, up to eight."""
    if wanted is not None:
        return wanted
    return min(cores(), 8) if needed else 0


class _Steps(Dataset[T | UserError]):
    """What a worker computes for a key, or why a person must help: torch would rebuild that error without its kind."""

    def __init__(self, produce: Callable[[Any], T]) -> None:
        self.produce = produce

    def __getitem__(self, key: Any) -> T | UserError:
        try:
            return self.produce(key)
        except UserError as error:
            return error


def ahead(produce: Callable[[Any], T], keys: Iterable[Any], workers: int) -> Iterator[T]:
    """`produce(key)` for each key in order, computed ahead by worker processes of one thread each; 0 compute here."""
    # A generator of its own: a DataLoader draws a seed for its workers, which must not move the global stream.
    generator = torch.Generator()
    for result in DataLoader(_Steps(produce), None, sampler=keys, num_workers=workers, generator=generator):
        if isinstance(result, UserError):
            raise result
        yield result
