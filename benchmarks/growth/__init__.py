# SPDX-License-Identifier: Apache-2.0
"""Costs that must grow as the work does, measured at two sizes or more."""

from typing import NamedTuple


class Row(NamedTuple):
    """One measurement.

    Args:
        what: what was done, in a few words.
        size: how many files, images or cells it was done for.
        seconds: of processor time, all processes together.
        megabytes: largest memory held meanwhile, 10^6 bytes; 0 where it was not measured.
        wall: seconds by the clock, which other work on the machine disturbs; 0 where it was not measured.
    """

    what: str
    size: int
    seconds: float
    megabytes: float
    wall: float = 0.0
