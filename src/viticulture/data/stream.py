# SPDX-License-Identifier: Apache-2.0
"""Images too many for a store: worker processes decode them when asked for, resize them as a store would, and
crop.

Batches are those of a store, bit for bit on a CPU; where a store's crops are made on a GPU, up to a gray level. Only
`normalize: dataset` differs, whose statistics a stream takes from a sample.
"""

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import Event, Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ..errors import HELPER_LOST, HelperLost, UserError, is_lost_helper
from ..parallel import cores
from ..text import tell
from .image_set import Images, Records
from .images.decode import Unreadable
from .images.format import as_picture
from .sources.source import Source
from .transforms.resample import resize_to_square
from .transforms.view import Augment

T = TypeVar("T")
SHARED = "/dev/shm"


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
        squeezed = [resize_to_square(picture.pixels, self.size) for picture in pictures]
        pixels = [torch.from_numpy(image).permute(2, 0, 1) for image in squeezed]
        sizes = torch.tensor([[picture.height, picture.width] for picture in pictures])
        return [augment.cut(pixels, sizes, table) for augment, table in zip(augments, u, strict=True)]


def helpers(wanted: int | None, needed: bool) -> int:
    """Worker processes: as many as wanted; by default none, or where they are needed one a core, up to eight."""
    if wanted is not None:
        return wanted
    return min(cores(), 8) if needed else 0


@dataclass(frozen=True)
class _Pickled:
    """A value as bytes, which a pipe takes where shared memory has no room for it."""

    content: bytes


class _Steps(Dataset[T | UserError | _Pickled]):
    """A worker's value for a key, or a UserError, which torch would rebuild without its kind.

    Tensors are put into shared memory here. Left to the DataLoader, that would fail in a thread of the worker, of which
    the process that waits for it never hears.
    """

    def __init__(self, produce: Callable[[Any], T]) -> None:
        self.produce = produce
        self.shares: bool | None = None  # whether this process can; unknown before its first value

    def __getitem__(self, key: Any) -> T | UserError | _Pickled:
        try:
            value = self.produce(key)
        except UserError as error:
            return error
        if get_worker_info() is None or self._shared(value):
            return value
        return _Pickled(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def _shared(self, value: Any) -> bool:
        """Put the tensors of a value into shared memory. Returns: whether there was room, and a way to hand them on."""
        try:
            if self.shares is None:
                self.shares = False
                ForkingPickler.dumps(torch.zeros(1))  # needs a socket in the temporary folder, once
                self.shares = True
            if self.shares:
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, Tensor):
                        part.share_memory_()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError):  # torch's is "unable to allocate shared memory"
            return False
        return self.shares


def ahead(produce: Callable[[Any], T], keys: Iterable[Any], workers: int) -> Iterator[T]:
    """`produce(key)` for each key in order, computed ahead by worker processes of one thread each; 0 compute here.

    Where shared memory has no room for values, they come through pipes, and where no process can be started they are
    computed here. Both take longer, which is said, and change nothing else.

    Raises: UserError if a worker was killed.
    """

    def results(workers: int) -> Iterator[T | UserError | _Pickled]:
        # A generator of its own: a DataLoader draws a seed for its workers, which must not move the global stream.
        generator = torch.Generator()
        return iter(DataLoader(_Steps(produce), None, sampler=keys, num_workers=workers, generator=generator))

    slow = ""
    try:
        if workers:
            _ = [Queue() for _ in range(workers + 1)], Event()  # as a DataLoader will, which is untidy where it fails
        values = results(workers)
    except OSError as error:  # no room for the locks of processes, or for the processes
        values = results(0)
        slow = f"no processes to read images ahead ({error.strerror or error}), so this one does"
    try:
        for value in values:
            if isinstance(value, UserError):
                raise value
            if isinstance(value, _Pickled):
                value = cast("T", pickle.loads(value.content))
                slow = slow or f"images that are read ahead come through pipes, as {SHARED} has no room for them"
            if slow:
                _tell_once(slow)
            yield value
    except RuntimeError as error:
        if is_lost_helper(error):
            raise HelperLost(f"{HELPER_LOST} and try again") from error
        raise


@cache
def _tell_once(slow: str) -> None:
    """Say what makes a training slow, and what would help."""
    room = ""
    with suppress(OSError):
        room = f" ({SHARED}: {shutil.disk_usage(SHARED).total / 2**20:.3g} MB)"
    tell(f"note     {slow}{room}; it takes longer; docker run --shm-size 2g, or a larger {SHARED}, makes it fast again")
