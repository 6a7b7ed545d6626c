# SPDX-License-Identifier: Apache-2.0
"""Where an axis has its ticks."""

from collections.abc import Sequence
from math import ceil, floor, log10


def ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """Round numbers at least `least` apart, eight or fewer steps, from at most `low` to at least `high`."""
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = max(least, *(s for s in (power, 2 * power, 5 * power) if s <= rough * (1 + 1e-9)))
    return [step * i for i in range(floor(low / step + 1e-9), ceil(high / step - 1e-9) + 1)]


def span(values: Sequence[float]) -> list[float]:
    """Ticks around values, from zero where zero is near or all values are equal; four digits tell them apart."""
    low, high = min(values), max(values)
    if 0 < low <= 0.6 * high:
        low = 0.0
    if high - low <= 1e-9 * abs(high):
        low, high = min(low, 0.0), max(high, 0.0) or float(not low)
    return ticks(low, high, least=10.0 ** (floor(log10(max(abs(low), abs(high)))) - 3))


def log_ticks(low: float, high: float) -> list[float]:
    """Exponents of 1, 2, 5 times powers of ten, or of powers of ten alone where decades are many."""
    first, last = floor(low + 1e-9), ceil(high - 1e-9)
    last += first == last
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    marks = [e + log10(m) for e in range(first, last) for m in steps] + [float(last)]
    start = max(i for i, mark in enumerate(marks) if mark <= low + 1e-9)
    end = min(i for i, mark in enumerate(marks) if mark >= high - 1e-9)
    return marks[start : max(end, start + 1) + 1]
