# SPDX-License-Identifier: Apache-2.0
"""Which images to hold out and which to learn from: pure functions of labels and a seed.

Every class draws from its own random stream, seeded by (seed, class): a class that is added or removed leaves the
choices among the others as they were. All results are sorted positions, int64.
"""

import math

import numpy as np


def holdout(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide into the images that stay and those held out, in the same proportion in every class.

    A class of n images gives `floor(fraction * n)`, but keeps at least one. What is missing to `round(fraction * N)`
    comes from the classes with the largest remainders, one image each, ties drawn by lot.

    Args:
        labels: [N] int64; -1 (no label) counts as a class of its own.
        fraction: share to hold out, in [0, 1).
        seed: of the choice.

    Returns: positions that stay, positions held out.
    """
    groups = _shuffled(labels, seed)
    counts = np.array([len(rows) for rows in groups])
    wanted = counts * fraction
    give = np.minimum(np.floor(wanted + 1e-9).astype(np.int64), counts - 1)
    able = np.flatnonzero((give < counts - 1) & (wanted - give > 1e-9))
    ties = np.random.default_rng([seed, len(groups)]).random(len(groups))
    order = able[np.lexsort((ties[able], (give - wanted)[able]))]
    give[order[: max(_round(fraction * len(labels)) - int(give.sum()), 0)]] += 1
    held = np.zeros(len(labels), dtype=bool)
    for rows, count in zip(groups, give, strict=True):
        held[rows[:count]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def fraction_of_each(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """The same share of every class, at least one image; a larger share contains a smaller one of the same seed.

    Args:
        labels: [N] int64.
        fraction: in (0, 1].
        seed: of the choice.
    """
    return _sorted([rows[: max(1, _round(fraction * len(rows)))] for rows in _shuffled(labels, seed)])


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
