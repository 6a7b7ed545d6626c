# SPDX-License-Identifier: Apache-2.0
"""Weakly supervised localization: boxes around high attention of a student trained on classes alone. MaxBoxAcc [1].

    scores = score_maps(readings.class_attention, (H, W))               # [B, H, W], in [0, 1]
    ious = np.stack([best_overlaps(score, true) for score, true in zip(scores.numpy(), true_boxes)])
    max_box_accuracy(ious[:, 0])                                    # MaxBoxAcc
    max_box_accuracy(ious[:, 1]).mean                               # MaxBoxAccV2

Two protocols. PUBLISHED is the authors' [1]: a whole image is resized to the network's input, scores are rounded down
to 256 steps, there are 1,000 thresholds, and a mask holds the scores above one. AS_EVALUATED uses the crop of the run's
evaluation, does not round, and has 100 thresholds; a mask holds the scores from one up, as in the paper's formula.

Remaining deviations from the authors' code: images are resized by a bicubic filter from the cache, not by PIL's
bilinear one; the largest part is that of most pixels, where theirs encloses the largest area, and holes are no parts;
boxes and overlaps are measured in edges, so that a box of one pixel has area 1; true boxes are not rounded to pixels.

[1] Choe et al., "Evaluating Weakly Supervised Object Localization Methods Right", CVPR 2020, arXiv:2001.07437; V2 in
    its extension arXiv:2007.04178.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from ...scores.objects import box_overlaps

Boxes = NDArray[np.float64]  # [n, 4]: left, top, right and bottom edge, pixels; a pixel in the corner is 0, 0, 1, 1

OVERLAPS = (0.3, 0.5, 0.7)  # minimum intersections over unions of a correct box [1]

THRESHOLDS = np.linspace(0, 0.99, 100)  # of AS_EVALUATED


@dataclass(frozen=True, eq=False)
class Protocol:
    """Preparation of an image, and masks from its scores."""

    name: str
    whole: bool  # use the whole image, resized, rather than the crop of the run's evaluation
    thresholds: NDArray[np.float64]  # [n] scores in [0, 1); the best for the whole set counts
    # Scores and thresholds are rounded down to multiples of 1 / steps, and a mask holds what lies above; 0 rounds
    # nothing, and a mask also holds the threshold itself.
    steps: int = 0

    def levels(self, score: NDArray[np.floating]) -> NDArray[np.floating]:
        """Round scores."""
        return np.floor(score * self.steps) if self.steps else score

    @property
    def cuts(self) -> NDArray[np.float64]:
        """[n] lowest levels inside the masks of the thresholds."""
        return np.floor(self.thresholds * self.steps) + 1 if self.steps else self.thresholds


PUBLISHED = Protocol("published", True, np.arange(1000) / 1000, 255)
AS_EVALUATED = Protocol("evaluation", False, THRESHOLDS)
PROTOCOLS = {protocol.name: protocol for protocol in (PUBLISHED, AS_EVALUATED)}

_TOUCHING = np.ones((3, 3), dtype=bool)  # corners touch


@dataclass(frozen=True)
class BoxAccuracy:
    """Share of images with a correct box, for each overlap with the threshold that is best for the set."""

    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the overlaps."""
        return sum(self.accuracies) / len(self.accuracies)


def score_maps(maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Average all layers' and heads' maps, resized bicubically, min-max normalized per image.

    Each map is scaled to mean 1 over its grid first, so that a coarse one, whose softmax has fewer patches, does not
    have more weight than a fine one. If all maps have one size this changes nothing.

    Args:
        maps: one per layer, [B, h, rows, columns]; each map sums to 1.

    Returns: [B, H, W] float32 in [0, 1]; all 0 for a flat map.
    """
    heads = sum(layer.shape[1] for layer in maps)
    total = torch.zeros(len(maps[0]), 1, *size, device=maps[0].device)
    for layer in maps:
        density = layer.float().sum(1, keepdim=True) * layer.shape[-2] * layer.shape[-1]
        total += F.interpolate(density, size=size, mode="bicubic", align_corners=False)
    mean = total[:, 0] / heads
    low, high = mean.amin((1, 2), keepdim=True), mean.amax((1, 2), keepdim=True)
    flat = high - low < 1e-6  # rounding of a mean that is 1
    return torch.where(flat, 0.0, (mean - low) / torch.where(flat, 1.0, high - low))


def component_boxes(score: NDArray[np.floating], threshold: float) -> Boxes:
    """Return tight boxes around the connected parts of score >= threshold, the part of most pixels first.

    Returns: [n, 4], n = 0 without such pixels. Parts that touch at a corner are one; equals stay in reading order.
    """
    labels, count = ndimage.label(score >= threshold, _TOUCHING)
    pixels = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    edges = [
        (columns.start, rows.start, columns.stop, rows.stop) for rows, columns in ndimage.find_objects(labels, count)
    ]
    boxes: Boxes = np.array(edges, dtype=np.float64).reshape(count, 4)
    return boxes[np.argsort(-pixels, kind="stable")]


def best_overlaps(score: NDArray[np.floating], true: Boxes, protocol: Protocol = PUBLISHED) -> NDArray[np.float64]:
    """Compute the best overlap of a score map's boxes with any of an image's true boxes, at every threshold.

    Args:
        score: [H, W] in [0, 1].
        true: [m, 4], m >= 1, pixels of the score map.

    Returns: [2, n]; row 0: of the largest part's box (MaxBoxAcc), row 1: the best of all parts' (MaxBoxAccV2). 0 where
        no pixel lies above a threshold.
    """
    levels, (cuts, places) = protocol.levels(score), np.unique(protocol.cuts, return_inverse=True)
    overlaps = np.zeros((2, len(cuts)))
    for number, cut in enumerate(cuts):
        boxes = component_boxes(levels, float(cut))
        if len(boxes):
            best = box_overlaps(boxes, true).max(1)
            overlaps[:, number] = best[0], best.max()
    return overlaps[:, places]


def max_box_accuracy(ious: NDArray[np.float64], thresholds: NDArray[np.float64] = PUBLISHED.thresholds) -> BoxAccuracy:
    """Compute MaxBoxAcc(d) = max over t of the share of images with IoU(box at t, true box) >= d for d in OVERLAPS:
    [1], Eq. (3) and (4).
    """
    accuracies = np.stack([(ious >= overlap).mean(0) for overlap in OVERLAPS])  # [overlaps, n]
    best = accuracies.argmax(1)
    return BoxAccuracy(tuple(accuracies.max(1).tolist()), tuple(thresholds[best].tolist()))
