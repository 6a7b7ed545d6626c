# SPDX-License-Identifier: Apache-2.0
"""Memory that a step gives back is kept for the next one.

glibc asks the system for every large piece of memory anew and returns it as soon as it is free, and the system hands
out pages of zeros one fault after the other. A training step needs the same activations as the step before it; without
this, 3 to 9 % of a CPU's time goes into such faults, and a third where activations exceed 32 MB (LOG.md). No number
changes.
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
NEVER = -1
LARGEST = 1 << 30
"""Bytes from which memory still comes from the system and goes back to it, such as a store of images."""
LARGEST_OF_OLD = 32 << 20
"""The same where glibc (before 2.35) allows no more."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process, up to pieces of `LARGEST` bytes. False where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_THRESHOLD, LARGEST_OF_OLD)) and bool(
        mallopt(TRIM_THRESHOLD, NEVER)
    )
