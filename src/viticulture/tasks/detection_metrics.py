# SPDX-License-Identifier: Apache-2.0
"""The numbers of detection: average precision by class, size and overlap, curves and confusion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.targets.objects import Boxed, Objects
from ..data.targets.outlines import area, overlaps, run_lengths
from ..scores.intervals import centered, interval_of
from ..scores.objects import (
    AREAS,
    MOST,
    THRESHOLDS,
    Matches,
    Ranked,
    Strays,
    box_areas,
    box_overlaps,
    match,
    precision,
    ranked,
    recall,
    resampled,
)

BACKGROUND = "background"
HALF = 0.5


@dataclass(frozen=True, eq=False)
class DetectedObjects:
    """Objects detected in one image, most certain first."""

    boxes: NDArray[np.float32]  # [n, 4] float32 left, top, right, bottom, pixels of the original
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]  # [n] int64
    outlines: list[dict[str, object]] | None = None  # n masks as run lengths {size, counts}; None without masks


@dataclass(frozen=True)
class ClassPrecision:
    """One class; numbers without true objects are None."""

    name: str
    objects: int
    ap: float | None  # mean over overlaps of 0.5 to 0.95, in [0, 1]
    ap50: float | None  # at an overlap of 0.5
    recall: float | None  # share of its objects found among all detections, mean over the overlaps
    curve: tuple[float, ...] | None  # precision at an overlap of 0.5 at recalls of 0, 0.01, ..., 1


@dataclass(frozen=True)
class Precisions:
    """Average precision of boxes, or of masks; in [0, 1], None where there are no such objects."""

    ap: float | None  # COCO's: mean over classes and overlaps of 0.5 to 0.95
    ap50: float | None  # at an overlap of 0.5
    ap75: float | None
    interval: tuple[float, float]  # 95 % interval of `ap` over images (not over seeds), by bootstrap
    # "small" (up to 32x32 pixels), "medium" (up to 96x96), "large" -> AP of such objects.
    by_size: dict[str, float | None]
    by_overlap: tuple[float | None, ...]  # AP at overlaps of 0.5, 0.55, ..., 0.95
    per_class: tuple[ClassPrecision, ...]
    # `ap` over images drawn with replacement, by which two networks are compared on the same images.
    resampled: tuple[float, ...] = field(repr=False, default=())


@dataclass(frozen=True)
class DetectionResult:
    """The numbers of a detector on one split."""

    images: int
    objects: int
    boxes: Precisions
    masks: Precisions | None
    # Methods without training -> AP of their boxes: nothing, and the mean box of every class.
    baselines: dict[str, float | None]
    # Score from which a box counts; of a run's results it is chosen on validation images, see `best_threshold`.
    threshold: float
    # [C + 1, C + 1] boxes from that score on, by true class (row) and predicted class; background is last.
    confusion: tuple[tuple[int, ...], ...] = field(repr=False, default=())

    @property
    def score(self) -> float:
        """The number that counts: AP of boxes."""
        return self.boxes.ap or 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of `score`, see `Precisions`."""
        return self.boxes.interval

    @property
    def measures(self) -> dict[str, float | None]:
        """Numbers that detectors can be compared by; the first counts."""
        masks = {} if self.masks is None else {"ap_masks": self.masks.ap}
        return {"ap": self.score, "ap50": self.boxes.ap50, "ap75": self.boxes.ap75, **masks}

    @property
    def resampled(self) -> tuple[float, ...]:
        """`score` over images drawn with replacement."""
        return self.boxes.resampled


def evaluate_detections(
    detections: Sequence[DetectedObjects],
    true: Boxed,
    classes: Sequence[str],
    sizes: NDArray[np.int64],
    mean_boxes: Any = None,
    threshold: float | None = None,
) -> DetectionResult:
    """Compute the numbers of detections in N images.

    Args:
        sizes: [N, 2] height and width of the images, pixels.
        mean_boxes: of `mean_boxes`; None leaves that baseline out.
        threshold: score from which a box counts; None for the best of these images, which it then flatters.
    """
    masks = bool(true.masks) and any(each.outlines is not None for each in detections)
    by_box = _by_class(detections, true.objects, len(classes), _boxes, _box_areas)
    outlined = _by_class(detections, _sized(true.objects, sizes), len(classes), _masks, _mask_areas) if masks else None
    least = best_threshold(by_box) if threshold is None else threshold
    baselines: dict[str, float | None] = {"nothing": 0.0}
    if mean_boxes is not None:
        guessed = [mean_detections(mean_boxes, size) for size in sizes.tolist()]
        by_guess = _by_class(guessed, true.objects, len(classes), _boxes, _box_areas)
        baselines["the mean box"] = _mean([precision(ranks, areas=slice(0, 1)) for ranks in by_guess])
    return DetectionResult(
        images=len(detections),
        objects=sum(int((~objects.crowd).sum()) for objects in true.objects),
        boxes=_precisions(by_box, classes, len(detections)),
        masks=_precisions(outlined, classes, len(detections)) if outlined else None,
        baselines=baselines,
        threshold=least,
        confusion=confusion(detections, true.objects, len(classes), least),
    )


