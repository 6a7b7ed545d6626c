# SPDX-License-Identifier: Apache-2.0
"""Memory that a step gives back is kept for the next one.

glibc asks the system for every large piece of memory anew and returns it as soon as it is free, and the system hands
out pages of zeros one fault after the other. A training step needs the same activations as the step before it; without
this, 3 to 9 % of a CPU's time goes into such faults, and a third where activations exceed 32 MB (LOG.md). No number
changes.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD, PERTURB = -1, -3, -6  # names of glibc's malloc.h
NEVER = -1
LARGEST = 1 << 30
"""Bytes from which memory still comes from the system and goes back to it, such as a store of images."""
LARGEST_OF_OLD = 32 << 20
"""The same where glibc (before 2.35) allows no more."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process, up to pieces of `LARGEST` bytes. False where the C library is not glibc."""
    mallopt = _mallopt()
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_THRESHOLD, LARGEST_OF_OLD)) and bool(
        mallopt(TRIM_THRESHOLD, NEVER)
    )


@contextmanager
def filled_memory(byte: int) -> Iterator[None]:
    """Fill all memory that is allocated in the block with a byte; as it is where the C library is not glibc."""
    mallopt = _mallopt()
    if mallopt is None:
        yield
        return
    mallopt(PERTURB, byte ^ 0x1FF)  # glibc fills with the complement of the last eight bits, and with nothing for 0
    try:
        yield
    finally:
        mallopt(PERTURB, int(os.environ.get("MALLOC_PERTURB_", 0)))


def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's function that tunes its allocator; None where the C library is another."""
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
