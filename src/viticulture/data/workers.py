# SPDX-License-Identifier: Apache-2.0
"""Values computed ahead of their use by worker processes."""

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import Event, Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ..errors import HELPER_LOST, HelperLost, UserError, is_lost_helper
from ..parallel import cores
from ..text import log

T = TypeVar("T")
SHARED = "/dev/shm"


def worker_count(requested: int | None, needed: bool) -> int:
    """Number of workers: as requested; by default none, or where they are needed one a core, up to eight."""
    if requested is not None:
        return requested
    return min(cores(), 8) if needed else 0


@dataclass(frozen=True)
class _Pickled:
    """A value as bytes, for a pipe where shared memory is full."""

    content: bytes


class _Results(Dataset[T | UserError | _Pickled]):
    """A worker's value for a key, or a UserError, which torch would rebuild without its type.

    Tensors are put into shared memory here. Left to the DataLoader, that would fail in a thread of the worker, and the
    main process would wait forever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.can_share: bool | None = None  # unknown before this process's first value

    def __getitem__(self, key: Any) -> T | UserError | _Pickled:
        try:
            value = self.compute(key)
        except UserError as error:
            return error
        if get_worker_info() is None or self._shared(value):
            return value
        return _Pickled(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def _shared(self, value: Any) -> bool:
        """Put the tensors of a value into shared memory. Returns: False where there is no room, or no way to pass them
        on."""
        try:
            if self.can_share is None:
                self.can_share = False
                ForkingPickler.dumps(torch.zeros(1))  # needs a socket in the temporary folder, once
                self.can_share = True
            if self.can_share:
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, Tensor):
                        part.share_memory_()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError):  # torch's is "unable to allocate shared memory"
            return False
        return self.can_share


def ahead(compute: Callable[[Any], T], keys: Iterable[Any], workers: int) -> Iterator[T]:
    """Yield `compute(key)` for each key in order, computed ahead by worker processes of one thread each.

    With 0 workers, and where no process can be started, values are computed here. Where shared memory is full, they
    come through pipes. Both take longer, which is logged, and change nothing else.

    Raises: UserError if a worker was killed.
    """

    def results(workers: int) -> Iterator[T | UserError | _Pickled]:
        # A separate generator: a DataLoader draws a seed for its workers, which must not advance the global stream.
        generator = torch.Generator()
        return iter(DataLoader(_Results(compute), None, sampler=keys, num_workers=workers, generator=generator))

    slow = ""
    try:
        if workers:
            _ = [Queue() for _ in range(workers + 1)], Event()  # fails here, as a DataLoader would, but cleanly
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
                _warn_once(slow)
            yield value
    except RuntimeError as error:
        if is_lost_helper(error):
            raise HelperLost(f"{HELPER_LOST} and try again") from error
        raise


@cache
def _warn_once(slow: str) -> None:
    """Say why a training is slow, and what would help."""
    space = ""
    with suppress(OSError):
        space = f" ({SHARED}: {shutil.disk_usage(SHARED).total / 2**20:.3g} MB)"
    log(f"note     {slow}{space}; it takes longer; docker run --shm-size 2g, or a larger {SHARED}, makes it fast again")
