# SPDX-License-Identifier: Apache-2.0
"""Which images to hold out and which to learn from: pure functions of labels and a seed.

Every class draws from its own random stream, seeded by (seed, class): a class that is added or removed leaves the
choices among the others as they were. All results are sorted positions, int64.

Labels are [N] int64, -1 without one, or [N, C], 1 where an image shows a class and 0 elsewhere; -1 throughout where
nobody said which.
"""

import math

import numpy as np


def labeled(labels: np.ndarray) -> np.ndarray:
    """[N] whether an image's classes are known; of several labels an image, that there may be none is known."""
    return (labels if labels.ndim == 1 else labels.min(1, initial=0)) >= 0


def evenly(rows: np.ndarray, most: int) -> np.ndarray:
    """So many of the rows at most, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64)]


def count_by_class(labels: np.ndarray, classes: int) -> np.ndarray:
    """[C] int64, images of each class."""
    if labels.ndim == 1:
        return np.bincount(labels[labels >= 0], minlength=classes)
    return labels[labeled(labels)].sum(0).astype(np.int64)


def holdout(
    labels: np.ndarray, fraction: float, seed: int, copies: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide into the images that stay and those held out, in the same proportion in every class.

    A class of n images gives `floor(fraction * n)`, but keeps at least one. What is missing to `round(fraction * N)`
    comes from the classes with the largest remainders, one image each, ties drawn by lot. Of several labels an image
    see `stratified`.

    Args:
        labels: [N] int64, -1 (no label) counts as a class of its own; or [N, C].
        fraction: share to hold out, in [0, 1).
        seed: of the choice.
        copies: [N] int64, images of equal numbers are near-duplicates and stay together (`_with_copies`), where an
            image has one label; -1 for an image without. None where no image has any.

    Returns: positions that stay, positions held out.
    """
    if labels.ndim == 2:
        held = stratified(labels, fraction, seed)
        return np.flatnonzero(~held), np.flatnonzero(held)
    groups = _shuffled(labels, seed)
    counts = np.array([len(rows) for rows in groups])
    wanted = counts * fraction
    give = np.minimum(np.floor(wanted + 1e-9).astype(np.int64), counts - 1)
    able = np.flatnonzero((give < counts - 1) & (wanted - give > 1e-9))
    ties = np.random.default_rng([seed, len(groups)]).random(len(groups))
    order = able[np.lexsort((ties[able], (give - wanted)[able]))]
    give[order[: max(_round(fraction * len(labels)) - int(give.sum()), 0)]] += 1
    held = _with_copies(groups, give, np.full(len(labels), -1) if copies is None else copies)
    return np.flatnonzero(~held), np.flatnonzero(held)


