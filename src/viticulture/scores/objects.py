# SPDX-License-Identifier: Apache-2.0
"""Average precision of detections by COCO's rules, in numpy, from matches that are made once an image.

    match      detections of an image and class by falling score, 100 at most; each takes the free true object that it
               overlaps most, by at least the threshold; a crowd may be taken by many, and counts for nothing
    AP         mean of the precision at 101 recalls, each the best at that recall or a higher one; classes without
               true objects are left out
    sizes      true objects outside a range of areas, and detections outside it that take none, count for nothing

The numbers are pycocotools' (a test holds them together). A true object's area is what its list says, as a rule that of
its outline. Matches, not only their mean, are stored because an interval reweighs images a few hundred times, and
because a curve needs all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .intervals import means_of_known

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""Of objects, pixels of the original."""
LIMITS = np.array(list(AREAS.values()))
MOST = 100
REPLICATES = 200

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Matches:
    """Detections of one class in one image, by falling score. A: areas, T: thresholds."""

    scores: Array
    right: NDArray[np.bool_]  # [A, T, n] bool, whether it took a true object
    apart: NDArray[np.bool_]  # [A, T, n] bool, whether it counts for nothing
    true: NDArray[np.int64]  # [A] int64, true objects that count


def box_overlaps(detected: Array, true: Array, crowd: NDArray[np.bool_] | bool = False) -> Array:
    """Intersection over union of boxes [n, 4] and [m, 4], [n, m]; with a crowd, the share of the found one in it."""
    low, high = (
        np.maximum(detected[:, None, :2], true[None, :, :2]),
        np.minimum(detected[:, None, 2:], true[None, :, 2:]),
    )
    shared = np.clip(high - low, 0, None).prod(2)
    areas = box_areas(detected)[:, None]
    union = np.where(crowd, areas, areas + box_areas(true) - shared)
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def box_areas(boxes: Array) -> Array:
    """[n, 4] -> [n], pixels."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _outside(areas: Array) -> NDArray[np.bool_]:
    """Test whether areas [n] lie outside each of `AREAS`, [A, 1, n]."""
    return ((areas < LIMITS[:, :1]) | (areas > LIMITS[:, 1:]))[:, None]


def match(scores: Array, areas: Array, true_areas: Array, crowd: NDArray[np.bool_], overlap: Array) -> Matches:
    """Match detections of one class in one image.

    Args:
        areas: [n] of the detections.
        true_areas: [m] of the true objects.
        crowd: [m] which of them are crowds.
        overlap: [n, m].
    """
    order = np.argsort(-scores, kind="stable")[:MOST]
    overlap, areas, scores = overlap[order], areas[order], scores[order]
    shape = len(AREAS), len(THRESHOLDS), len(order)
    right, apart = np.zeros(shape, bool), np.zeros(shape, bool)
    true = np.zeros(len(AREAS), np.int64)
    if not len(true_areas):
        return Matches(scores, right, right | _outside(areas), true)
    for number, (low, high) in enumerate(AREAS.values()):
        ignored = crowd | (true_areas < low) | (true_areas > high)
        true[number] = (~ignored).sum()
        if number and (true[number] == true[0] or (not true[number] and not crowd.any())):
            right[number] = right[0]  # those that count are the same; or none does, which changes nothing of who takes
            apart[number] = apart[0] if true[number] == true[0] else right[0]
        else:
            right[number], apart[number] = _match(overlap, ignored, crowd)
        apart[number] |= ~right[number] & ((areas < low) | (areas > high))
    return Matches(scores, right, apart, true)


def _match(
    overlap: Array, ignored: NDArray[np.bool_], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which detections match an object [T, n], and which of these one that counts for nothing."""
    count, objects = overlap.shape
    right, apart = np.zeros((len(THRESHOLDS), count), bool), np.zeros((len(THRESHOLDS), count), bool)
    if not objects:
        return right, apart
    free = np.ones((len(THRESHOLDS), objects), bool)
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    rows = np.arange(len(THRESHOLDS))
    for number in range(count):
        if overlap[number].max() < least[0, 0]:
            continue
        fits = (overlap[number] >= least) & (free | crowd)
        counting = fits & ~ignored
        fits = np.where(counting.any(1, keepdims=True), counting, fits)  # those that count come first
        shares = np.where(fits, overlap[number], -1.0)
        best = objects - 1 - shares[:, ::-1].argmax(1)  # of equals the last, as COCO's loop
        taken = fits.any(1)
        right[:, number], apart[:, number] = taken, taken & ignored[best]
        free[rows[taken], best[taken]] = False
    return right, apart


@dataclass(frozen=True, eq=False)
class Ranked:
    """Detections of one class in all images, by falling score."""

    scores: Array
    images: NDArray[np.int64]  # [n] int64, the image of each
    right: NDArray[np.bool_]  # [A, T, n] bool, counting ones alone
    wrong: NDArray[np.bool_]
    true: NDArray[np.int64]  # [N, A] int64, true objects that count, of each image


