# SPDX-License-Identifier: Apache-2.0
"""Numbers of a segmenter: IoU of every class, their mean, and its interval over images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..data.targets.objects import Masked
from ..scores.intervals import centered, interval_of
from ..scores.pixels import class_ious, confusion, mean_iou, resampled, right_share


@dataclass(frozen=True)
class ClassIoU:
    """One class: its name, its true pixels, its IoU in [0, 1] (None where it occurs nowhere)."""

    name: str
    pixels: int
    iou: float | None


@dataclass(frozen=True)
class SegmentationResult:
    """The numbers of a segmenter on one split, in the size of the masks; shares in [0, 1]."""

    images: int
    miou: float  # mean IoU of the classes that occur, over the pixels of all images
    interval: tuple[float, float]  # 95 % interval of `miou` over images (not over seeds), by bootstrap
    accuracy: float  # share of the labeled pixels that are right
    per_class: tuple[ClassIoU, ...]
    # Methods without training -> mIoU: the most frequent class of the training pixels everywhere.
    baselines: dict[str, float | None]
    # [C, C] pixels by true class (row) and predicted class (column).
    confusion: tuple[tuple[int, ...], ...] = field(repr=False, default=())
    # `miou` over images drawn with replacement, see `intervals.centered`.
    resampled: tuple[float, ...] = field(repr=False, default=())

    @property
    def score(self) -> float:
        """The number that counts: mIoU."""
        return self.miou

    @property
    def measures(self) -> dict[str, float | None]:
        """Numbers that segmenters can be compared by; the first counts."""
        return {"miou": self.miou, "pixels": self.accuracy}


def evaluate_pixels(
    predicted: Iterable[NDArray[np.uint8]], true: Masked, classes: Sequence[str], frequent: int | None
) -> tuple[SegmentationResult, NDArray[np.float64]]:
    """Compute the numbers of predictions for N images.

    Args:
        predicted: [H, W] classes, one an image.
        frequent: the most frequent class of the training pixels; None leaves that baseline out.

    Returns: the numbers, and the mIoU of each image, [N].
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
    result = SegmentationResult(
        images=len(counts),
        miou=miou,
        interval=interval_of(drawn),
        accuracy=right_share(total),
        per_class=tuple(map(ClassIoU, classes, total.sum(1).tolist(), shares)),
        baselines=baselines,
        confusion=tuple(tuple(row) for row in total.tolist()),
        resampled=tuple(drawn.round(6).tolist()),
    )
    return result, np.array([mean_iou(each) for each in counts])
