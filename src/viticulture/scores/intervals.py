# SPDX-License-Identifier: Apache-2.0
"""Uncertainty of a metric over images: intervals by bootstrap, and values indistinguishable from the best."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor

ENDS = (2.5, 97.5)  # percentiles of a 95 % interval
REPLICATES = 1000
ACCURACIES = ("accuracy", "balanced_accuracy")  # measures that are shares of images, whose standard error is known


def centered(drawn: NDArray[np.float64], value: float) -> NDArray[np.float64]:
    """A number's values over such draws, [draws], without their bias: their mean is the number itself, `value`.

    A draw holds some images twice and others never. So average precision rises in it, and a mean over classes falls
    where it lacks the images of a rare class that is said elsewhere, by much where few images show a class. The bias is
    taken off (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 10).
    """
    return drawn + (value - drawn.mean())


def interval_of(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the 95 % interval of a number in [0, 1], from its values over such draws, [draws]."""
    low, high = np.clip(np.percentile(drawn, ENDS), 0, 1).tolist()
    return low, high


def times_drawn(images: int) -> NDArray[np.float64]:
    """Return how often each of `REPLICATES` draws holds each image, [draws, images]; the same draws every time."""
    draws = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), size=REPLICATES)
    return draws.astype(np.float64)


def means_of_known(each: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over the classes that such draws hold, [draws, C] -> [draws], NaN being a class that a draw does not hold;
    one that holds none has the mean of the others, 0 where none holds any."""
    classes = (~np.isnan(each)).sum(1)
    means, present = np.nansum(each, 1) / np.maximum(classes, 1), classes > 0
    return np.where(present, means, means[present].mean() if present.any() else 0.0)


def wilson(right: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share `right / images`; it stays inside [0, 1] and has a width at 0 and 1.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927, 22(158).
    """
    low, high = binomtest(right, images).proportion_ci(0.95, method="wilson")
    return float(low), float(high)


def error_of_recalls(right: Tensor, totals: Tensor) -> float:
    """Compute the standard error of a balanced accuracy, the mean of recalls r_c of n_c images each.

        sqrt(sum over c of r_c (1 - r_c) / n_c) / C

    Args:
        right: [C] images of each class that are classified correctly.
        totals: [C] images of each class; a class without any has no recall.
    """
    right, totals = right.cpu(), totals.cpu()  # an Apple GPU has no float64
    present = totals > 0
    recalls, images = right[present].double() / totals[present], totals[present].double()
    return float((recalls * (1 - recalls) / images).sum().sqrt() / len(images))


def indistinct(measure: str, best: float, images: int) -> float:
    """Return how far a metric may lie below the best and still count as equal: an accuracy's standard error, or 0.
    `best`: the highest value, in [0, 1] for an accuracy. `images`: that were measured; 0 if unknown.
    """
    present = measure in ACCURACIES and images and 0 < best < 1  # a mean of rounded weights may exceed 1
    return sqrt(best * (1 - best) / images) if present else 0.0