Match = Callable[[DetectedObjects, Objects, NDArray[np.bool_], NDArray[np.bool_]], Matches]


def _boxes(detections: DetectedObjects, true: Objects, ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> Matches:
    boxes, known = detections.boxes[ours].astype(np.float64), true.boxes.double().numpy()[theirs]
    crowd = true.crowd.numpy()[theirs]
    return match(
        detections.scores[ours].astype(np.float64),
        box_areas(boxes),
        box_areas(known) if true.areas is None else true.areas.numpy()[theirs],
        crowd,
        box_overlaps(boxes, known, crowd),
    )


def _masks(detections: DetectedObjects, true: Objects, ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> Matches:
    assert detections.outlines is not None
    outlines = [detections.outlines[i] for i in np.flatnonzero(ours)]
    height, width = true.size or (1, 1)
    shapes = true.shapes or ()
    known = [run_lengths(shapes[i], height, width) for i in np.flatnonzero(theirs)]
    crowd = true.crowd.numpy()[theirs]
    areas, drawn = (np.array([area(each) for each in group], dtype=np.float64) for group in (outlines, known))
    true_areas = drawn if true.areas is None else true.areas.numpy()[theirs]
    return match(
        detections.scores[ours].astype(np.float64), areas, true_areas, crowd, overlaps(outlines, known, crowd.tolist())
    )


def _box_areas(detections: DetectedObjects) -> NDArray[np.float64]:
    return box_areas(detections.boxes.astype(np.float64))


def _mask_areas(detections: DetectedObjects) -> NDArray[np.float64]:
    return np.array([area(each) for each in detections.outlines or ()], dtype=np.float64)


def _sized(objects: Sequence[Objects], sizes: NDArray[np.int64]) -> list[Objects]:
    return [replace(each, size=(int(h), int(w))) for each, (h, w) in zip(objects, sizes.tolist(), strict=True)]


def _by_class(
    detections: Sequence[DetectedObjects],
    true: Sequence[Objects],
    classes: int,
    matcher: Match,
    areas: Callable[[DetectedObjects], Any],
) -> list[Ranked]:
    """Match every class's detections in all images."""
    matches: list[dict[int, Matches]] = [{} for _ in range(classes)]
    alone: list[NDArray[np.bool_]] = []
    for number, (each, objects) in enumerate(zip(detections, true, strict=True)):
        labels = objects.labels.numpy()
        alone.append(~np.isin(each.labels, labels) & (len(each.labels) <= MOST))
        for label in {*each.labels[~alone[-1]].tolist(), *labels.tolist()}:
            matches[label][number] = matcher(each, objects, each.labels == label, labels == label)
    images = np.repeat(np.arange(len(detections)), [rows.sum() for rows in alone])
    label, score, area = (
        np.concatenate([np.zeros(0), *(values(each)[rows] for each, rows in zip(detections, alone, strict=True))])
        for values in (lambda each: each.labels, lambda each: each.scores, areas)
    )
    return [
        ranked(matches[c], len(detections), Strays(images[label == c], score[label == c], area[label == c]))
        for c in range(classes)
    ]


def _precisions(classes: Sequence[Ranked], names: Sequence[str], images: int) -> Precisions:
    each = [precision(ranks) for ranks in classes]  # [A, T, 101]
    recalls = [recall(ranks)[0] for ranks in classes]
    sizes, ap = list(AREAS), _mean([shares[:1] for shares in each])
    drawn = centered(resampled(classes, images), ap or 0.0)
    return Precisions(
        ap=ap,
        ap50=_mean([shares[:1, :1] for shares in each]),
        ap75=_mean([shares[:1, np.isclose(THRESHOLDS, 0.75)] for shares in each]),
        interval=interval_of(drawn),
        by_size={size: _mean([shares[sizes.index(size)] for shares in each]) for size in sizes[1:]},
        by_overlap=tuple(_mean([shares[:1, t] for shares in each]) for t in range(len(THRESHOLDS))),
        per_class=tuple(
            ClassPrecision(
                name,
                int(ranks.true[:, 0].sum()),
                _mean([shares[:1]]),
                _mean([shares[:1, :1]]),
                None if np.isnan(reached).all() else float(reached.mean()),
                None if np.isnan(shares[0, 0]).all() else tuple(round(float(value), 4) for value in shares[0, 0]),
            )
            for name, ranks, shares, reached in zip(names, classes, each, recalls, strict=True)
        ),
        resampled=tuple(drawn.round(6).tolist()),
    )


def _mean(shares: Sequence[NDArray[np.float64]]) -> float | None:
    """Average over classes that have true objects."""
    values = [float(each.mean()) for each in shares if not np.isnan(each).any()]
    return float(np.mean(values)) if values else None


def best_threshold(classes: Sequence[Ranked]) -> float:
    """The score from which on F1 over all classes is highest, at an overlap of 0.5; one half where nothing is right.

    Equal scores count together, as boxes from a score on do.
    """
    scores = np.concatenate([ranks.scores for ranks in classes])
    right = np.concatenate([ranks.right[0, 0] for ranks in classes])
    wrong = np.concatenate([ranks.wrong[0, 0] for ranks in classes])
    true = sum(int(ranks.true[:, 0].sum()) for ranks in classes)
    if not right.any():
        return HALF
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=-1.0))  # of each score
    hits, misses = np.cumsum(right[order])[last], np.cumsum(wrong[order])[last]
    return float(scores[order][last][np.argmax(2 * hits / (hits + misses + true))])


