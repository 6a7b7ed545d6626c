# SPDX-License-Identifier: Apache-2.0
"""One switch for all computations that have a fast form for CPUs next to their plain form (models/cpu/, optim/muon.py).

    with plain_kernels():
        ...                 # what papers and PyTorch compute, in their own operations

VITICULTURE_PLAIN_KERNELS=1 does the same for a whole process. Both forms are equal but for rounding and, of dropout,
for which random numbers are drawn.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_fast = os.environ.get("VITICULTURE_PLAIN_KERNELS", "") in ("", "0")


def fast_kernels() -> bool:
    """Return whether fast forms are used."""
    return _fast


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Use plain forms inside this context."""
    global _fast
    before, _fast = _fast, False
    try:
        yield
    finally:
        _fast = before
