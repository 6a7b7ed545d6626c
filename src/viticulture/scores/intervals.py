# SPDX-License-Identifier: Apache-2.0
"""From a number over images drawn with replacement to its interval."""

import numpy as np
from numpy.typing import NDArray

ENDS = (2.5, 97.5)  # percentiles of a 95 % interval


def interval_of(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the 95 % interval of a number, from its values over such draws, [draws]."""
    low, high = np.percentile(drawn, ENDS).tolist()
    return low, high
