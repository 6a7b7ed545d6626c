# SPDX-License-Identifier: Apache-2.0
"""Threads, one per processor core."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Progress = Callable[[int, int], None]  # called with the number of finished items and of all items

CHUNK = 32  # items per thread and call
_T = TypeVar("_T")


def cores() -> int:
    """Return the number of processor cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(
    work: Callable[[int], _T], items: Sequence[int], progress: Progress | None = None, threads: int | None = None
) -> Iterator[_T]:
    """Yield the results of `work` in the order of the items, computed by threads slightly ahead."""
    threads = threads or cores()
    parts = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    waiting: deque[Future[list[_T]]] = deque()
    done = 0
    pool = ThreadPoolExecutor(threads)
    try:
        for number in range(len(parts) + 2 * threads):
            if number < len(parts):
                waiting.append(pool.submit(lambda part: [work(i) for i in part], parts[number]))
            if number >= 2 * threads and waiting:
                results = waiting.popleft().result()
                yield from results
                done += len(results)
                if progress is not None:
                    progress(done, len(items))
    finally:
        pool.shutdown(cancel_futures=True)
