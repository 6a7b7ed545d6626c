# SPDX-License-Identifier: Apache-2.0
"""Every number that is told of a segmenter: intersection over union by class, pixels that are right, confusion."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...data.targets.objects import Masked
from ...scores.intervals import centered, interval_of
from ...scores.pixels import class_ious, confusion, mean_iou, resampled, right_share


@dataclass(frozen=True)
class ClassIoU:
    """One class: its name, its true pixels, its IoU in [0, 1] (None where it occurs nowhere)."""

    name: str
    pixels: int
    iou: float | None


@dataclass(frozen=True)
class PixelsEvaluation:
    """What a segmenter does on one split, judged in the size of the masks; shares in [0, 1].

    Args:
        images: how many were judged.
        miou: mean IoU of the classes that occur, over the pixels of all images.
        interval: 95 % interval of `miou` over images (not over seeds), by bootstrap.
        accuracy: share of the labeled pixels that are right.
        per_class: in the order of the classes.
        baselines: what needs no learning -> mIoU: the most frequent class of the training pixels everywhere.
        confusion: [C, C] pixels by true class (row) and said class (column).
        resampled: `miou` over images drawn with replacement, see `objects.Precisions`.
    """

    images: int
    miou: float
    interval: tuple[float, float]
    accuracy: float
    per_class: tuple[ClassIoU, ...]
    baselines: dict[str, float | None]
    confusion: tuple[tuple[int, ...], ...] = field(repr=False, default=())
    resampled: tuple[float, ...] = field(repr=False, default=())

    @property
    def score(self) -> float:
        """The number that counts: mIoU."""
        return self.miou

    @property
    def measures(self) -> dict[str, float | None]:
        """What segmenters can be compared by; the first counts."""
        return {"miou": self.miou, "pixels": self.accuracy}


def evaluate_pixels(
    predicted: Iterable[NDArray[np.uint8]], true: Masked, classes: Sequence[str], frequent: int | None
) -> tuple[PixelsEvaluation, NDArray[np.float64]]:
    """Judge what was said of N images.

    Args:
        predicted: [H, W] classes, one an image.
        true: its masks, in the same order.
        classes: their names.
        frequent: the most frequent class of the training pixels; None leaves that baseline out.

    Returns: the numbers, and the mIoU of each image by itself, [N].
    """
    counts = np.stack([confusion(each, true.original(i), len(classes)) for i, each in enumerate(predicted)])
    total = counts.sum(0)
    baselines: dict[str, float | None] = {}
    if frequent is not None:
        always = np.zeros_like(total)
        always[:, frequent] = total.sum(1)
        baselines[f"{classes[frequent]} everywhere"] = mean_iou(always)
    miou = mean_iou(total)
    drawn = centered(resampled(counts), miou)
    shares = [None if np.isnan(share) else float(share) for share in class_ious(total)]
    evaluation = PixelsEvaluation(
        images=len(counts),
        miou=miou,
        interval=interval_of(drawn),
        accuracy=right_share(total),
        per_class=tuple(map(ClassIoU, classes, total.sum(1).tolist(), shares)),
        baselines=baselines,
        confusion=tuple(tuple(row) for row in total.tolist()),
        resampled=tuple(drawn.round(6).tolist()),
    )
    return evaluation, np.array([mean_iou(each) for each in counts])
