# SPDX-License-Identifier: Apache-2.0
"""Held-out images, training subsets and folds: pure functions of labels, groups and a seed.

Every class draws from its own random stream, seeded by (seed, class): a class that is added or removed leaves the
choices among the others as they were. All results are sorted positions, int64.

Labels are [N] int64, -1 without one, or [N, C], 1 where an image has a class and 0 elsewhere; -1 throughout where
its classes are unknown. Groups are [N] int64, -1 for an image without one: images of one group (a patient, a plot, a
film) resemble each other for reasons that have nothing to do with their class, and are never split.
"""

import math
from collections.abc import Sequence

import numpy as np


def labeled(labels: np.ndarray) -> np.ndarray:
    """[N] whether an image's classes are known, of several labels an image, none may be known to apply; or whether its
    number is, in labels [N] of floating-point numbers."""
    if labels.ndim == 1 and labels.dtype.kind == "f":
        return ~np.isnan(labels)
    return (labels if labels.ndim == 1 else labels.min(1, initial=0)) >= 0


def evenly(rows: np.ndarray, maximum: int) -> np.ndarray:
    """Select at most so many of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), maximum)).astype(np.int64)]


def count_by_class(labels: np.ndarray, classes: int) -> np.ndarray:
    """[C] int64, images of each class."""
    if not classes:  # none are known, or labels are numbers
        return np.zeros(0, dtype=np.int64)
    if labels.ndim == 1:
        return np.bincount(labels[labels >= 0], minlength=classes)
    return labels[labeled(labels)].sum(0).astype(np.int64)


def holdout(
    labels: np.ndarray, fraction: float, seed: int, near: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide into the images that stay and those held out, in the same proportion in every class.

    Of a class of n images `floor(fraction * n)` are held out, and one stays at least. What is missing to
    `round(fraction * N)` comes from the classes with the largest remainders, one image each, ties broken at random. For
    several labels an image see `stratified`.

    Args:
        labels: [N] int64, -1 (no label) counts as a separate class; or [N, C].
        fraction: share to hold out, in [0, 1).
        near: groups of near-duplicates, which stay together (`_hold_out_together`), where an image has one label; None
            where there are none.

    Returns: positions that stay, positions held out.
    """
    if labels.ndim == 2:
        held = stratified(labels, fraction, seed)
        return np.flatnonzero(~held), np.flatnonzero(held)
    classes = _shuffled(labels, seed)
    sizes = np.array([len(rows) for rows in classes])
    shares = sizes * fraction
    quotas = np.minimum(np.floor(shares + 1e-9).astype(np.int64), sizes - 1)
    able = np.flatnonzero((quotas < sizes - 1) & (shares - quotas > 1e-9))
    ties = np.random.default_rng([seed, len(classes)]).random(len(classes))
    order = able[np.lexsort((ties[able], (quotas - shares)[able]))]
    quotas[order[: max(_round(fraction * len(labels)) - int(quotas.sum()), 0)]] += 1
    held = _hold_out_together(classes, quotas, np.full(len(labels), -1) if near is None else near)
    return np.flatnonzero(~held), np.flatnonzero(held)


def _hold_out_together(classes: list[np.ndarray], quotas: np.ndarray, near: np.ndarray) -> np.ndarray:
    """[N] whether an image is held out: the first ones of every class, where near-duplicates stay together.

    An image whose near-duplicates, those of other classes included, exceed what is left of their classes' quotas is
    skipped, and they stay. A class that reaches less than half of its quota by this gives its smallest group whole,
    where no class loses more than half of its images; else as many consecutive images of it as are missing (a class
    may be one video, whose distant frames differ).
    """
    number = np.empty(len(near), dtype=np.int64)
    for c, rows in enumerate(classes):
        number[rows] = c
    groups, held, left = members(near), np.zeros(len(near), dtype=bool), quotas.copy()
    counts = {group: np.bincount(number[rows], minlength=len(quotas)) for group, rows in groups.items()}

    def take(group: int) -> None:
        held[groups[group]] = True
        left[:] -= counts[group]

    for c, rows in enumerate(classes):
        for row, group in zip(rows.tolist(), near[rows].tolist(), strict=True):
            if left[c] <= 0:
                break
            if group < 0:
                held[row] = True
                left[c] -= 1
            elif not held[row] and (counts[group] <= left).all():
                take(group)
    sizes = np.array([len(rows) for rows in classes])
    for c, rows in enumerate(classes):
        if 2 * left[c] > quotas[c]:
            stay = rows[~held[rows]]  # all of them have near-duplicates
            by_size = sorted(set(near[stay].tolist()), key=lambda group: (len(groups[group]), group))
            small = next((group for group in by_size if (2 * counts[group] <= sizes).all()), None)
            if small is not None:
                take(small)
            else:
                run = np.sort(first := stay[near[stay] == by_size[-1]])
                start = min(int(np.searchsorted(run, first[0])), max(len(run) - int(left[c]), 0))
                held[run[start : start + left[c]]] = True
    return held