def pairs(detections: DetectedObjects, true: Objects, threshold: float) -> tuple[dict[int, int], list[int], list[int]]:
    """Match boxes of an image to objects, whatever their classes: each takes the free one that it overlaps most.
    `true`: M objects; crowds take any number of boxes and are never missed. Returns: numbers of box -> object where
    they overlap by half at least; boxes that are none; objects that are missed.
    """
    counted = np.flatnonzero(detections.scores >= threshold)
    crowd = true.crowd.numpy()
    shares = box_overlaps(detections.boxes.astype(np.float64), true.boxes.double().numpy(), crowd)
    taken: dict[int, int] = {}
    over: list[int] = []
    free = dict.fromkeys(np.flatnonzero(~crowd).tolist())  # an ordered set
    for box in counted.tolist():
        best = max(free, key=lambda i: (shares[box, i], -i), default=-1)
        if best >= 0 and shares[box, best] >= HALF:
            taken[box] = best
            del free[best]
        elif not (crowd & (shares[box] >= HALF)).any():
            over.append(box)
    return taken, over, list(free)


def confusion(
    detections: Sequence[DetectedObjects], true: Sequence[Objects], classes: int, threshold: float
) -> tuple[tuple[int, ...], ...]:
    """Count boxes by true class (row) and predicted class (column); the last row and column are background."""
    cells = np.zeros((classes + 1, classes + 1), np.int64)
    for each, objects in zip(detections, true, strict=True):
        taken, over, missed = pairs(each, objects, threshold)
        for box, i in taken.items():
            cells[int(objects.labels[i]), each.labels[box]] += 1
        for box in over:
            cells[classes, each.labels[box]] += 1
        for i in missed:
            cells[int(objects.labels[i]), classes] += 1
    return tuple(tuple(row) for row in cells.tolist())


def mean_boxes(true: Boxed, sizes: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """The mean box of every class in shares of the image, and the share of images that have it, [C, 5]; NaN without."""
    rows = np.full((classes, 5), np.nan)
    scaled = [o.boxes.double().numpy() / np.tile(size[::-1], 2) for o, size in zip(true.objects, sizes, strict=True)]
    labels = [objects.labels.numpy() for objects in true.objects]
    for label in range(classes):
        boxes = [each[of == label] for each, of in zip(scaled, labels, strict=True) if (of == label).any()]
        if boxes:
            rows[label] = [*np.concatenate(boxes).mean(0), len(boxes) / len(labels)]
    return rows


def mean_detections(rows: NDArray[np.float64], size: Sequence[int]) -> DetectedObjects:
    """The mean boxes as detections in an image."""
    labels = np.flatnonzero(~np.isnan(rows[:, 0]))
    labels = labels[np.argsort(-rows[labels, 4], kind="stable")]
    boxes = rows[labels, :4] * np.tile(np.array(size)[::-1], 2)
    return DetectedObjects(boxes.astype(np.float32), rows[labels, 4].astype(np.float32), labels.astype(np.int64))