@dataclass(frozen=True, eq=False)
class Strays:
    """Detections of one class in images without a true object of it: as a rule most of all, hence evaluated at once."""

    images: NDArray[np.int64]  # [n] int64, the image of each; at most `MOST` of one image
    scores: Array
    areas: Array  # [n], pixels


def ranked(matches: Mapping[int, Matches], images: int, strays: Strays | None = None) -> Ranked:
    """Matches of one class by image, of so many images in all, and detections in other images, as one list."""
    others = strays or Strays(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    places = sorted(matches)
    wrong = np.zeros((len(AREAS), len(THRESHOLDS), len(others.scores)), bool)
    scores = np.concatenate([others.scores, *(matches[i].scores for i in places)])
    owner = np.concatenate([others.images, *(np.full(len(matches[i].scores), i) for i in places)])
    right = np.concatenate([wrong, *(matches[i].right for i in places)], axis=2)
    apart = np.concatenate([wrong | _outside(others.areas), *(matches[i].apart for i in places)], axis=2)
    true = np.zeros((images, len(AREAS)), np.int64)
    for i in places:
        true[i] = matches[i].true
    order = np.lexsort((owner, -scores))  # of equals the earlier image's first, as COCO's code
    right, apart = right[..., order], apart[..., order]
    return Ranked(scores[order], owner[order], right & ~apart, ~right & ~apart, true)


def precision(ranks: Ranked, weights: Array | None = None, areas: slice = slice(None)) -> Array:
    """Precision at each of the recalls, [A, T, 101]; NaN for areas without true objects. `weights`: [N] how often each
    image counts; None for once.
    """
    often = np.ones(len(ranks.true)) if weights is None else weights
    each, true = often[ranks.images], often @ ranks.true[:, areas]
    hits, misses = np.cumsum(ranks.right[areas] * each, -1), np.cumsum(ranks.wrong[areas] * each, -1)
    out = np.zeros((*hits.shape[:2], len(RECALLS)))
    for a, t in np.ndindex(hits.shape[:2]):
        if true[a] == 0:
            out[a, t] = np.nan
        elif hits.shape[2]:
            shares = hits[a, t] / (hits[a, t] + misses[a, t] + np.spacing(1))
            best = np.maximum.accumulate(shares[::-1])[::-1]
            places = np.searchsorted(hits[a, t] / true[a], RECALLS, side="left")
            reached = places < len(best)
            out[a, t, reached] = best[places[reached]]
    return out


def recall(ranks: Ranked) -> Array:
    """Share of the true objects that are found among all detections, [A, T]; NaN without true objects."""
    true = ranks.true.sum(0)[:, None].astype(np.float64)
    return np.divide(ranks.right.sum(2), true, out=np.full(ranks.right.shape[:2], np.nan), where=true > 0)


def resampled(classes: Sequence[Ranked], images: int) -> Array:
    """Return the mean AP over images drawn with replacement, [R]; the draws are the same for all detectors."""
    generator = np.random.default_rng(0)
    draws = [generator.integers(images, size=images) for _ in range(REPLICATES)]
    often = np.stack([np.bincount(draw, minlength=images) for draw in draws]).astype(np.float64)
    each = np.stack([_drawn_precision(ranks, often) for ranks in classes])  # [C, R]
    return means_of_known(each.T)


def _drawn_precision(ranks: Ranked, often: Array) -> Array:
    """Mean of `precision` over thresholds and recalls, for objects of all sizes, by draws of images: [R, N] -> [R].

    Precision is highest where a detection is right, so that it is reckoned there alone.
    """
    true, each = often @ ranks.true[:, 0].astype(np.float64), often[:, ranks.images]
    total = np.where(true > 0, 0.0, np.nan)
    counted, last = np.zeros_like(each), None
    for right, wrong in zip(ranks.right[0], ranks.wrong[0], strict=True):
        if last is None or not np.array_equal(last, right | wrong):  # as a rule the same at every threshold
            last = right | wrong
            counted = np.cumsum(each * last, 1)
        places = np.flatnonzero(right)
        hits = np.cumsum(each[:, places], 1)
        shares = hits / (counted[:, places] + np.spacing(1))
        best = np.maximum.accumulate(shares[:, ::-1], 1)[:, ::-1]
        reached = np.searchsorted(RECALLS, hits / np.maximum(true, 1)[:, None], side="right")  # recalls so far
        total += (best * np.diff(reached, axis=1, prepend=0)).sum(1)
    return total / (len(THRESHOLDS) * len(RECALLS))


def image_precision(matches: Sequence[Matches]) -> float:
    """AP at an overlap of 0.5 of one image, mean over its classes; 1 where there is nothing and nothing is found, but
    for what lies in crowds."""
    values = []
    for each in matches:
        if each.true[0]:
            values.append(float(precision(ranked({0: each}, 1), areas=slice(0, 1))[0, 0].mean()))
        elif not each.apart[0, 0].all():
            values.append(0.0)
    return float(np.mean(values)) if values else 1.0
