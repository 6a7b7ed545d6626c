# SPDX-License-Identifier: Apache-2.0
"""Average precision of labels, F1 at thresholds, and the thresholds at which it is best.

AP_c = sum over k of (R_k - R_{k-1}) P_k,   over images by falling score for label c; equal scores are one step
mAP  = mean over the labels that some image shows
"""

import numpy as np
from numpy.typing import NDArray

from .intervals import REPLICATES, means_of_known, times_drawn

AT_ONCE = 100
UNDECIDED = 0.5  # threshold of a label that no validation image shows

Array = NDArray[np.float64]
Labels = NDArray[np.floating] | NDArray[np.bool_]  # [N, C], 1 where an image shows a label


def average_precisions(scores: NDArray[np.floating], truth: Labels) -> Array:
    """[N, C] -> [C], NaN for a label that no image shows."""
    return _drawn(scores, truth, np.ones((1, len(scores))))[0]


def mean_average_precision(scores: NDArray[np.floating], truth: Labels) -> float:
    """mAP in [0, 1]; 0 where no image shows any label."""
    precisions = average_precisions(scores, truth)
    return 0.0 if np.isnan(precisions).all() else float(np.nanmean(precisions))


def resampled(scores: NDArray[np.floating], truth: Labels) -> Array:
    """Return mAP over images drawn with replacement, [R]; the draws are the same for all networks."""
    parts = np.split(times_drawn(len(scores)), REPLICATES // AT_ONCE)
    return means_of_known(np.concatenate([_drawn(scores, truth, often) for often in parts]))


def best_thresholds(probabilities: NDArray[np.floating], truth: Labels) -> Array:
    """For each label the threshold with the highest F1, halfway between two images' probabilities: [N, C] -> [C].

    Of several the one next to one half; one half for a label that no image shows.
    """
    pairs = zip(probabilities.T.astype(np.float64), truth.T > 0, strict=True)
    return np.array([_best_threshold(some, true) for some, true in pairs])


def _best_threshold(probabilities: Array, truth: NDArray[np.bool_]) -> float:
    if not truth.any():
        return UNDECIDED
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    ends = np.flatnonzero(np.diff(ranked, append=-1.0))  # the last image of each probability
    f1 = 2 * np.cumsum(truth[order])[ends] / (ends + 1 + truth.sum())
    cuts = (ranked[ends] + np.append(ranked[ends[1:]], 0.0)) / 2
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(cuts[best[np.abs(cuts[best] - UNDECIDED).argmin()]])


def _drawn(scores: NDArray[np.floating], truth: Labels, often: Array) -> Array:
    """AP of every label where image i counts often[r, i] times: [R, N] -> [R, C]."""
    precisions = []
    for some, true in zip(scores.T, truth.T, strict=True):
        order = np.argsort(-some, kind="stable")
        ends = np.flatnonzero(np.diff(some[order], append=np.nan) != 0)
        predicted = np.cumsum(often[:, order], 1)[:, ends]
        right = np.cumsum(often[:, order] * (true[order] > 0), 1)[:, ends]
        steps = np.diff(right, axis=1, prepend=0) * right / np.maximum(predicted, 1)
        total = right[:, -1]
        precisions.append(np.where(total > 0, steps.sum(1) / np.maximum(total, 1), np.nan))
    return np.stack(precisions, 1)
