# SPDX-License-Identifier: Apache-2.0
"""How long a step takes, for the benchmarks beside it."""

import time
from collections.abc import Callable

import torch


def measure(step: Callable[[], object]) -> tuple[float, float]:
    """Wall clock and processor time of one step, seconds; a GPU in use is waited for."""
    wall, core = time.perf_counter(), time.process_time()
    step()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - core