def _with_copies(classes: list[np.ndarray], give: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """[N] whether an image is held out: the first ones of every class, where near-duplicates stay together.

    An image whose near-duplicates, those of other classes included, are more than their classes still give is passed
    over, and they stay. A class that gives less than half of its share by this gives its smallest set of
    near-duplicates whole, where no class loses more than half of its images; else as many consecutive ones of it as are
    missing (a class may be one video, whose distant frames differ).

    Args:
        classes: the positions of each class, in the order in which they are held out.
        give: [C] images that each class gives.
        copies: as in `holdout`.
    """
    number = np.empty(len(copies), dtype=np.int64)
    for c, rows in enumerate(classes):
        number[rows] = c
    together, held, left = members(copies), np.zeros(len(copies), dtype=bool), give.copy()
    counts = {group: np.bincount(number[rows], minlength=len(give)) for group, rows in together.items()}

    def take(group: int) -> None:
        held[together[group]] = True
        left[:] -= counts[group]

    for c, rows in enumerate(classes):
        for row, group in zip(rows.tolist(), copies[rows].tolist(), strict=True):
            if left[c] <= 0:
                break
            if group < 0:
                held[row] = True
                left[c] -= 1
            elif not held[row] and (counts[group] <= left).all():
                take(group)
    sizes = np.array([len(rows) for rows in classes])
    for c, rows in enumerate(classes):
        if 2 * left[c] > give[c]:
            stay = rows[~held[rows]]  # all of them have near-duplicates
            groups = sorted(set(copies[stay].tolist()), key=lambda group: (len(together[group]), group))
            small = next((group for group in groups if (2 * counts[group] <= sizes).all()), None)
            if small is not None:
                take(small)
            else:
                run = np.sort(first := stay[copies[stay] == groups[-1]])
                start = min(int(np.searchsorted(run, first[0])), max(len(run) - int(left[c]), 0))
                held[run[start : start + left[c]]] = True
    return held


def members(groups: np.ndarray) -> dict[int, np.ndarray]:
    """The positions of each group but -1, ascending."""
    return {number: rows for number, rows in _by_class(groups) if number >= 0}


def fraction_of_each(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """The same share of every class, at least one image; a larger share contains a smaller one of the same seed.

    Several labels an image: about the same share by `stratified`, which does not contain that of a smaller one.

    Args:
        labels: [N] int64, or [N, C].
        fraction: in (0, 1].
        seed: of the choice.
    """
    if labels.ndim == 2:
        labels = labels.clip(min=0)  # what nobody labeled goes with what shows none
        kept = stratified(labels, fraction, seed) if fraction < 1 else np.ones(len(labels), bool)
        for shown in labels.T[~labels[kept].any(0)]:  # a label keeps one image
            kept[np.flatnonzero(shown)[:1]] = True
        return np.flatnonzero(kept)
    return _sorted([rows[: max(1, _round(fraction * len(rows)))] for rows in _shuffled(labels, seed)])


def stratified(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """[N] whether an image of several labels is among a share in which every label occurs in proportion.

    Iterative stratification: the label with the fewest images left goes first; each of its images goes to the part
    that wants more of this label, then to the one that wants more images, then to the one that stays. Images without
    any label come last and even the parts' sizes out. A label of n images gives none where fraction * n is below half
    an image.

    Args:
        labels: [N, C], 1 or 0.
        fraction: of the images, in [0, 1).
        seed: of the order in which a label's images are looked at.

    Source: Sechidis et al., "On the Stratification of Multi-Label Data", ECML PKDD 2011.
    """
    labels = np.pad(labels, ((0, 0), (0, 1)))  # the last, which no image shows, is for those without any
    shares = np.array([1 - fraction, fraction])
    wanted, room = shares[:, None] * labels.sum(0), shares * len(labels)
    chosen, left = np.zeros(len(labels), bool), np.random.default_rng(seed).permutation(len(labels))
    while len(left):
        counts = labels[left].sum(0)
        rare = int(np.where(counts > 0, counts, np.inf).argmin()) if counts.any() else -1
        these = labels[left, rare] > 0 if rare >= 0 else np.ones(len(left), bool)
        for row in left[these]:
            part = max((0, 1), key=lambda part: (wanted[part, rare], room[part], -part))
            wanted[part] -= labels[row]
            room[part] -= 1
            chosen[row] = part == 1
        left = left[~these]
    return chosen


def count_of_each(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The same number of images of every class (all of a class that has fewer); larger numbers contain smaller ones.

    Args:
        labels: [N] int64.
        count: images per class, at least 1.
        seed: of the choice.
    """
    return _sorted([rows[:count] for rows in _shuffled(labels, seed)])


def bootstrapping(labels: np.ndarray, fraction: float) -> np.ndarray:
    """The subsets of ImageNet in "Bootstrapping ViTs", exactly: the same images for every run.

        class c: shuffle its images, in the order of their file names, with numpy's default_rng(c);
        keep the first round(fraction * n)

    Rounding is Python's (half to even), and a class may be left without any image, as in the authors' code.

    Args:
        labels: [N] int64, images in the order of their file names.
        fraction: in (0, 1].

    Source: Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022.
    """
    kept = []
    for number, rows in _by_class(labels):
        np.random.default_rng(number).shuffle(rows)
        kept.append(rows[: round(fraction * len(rows))])
    return _sorted(kept)


def _by_class(labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Each class that occurs, with its positions in ascending order."""
    classes, starts = np.unique(np.sort(labels), return_index=True)
    groups = np.split(np.argsort(labels, kind="stable"), starts[1:])
    return list(zip(classes.tolist(), groups, strict=False))


def _shuffled(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """The positions of each class in its own random order; -1 comes first."""
    return [np.random.default_rng([seed, number + 1]).permutation(rows) for number, rows in _by_class(labels)]


def _sorted(groups: list[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate(groups)) if groups else np.empty(0, dtype=np.int64)


def _round(number: float) -> int:
    """To the nearest integer, halves upwards; a hair below a half counts as one (0.3 * 5 in floating point)."""
    return math.floor(number + 0.5 + 1e-9)
