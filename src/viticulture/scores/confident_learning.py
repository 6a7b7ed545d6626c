# SPDX-License-Identifier: Apache-2.0
"""Labels that are probably wrong, by predictions of a classifier that was not trained on them.

With the mean probability of class j over the images labeled j as its threshold, an image counts as class j where the
probability of j reaches the threshold of j, of several such classes the most probable. An image that counts as another
class than its label is suspected. Uneven classes, of which some are predicted with less confidence than others, have
thresholds of their own.

Source: Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels", JAIR 2021,
arXiv:1911.00068, Eqs. (1) and (2).
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def class_thresholds(probabilities: Array, labels: NDArray[np.int64]) -> Array:
    """Return the mean probability of each class over the images labeled so, [C]; infinite for a class without images.
    `probabilities`: [N, C], each image's by a classifier that was not trained on it. `labels`: [N], in [0, C).
    """
    N, C = probabilities.shape
    counts = np.bincount(labels, minlength=C)
    sums = np.bincount(labels, probabilities[np.arange(N), labels], minlength=C)
    return np.divide(sums, counts, out=np.full(C, np.inf), where=counts > 0)


def suspected(probabilities: Array, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each image counts as another class than its label, [N]. Arguments as for `class_thresholds`."""
    confident = probabilities >= class_thresholds(probabilities, labels)
    counted_as = np.where(confident, probabilities, -1).argmax(1)
    return confident.any(1) & (counted_as != labels)


def margins(probabilities: Array, labels: NDArray[np.int64]) -> Array:
    """Return how much more an image looks like its label than like any other class, [N]; the lowest are most doubtful.

        log(p_label / t_label) - max over other classes j of log(p_j / t_j)      t: thresholds

    Deviation: the paper's margin is a difference of probabilities. Ratios to the thresholds find labels flipped at
    random as well as those flipped to the most confused class (benchmarks/label_review.py).
    """
    thresholds = class_thresholds(probabilities, labels)
    ratios = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)) - np.log(thresholds)
    rows = np.arange(len(labels))
    of_label = ratios[rows, labels]
    ratios[rows, labels] = -np.inf
    return of_label - ratios.max(1)
