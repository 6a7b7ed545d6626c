# SPDX-License-Identifier: Apache-2.0
"""Intersection over union of classes of pixels, and the share of pixels that are right.

IoU_c = pixels that are c and said to be / pixels that are c or said to be,   over all images
mIoU  = mean over the classes that occur among either
"""

import numpy as np
from numpy.typing import NDArray

from .intervals import means_of_known, times_drawn

UNLABELED = 255
"""A true class that is none, of however many classes: `data.annotations.UNLABELED`, which scores do not know."""

Counts = NDArray[np.int64]  # [..., C, C] pixels by true class (row) and said class (column)


def confusion(predicted: NDArray[np.integer], true: NDArray[np.integer], classes: int) -> Counts:
    """Counts [C, C] of one image; pixels whose true class is none of the C are left out."""
    labeled = true < min(classes, UNLABELED)
    cells = true[labeled].astype(np.int64) * classes + predicted[labeled]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def class_ious(counts: Counts) -> NDArray[np.float64]:
    """[..., C, C] -> [..., C], NaN for classes that occur nowhere."""
    return _ious(np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(-1), counts.sum(-2))


def _ious(right: NDArray[np.integer], true: NDArray[np.integer], predicted: NDArray[np.integer]) -> NDArray[np.float64]:
    both = right.astype(np.float64)
    either = true + predicted - both
    return np.divide(both, either, out=np.full(both.shape, np.nan), where=either > 0)


def mean_iou(counts: Counts) -> float:
    """mIoU in [0, 1] of counts [C, C]; NaN without pixels."""
    shares = class_ious(counts)
    return float(np.nanmean(shares)) if not np.isnan(shares).all() else float("nan")


def right_share(counts: Counts) -> float:
    """Share of the pixels that are right; NaN without pixels."""
    total = counts.sum()
    return float(np.trace(counts) / total) if total else float("nan")


def resampled(counts: Counts) -> NDArray[np.float64]:
    """mIoU over images drawn with replacement, [R], from counts [N, C, C]; see `objects.resampled`."""
    draws = times_drawn(len(counts))
    sums = np.diagonal(counts, axis1=1, axis2=2), counts.sum(2), counts.sum(1)  # all that an IoU needs, [N, C] each
    return means_of_known(_ious(*((draws @ each).astype(np.int64) for each in sums)))
