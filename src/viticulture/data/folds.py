# SPDX-License-Identifier: Apache-2.0
"""Deal images into parts: stratified, and without tearing groups apart. A pure function of labels, groups and a seed.

Images of one group (a patient, a plot, a film) resemble each other for reasons that have nothing to do with their
class; a network that has learnt from some of them recognizes the others too easily.
"""

from collections.abc import Sequence

import numpy as np

from ..errors import UserError, counted, some
from .near_duplicates import NearDuplicates
from .sources.source import Source
from .subsets import count_by_class, members


def deal(labels: np.ndarray, groups: np.ndarray | None, shares: Sequence[float], seed: int) -> np.ndarray:
    """Which part each image goes to, so that every part holds its share of every class, as far as groups allow.

        group g goes to the part k of the least (2 held_k . s_g + s_g . s_g) / share_k, ties to the smaller part

    where s_g holds the shares of every class that are of group g, and held_k those that part k has already: each step
    makes the sum over parts of |held_k|^2 / share_k, which is least where held_k = share_k, grow as little as it can.
    The largest groups go first, equal ones in random order.

    Args:
        labels: [N] int64, classes from 0 on; or of several labels an image [N, C], 1 where it shows one. Images that
            show none even out the parts' sizes.
        groups: [N] int64, images of equal numbers stay together; -1 is a group of its own. None: all are.
        shares: of the K parts; they add up to 1.
        seed: of the order.

    Returns: [N] int64, from 0 to K - 1. Without groups, parts of equal shares differ by an image of a class at most.
    """
    number = _numbered(groups, len(labels))
    members, counts = np.bincount(number), _counts(labels, number)
    of_classes = counts / np.maximum(counts.sum(0), 1)  # [G, C]
    order = np.random.default_rng([seed, len(shares)]).permutation(len(counts))
    order = order[np.argsort(-np.square(of_classes[order]).sum(1).round(12), kind="stable")]
    held, images = np.zeros((len(shares), counts.shape[1])), np.zeros(len(shares))
    weights, part = np.asarray(shares, dtype=np.float64), np.zeros(len(counts), dtype=np.int64)
    for g in order.tolist():
        growth = ((2 * held @ of_classes[g] + of_classes[g] @ of_classes[g]) / weights).round(12)
        part[g] = k = int(np.lexsort((images / weights, growth))[0])
        held[k] += of_classes[g]
        images[k] += members[g]
    return part[number]


def hold_out_groups(labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """[N] whether an image is held out: a share of every class in whole groups, and one group at least of a class that
    has two. Where `deal` gives such a class none, its smallest group goes, if every class of that keeps another."""
    number = _numbered(groups, len(labels))
    members, counts = np.bincount(number), _counts(labels, number)
    held = np.zeros(len(members), bool)
    held[number[deal(labels, groups, (1 - fraction, fraction), seed) == 1]] = True
    order = np.random.default_rng([seed, len(members)]).permutation(len(members))
    order = order[np.argsort(members[order], kind="stable")]
    for c in range(counts.shape[1]):
        if counts[held, c].any():
            continue
        staying = (counts[~held] > 0).sum(0)  # groups of every class
        able = (g for g in order if counts[g, c] and (staying[counts[g] > 0] > 1).all())
        if (smallest := next(able, None)) is not None:
            held[smallest] = True
    return held[number]


def parts_of(copies: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """[N] near-duplicates as groups of which a part can hold `share` of every class, or of all images that have several
    labels each: a larger one is cut into runs of consecutive images, since distant frames of a video differ."""
    number = labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
    most = np.ceil(share * np.bincount(number)).astype(np.int64)
    groups = copies.copy()
    for rows in members(copies).values():
        counts = np.bincount(number[rows], minlength=len(most))
        if (counts > most).any():
            groups[rows] = groups.max() + 1 + np.arange(len(rows)) // int(most[counts > 0].min())
    return groups


def folds_of(source: Source, rows: np.ndarray, folds: int, seed: int, copies: np.ndarray | None = None) -> np.ndarray:
    """The fold of each labeled image among `rows`; near-duplicates, `copies` [N] as in `subsets.holdout`, lie in one
    fold as far as every fold can hold its share of every class.

    Raises: UserError for data without labels, and for a class with fewer images or groups than folds.
    """
    if not source.classes:
        raise UserError(f"folds hold out images of every class, and {source.name} has no labels; leave data.folds out")
    labels, groups = source.labels[rows], None if source.groups is None else source.groups[rows]
    number = _numbered(groups, len(rows))
    shown = [labels == c if labels.ndim == 1 else labels[:, c] > 0 for c in range(len(source.classes))]
    held = {name: len(np.unique(number[there])) for name, there in zip(source.classes, shown, strict=True)}
    if short := [f"{name} has {count}" for name, count in held.items() if 0 < count < folds]:
        what = "image" if groups is None else "group"
        raise UserError(
            f"{folds} folds need {counted(folds, what)} of every class: {some(short, 5)}; take at most "
            f"{max(min(count for count in held.values() if count), 2)} folds, or leave such classes out"
        )
    if groups is None and copies is not None:
        groups = parts_of(copies, labels, 1 / folds)
        for there in shown:
            if len(np.unique(_numbered(groups, len(rows))[there])) < folds:
                groups[there] = -1
    return deal(labels, groups, [1 / folds] * folds, seed)


def straddling(source: Source, splits: dict[str, np.ndarray]) -> int:
    """How many groups have images in more than one split."""
    if source.groups is None:
        return 0
    known = [np.unique(groups[groups >= 0]) for groups in (source.groups[rows] for rows in splits.values())]
    return int((np.unique(np.concatenate(known), return_counts=True)[1] > 1).sum())


def leave_out(source: Source, splits: dict[str, np.ndarray], copies: NearDuplicates) -> list[str]:
    """Take the training images out of `splits` that are near-duplicates of held-out ones; a note where there are any.

    Raises: UserError where a class would lose all of its training images.
    """
    train = splits["train"]
    held = np.concatenate([train[:0], *(rows for kind, rows in splits.items() if kind != "train")])
    leave = copies.among(train, held)
    splits["train"] = train[~leave]
    counted_by = [count_by_class(source.labels[rows], len(source.classes)) for rows in (train, train[~leave])]
    counts = zip(source.classes, *counted_by, strict=True)
    if lost := [name for name, before, after in counts if before and not after]:
        raise UserError(
            f"data.near_duplicates leave_out would leave no training image of {some(lost, 5)}: all are near-duplicates "
            "of held-out images; see `viticulture data DATA --out pairs.csv`, or take together"
        )
    left = counted(int(leave.sum()), "training image")
    return [f"left out {left} for being near-duplicates of held-out images"] if leave.any() else []


def _counts(labels: np.ndarray, number: np.ndarray) -> np.ndarray:
    """[G, C] images of every group and class, of labels as in `deal`."""
    rows = number.max(initial=-1) + 1
    if labels.ndim == 2:
        counts = np.zeros((rows, labels.shape[1]))
        np.add.at(counts, number, labels)
    else:
        counts = np.zeros((rows, labels.max(initial=-1) + 1))
        np.add.at(counts, (number, labels), 1)
    return counts


def _numbered(groups: np.ndarray | None, count: int) -> np.ndarray:
    """[N] numbers of groups from 0 on without gaps; -1 becomes a group of its own."""
    if groups is None:
        return np.arange(count)
    alone = groups < 0
    unique = np.where(alone, groups.max(initial=-1) + 1 + np.cumsum(alone), groups)
    return np.unique(unique, return_inverse=True)[1].reshape(-1)
