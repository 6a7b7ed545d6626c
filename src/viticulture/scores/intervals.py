# SPDX-License-Identifier: Apache-2.0
"""How sure a number over images is: intervals from draws with replacement, and what cannot be told from the best."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

ENDS = (2.5, 97.5)  # percentiles of a 95 % interval
ACCURACIES = ("accuracy", "balanced_accuracy")
"""Measures that are shares of images, whose standard error is known."""


def interval_of(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the 95 % interval of a number, from its values over such draws, [draws]."""
    low, high = np.percentile(drawn, ENDS).tolist()
    return low, high


def indistinct(measure: str, best: float, images: int) -> float:
    """By how much a measure may be below the best one of some images and not be told from it: a standard error of an
    accuracy, else nothing.

    Args:
        measure: its name.
        best: the highest value, in [0, 1] for an accuracy.
        images: that were measured; 0 where that is not known.
    """
    known = measure in ACCURACIES and images and 0 < best < 1  # a mean of rounded weights may exceed 1
    return sqrt(best * (1 - best) / images) if known else 0.0
