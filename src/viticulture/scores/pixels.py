# SPDX-License-Identifier: Apache-2.0
"""Intersection over union of classes of pixels, and the share of pixels that are right.

IoU_c = pixels that are c and said to be / pixels that are c or said to be,   over all images
mIoU  = mean over the classes that occur among either
"""

import numpy as np
from numpy.typing import NDArray

REPLICATES = 1000

Counts = NDArray[np.int64]
"""[..., C, C] pixels by true class (row) and said class (column)."""


def confusion(said: NDArray[np.integer], true: NDArray[np.integer], classes: int) -> Counts:
    """Counts [C, C] of one image; pixels whose true class is none of the C are left out."""
    known = true < classes
    cells = true[known].astype(np.int64) * classes + said[known]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def class_ious(counts: Counts) -> NDArray[np.float64]:
    """[..., C, C] -> [..., C], NaN for classes that occur nowhere."""
    both = np.diagonal(counts, axis1=-2, axis2=-1).astype(np.float64)
    either = counts.sum(-1) + counts.sum(-2) - both
    return np.divide(both, either, out=np.full(both.shape, np.nan), where=either > 0)


def mean_iou(counts: Counts) -> float:
    """mIoU in [0, 1] of counts [C, C]; NaN without pixels."""
    shares = class_ious(counts)
    return float(np.nanmean(shares)) if not np.isnan(shares).all() else float("nan")


def right_share(counts: Counts) -> float:
    """Share of the pixels that are right; NaN without pixels."""
    total = counts.sum()
    return float(np.trace(counts) / total) if total else float("nan")


def resampled(counts: Counts, seed: int = 0) -> NDArray[np.float64]:
    """mIoU over images drawn with replacement, [R], from counts [N, C, C]; see `objects.resampled`."""
    generator, images = np.random.default_rng(seed), len(counts)
    flat = counts.reshape(images, -1).astype(np.float64)
    draws = generator.multinomial(images, np.full(images, 1 / images), size=REPLICATES)
    drawn = (draws @ flat).reshape(REPLICATES, *counts.shape[1:]).astype(np.int64)
    return np.array([mean_iou(each) for each in drawn])
