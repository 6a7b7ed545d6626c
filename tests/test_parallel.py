# SPDX-License-Identifier: Apache-2.0
"""Threads' results are in order."""

import time

import pytest

from viticulture.parallel import in_parallel


def test_results_keep_their_order_and_errors_are_raised() -> None:
    def work(i: int) -> int:
        time.sleep(0.002 * (i % 3))
        if i == 1000:
            raise ZeroDivisionError
        return i

    for count in (0, 1, 31, 32, 33, 200):
        assert list(in_parallel(work, range(count))) == list(range(count))
    with pytest.raises(ZeroDivisionError):
        list(in_parallel(work, [1, 1000]))