def members(groups: np.ndarray) -> dict[int, np.ndarray]:
    """Group -> its positions, ascending."""
    return {number: rows for number, rows in _by_class(groups) if number >= 0}


def fraction_of_each(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Select the same share of every class, at least one image; a larger share contains a smaller one of the same seed.

    Several labels an image: about the same share by `stratified`, which does not contain that of a smaller one.
    """
    if labels.ndim == 2:
        labels = labels.clip(min=0)  # unknown counts as none
        chosen = stratified(labels, fraction, seed) if fraction < 1 else np.ones(len(labels), bool)
        for shows in labels.T[~labels[chosen].any(0)]:  # one image at least of every label
            chosen[np.flatnonzero(shows)[:1]] = True
        return np.flatnonzero(chosen)
    return _sorted([rows[: max(1, _round(fraction * len(rows)))] for rows in _shuffled(labels, seed)])


def stratified(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """[N] whether an image of several labels is in a share in which every label occurs in proportion.

    Iterative stratification: the label with the fewest images left goes first; each of its images goes to the part
    that lacks more of this label, then to the one that lacks more images, then to the one that stays. Images without
    any label come last and even the parts' sizes out. A label of n images has none in the share where fraction * n is
    below half an image.

    Source: Sechidis et al., "On the Stratification of Multi-Label Data", ECML PKDD 2011.
    """
    labels = np.pad(labels, ((0, 0), (0, 1)))  # the last, which no image has, is for those without any
    shares = np.array([1 - fraction, fraction])
    lacking, space = shares[:, None] * labels.sum(0), shares * len(labels)
    chosen, left = np.zeros(len(labels), bool), np.random.default_rng(seed).permutation(len(labels))
    while len(left):
        counts = labels[left].sum(0)
        rare = int(np.where(counts > 0, counts, np.inf).argmin()) if counts.any() else -1
        these = labels[left, rare] > 0 if rare >= 0 else np.ones(len(left), bool)
        for row in left[these]:
            part = max((0, 1), key=lambda part: (lacking[part, rare], space[part], -part))
            lacking[part] -= labels[row]
            space[part] -= 1
            chosen[row] = part == 1
        left = left[~these]
    return chosen


def count_of_each(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Select the same number of images of every class (all of a class that has fewer); larger numbers contain smaller
    ones.
    """
    return _sorted([rows[:count] for rows in _shuffled(labels, seed)])


def bootstrapping(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Select the subsets of ImageNet in "Bootstrapping ViTs", exactly: the same images for every run.

        class c: shuffle its images, in the order of their file names, with numpy's default_rng(c);
        select the first round(fraction * n)

    Rounding is Python's (half to even), and a class may be left without any image, as in the authors' code.

    Args:
        labels: [N] int64, images in the order of their file names.
        fraction: in (0, 1].

    Source: Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022.
    """
    chosen = []
    for number, rows in _by_class(labels):
        np.random.default_rng(number).shuffle(rows)
        chosen.append(rows[: round(fraction * len(rows))])
    return _sorted(chosen)


def assign(labels: np.ndarray, groups: np.ndarray | None, shares: Sequence[float], seed: int) -> np.ndarray:
    """Assign each image to a part, so that every part has its share of every class, as far as groups allow.

        group g goes to the part k of the smallest (2 has_k . s_g + s_g . s_g) / share_k, ties to the smaller part

    where s_g holds the shares of every class that are of group g, and has_k those already in part k: each step
    adds as little as possible to the sum over parts of |has_k|^2 / share_k, whose minimum is has_k = share_k.
    The largest groups go first, equal ones in random order.

    Args:
        labels: [N] int64, classes from 0 on; or [N, C]. Images without any class even out the parts' sizes.
        groups: None for no groups.
        shares: of the K parts; they add up to 1.

    Returns: [N] int64, from 0 to K - 1. Without groups, parts of equal shares differ by an image of a class at most.
    """
    number = numbered(groups, len(labels))
    sizes, counts = np.bincount(number), _counts(labels, number)
    of_classes = counts / np.maximum(counts.sum(0), 1)  # [G, C]
    order = np.random.default_rng([seed, len(shares)]).permutation(len(counts))
    order = order[np.argsort(-np.square(of_classes[order]).sum(1).round(12), kind="stable")]
    has, images = np.zeros((len(shares), counts.shape[1])), np.zeros(len(shares))
    weights, part = np.asarray(shares, dtype=np.float64), np.zeros(len(counts), dtype=np.int64)
    for g in order.tolist():
        growth = ((2 * has @ of_classes[g] + of_classes[g] @ of_classes[g]) / weights).round(12)
        part[g] = k = int(np.lexsort((images / weights, growth))[0])
        has[k] += of_classes[g]
        images[k] += sizes[g]
    return part[number]


def hold_out_groups(labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """[N] whether an image is held out: a share of every class in whole groups, and at least one group of a class that
    has two. Where `assign` holds out none of such a class, its smallest group is held out, if every class in it keeps
    another."""
    number = numbered(groups, len(labels))
    sizes, counts = np.bincount(number), _counts(labels, number)
    held = np.zeros(len(sizes), bool)
    held[number[assign(labels, groups, (1 - fraction, fraction), seed) == 1]] = True
    order = np.random.default_rng([seed, len(sizes)]).permutation(len(sizes))
    order = order[np.argsort(sizes[order], kind="stable")]
    for c in range(counts.shape[1]):
        if counts[held, c].any():
            continue
        staying = (counts[~held] > 0).sum(0)  # groups of every class
        able = (g for g in order if counts[g, c] and (staying[counts[g] > 0] > 1).all())
        if (smallest := next(able, None)) is not None:
            held[smallest] = True
    return held[number]


def limited_groups(near: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """[N] groups of near-duplicates, none larger than `share` of every class, or of all images with several labels: a
    larger one is cut into runs of consecutive images, since distant frames of a video differ."""
    number = labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
    limits = np.ceil(share * np.bincount(number)).astype(np.int64)
    groups = near.copy()
    for rows in members(near).values():
        counts = np.bincount(number[rows], minlength=len(limits))
        if (counts > limits).any():
            groups[rows] = groups.max() + 1 + np.arange(len(rows)) // int(limits[counts > 0].min())
    return groups


def numbered(groups: np.ndarray | None, count: int) -> np.ndarray:
    """Number groups from 0 on without gaps, [N]; an image without one becomes a separate group."""
    if groups is None:
        return np.arange(count)
    alone = groups < 0
    unique = np.where(alone, groups.max(initial=-1) + 1 + np.cumsum(alone), groups)
    return np.unique(unique, return_inverse=True)[1].reshape(-1)


def _counts(labels: np.ndarray, number: np.ndarray) -> np.ndarray:
    """[G, C] images of every group and class."""
    rows = number.max(initial=-1) + 1
    if labels.ndim == 2:
        counts = np.zeros((rows, labels.shape[1]))
        np.add.at(counts, number, labels)
    else:
        counts = np.zeros((rows, labels.max(initial=-1) + 1))
        np.add.at(counts, (number, labels), 1)
    return counts


def _by_class(labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Yield each class that occurs, with its positions, ascending."""
    classes, starts = np.unique(np.sort(labels), return_index=True)
    groups = np.split(np.argsort(labels, kind="stable"), starts[1:])
    return list(zip(classes.tolist(), groups, strict=False))


def _shuffled(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """The positions of each class in random order; -1 comes first."""
    return [np.random.default_rng([seed, number + 1]).permutation(rows) for number, rows in _by_class(labels)]


def _sorted(groups: list[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate(groups)) if groups else np.empty(0, dtype=np.int64)


def _round(number: float) -> int:
    """Round to the nearest integer, halves upwards; a hair below a half counts as one (0.3 * 5 in floating point)."""
    return math.floor(number + 0.5 + 1e-9)
