# SPDX-License-Identifier: Apache-2.0
"""Costs that must grow as the work does, measured at two sizes or more."""

from typing import NamedTuple


class Row(NamedTuple):
    """One measurement.

    Args:
        what: what was done, in a few words.
        size: how many files, images or cells it was done for.
        seconds: of processor time, all processes together; of this machine's clock nothing is reported.
        megabytes: largest memory held meanwhile, 10^6 bytes; 0 where it was not measured.
    """

    what: str
    size: int
    seconds: float
    megabytes: float
