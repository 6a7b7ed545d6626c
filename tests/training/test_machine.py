# SPDX-License-Identifier: Apache-2.0
"""Reuse of freed memory in a training."""

import ctypes
import resource
import sys

import pytest

from viticulture.training.machine import LARGEST_OF_OLD, keep_freed_memory

PIECE = 24 << 20
"""Bytes, less than every glibc keeps (`LARGEST_OF_OLD`) and more than it keeps unasked while several are in use."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's memory alone is kept")
def test_freed_memory_causes_no_page_faults() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library is not glibc")
    assert PIECE < LARGEST_OF_OLD
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]

    def step() -> None:
        pieces = [libc.malloc(PIECE) for _ in range(6)]
        for piece in pieces:
            ctypes.memset(piece, 1, PIECE)
        for piece in reversed(pieces):
            libc.free(piece)

    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < PIECE // resource.getpagesize(), "five steps ask for fewer new pages than one piece of one step has"
