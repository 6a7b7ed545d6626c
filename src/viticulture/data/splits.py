# SPDX-License-Identifier: Apache-2.0
"""Which images of a source are for training, validation and test: what the data declares, else a seeded rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import UserError, counted, some
from ..keywords import check_fields
from . import subsets
from .folds import folds_of, hold_out_groups, leave_out, parts_of, straddling
from .near_duplicates import NearDuplicates
from .sources.labels import doubtful
from .sources.source import Source

Splits = dict[str, np.ndarray]
"""train, val, test -> positions in the source, int64; a split without images is absent."""


@dataclass(frozen=True)
class Selection:
    """Which images to learn from and which to hold out.

    Args:
        val_fraction: share of the training images held out for validation where the data has no validation split;
            0 holds out none.
        test_fraction: share of the training images held out for the test, before any for validation, where the data has
            no test split; 0 holds out none.
        fraction: share of every class's training images to learn from, in (0, 1]; null for all.
        per_class: training images of every class to learn from; null for all.
        rule: how a fraction is drawn. balanced: by a seed; bootstrapping: the one fixed subset of the paper, drawn from
            all training images, so that val_fraction must be 0 where the data has no validation split.
        near_duplicates: what becomes of near-duplicates, images that are the same picture saved again, shrunk or
            slightly changed, such as frames of a video. together: splits that are drawn keep them on one side, and of
            splits that the data has it is reported how many held-out images have some among the training images;
            leave_out: these training images are left out as well, and the held-out images stay; ignore: they are not
                looked for.
        skip_unreadable: go on without images that cannot be read, instead of stopping.
        split_seed: draws what is held out; apart from the run's seed, so that runs share their test images.
        subset_seed: draws what is learnt from, in place of the run's seed, so that runs of other seeds, such as a
            student and its teacher, learn from the same images.
        train_on: train, or train+val to learn from the data's own validation images as well.
        test_on: test, or val to test on the data's own validation images, as papers do where no test has labels; none
            to leave test images aside, for a look of their own by `evaluate`.
        sampling: natural: an epoch shows every training image once; balanced: every class as often as any other, images
            of small classes several times.
        folds: number of folds that the images are divided into, of which one is held out, in place of test_fraction;
            where the data has its own test images, in place of val_fraction. null for no folds.
        fold: which of them is held out, from 0 on.
        class_weights: factors of classes in the loss, whose mean over the training images is made 1. balanced: every
            class weighs as much as any other; or a mapping, such as {ill: 5}, where what is not named has 1.
    """

    val_fraction: float = 0.1
    test_fraction: float = 0.2
    fraction: float | None = None
    per_class: int | None = None
    rule: Literal["balanced", "bootstrapping"] = "balanced"
    near_duplicates: Literal["together", "leave_out", "ignore"] = "together"
    skip_unreadable: bool = False
    split_seed: int = 0
    subset_seed: int | None = None
    train_on: Literal["train", "train+val"] = "train"
    test_on: Literal["test", "val", "none"] = "test"
    sampling: Literal["natural", "balanced"] = "natural"
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    folds: int | None = None
    fold: int = 0

    def __post_init__(self) -> None:
        check_fields("data", self)
        for name in ("val_fraction", "test_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UserError(f"fraction must lie in (0, 1], got {self.fraction}; ten percent are 0.1")
        if self.per_class is not None and self.per_class < 1:
            raise UserError(f"per_class must be at least 1, got {self.per_class}")
        if self.fraction is not None and self.per_class is not None:
            raise UserError(f"give fraction or per_class, not both, got {self.fraction} and {self.per_class}")
        if self.rule == "bootstrapping" and self.fraction is None:
            raise UserError("the rule bootstrapping draws a fraction; give one, such as --fraction 0.1")
        if self.folds is not None and self.folds < 2:
            raise UserError(f"folds must be at least 2, got {self.folds}; five or ten are usual")
        if not 0 <= self.fold < (self.folds or 1):
            raise UserError(f"fold must lie in 0..{(self.folds or 1) - 1}, got {self.fold}; folds is {self.folds}")
        if self.near_duplicates == "leave_out" and self.rule == "bootstrapping":
            raise UserError(
                "the rule bootstrapping is one fixed subset of all training images, and data.near_duplicates leave_out "
                "takes some of them away; choose one"
            )
        if self.folds is not None and self.rule == "bootstrapping":
            raise UserError("the rule bootstrapping is one fixed subset of all training images; leave the folds out")
        if self.train_on == "train+val" and self.test_on == "val":
            raise UserError("train_on train+val and test_on val would test on what was learnt; choose one of them")
        if self.folds is not None and self.test_on == "none":
            raise UserError(
                "data.folds holds out images to test on, and data.test_on none asks for no test; choose one"
            )
        if self.class_weights is not None and self.sampling == "balanced":
            raise UserError(
                "data.sampling and data.class_weights make up for the same thing twice; leave one of them out"
            )
        for name in ("split_seed", "subset_seed"):
            if (getattr(self, name) or 0) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")


def select(
    source: Source, selection: Selection, seed: int, labeled: bool = True, copies: NearDuplicates | None = None
) -> tuple[Splits, list[str]]:
    """Choose the images of each split: hold out first (by `split_seed`), then thin the training images (by
    `subset_seed`, or else by `seed`).

    Args:
        source: the images.
        selection: what to hold out and what to learn from.
        seed: the run's.
        labeled: leave out images without a label; else they join the training images.
        copies: the near-duplicates among the source's images; None where they are not known.

    Returns: the splits, and what a person should know about them.
    Raises: UserError if nothing is left to train on, or if validation images would be taken from those that the
        paper's rule draws from.
    """
    splits, notes = _with_labels(source) if labeled else (dict(source.splits), list[str]())
    groups = groups_of(copies, selection)
    notes += doubtful(source.classes) if labeled else []
    if selection.test_on == "none":
        splits.pop("test", None)
    use_validation(splits, selection, source.name)
    if "train" not in splits:
        raise UserError(
            f"{source.name} holds no training images, only {' and '.join(splits) or 'images without labels'}"
        )
    if selection.folds is not None:
        notes += _hold_out_fold(source, splits, selection, groups)
    notes += _unshown(source, splits) if labeled else []
    for kind, fraction in (("test", selection.test_fraction), ("val", selection.val_fraction)):
        wanted = fraction > 0 and not (kind == "test" and selection.test_on == "none")
        if kind not in splits and wanted and source.classes:
            if kind == "val" and selection.rule == "bootstrapping":
                raise UserError(
                    f"the rule bootstrapping draws from all training images, and data.val_fraction {fraction:g} would "
                    "hold out some of them first; set it to 0, or take the rule balanced"
                )
            splits["train"], held = _hold_out(source, splits["train"], fraction, selection.split_seed, groups)
            notes += _without_held(source, splits["train"], held, kind)
            if len(held):
                splits[kind] = held
                notes += _leave_with_group(source, splits, kind)
    if torn := straddling(source, splits):
        notes.append(f"{counted(torn, 'group')} of images stand in several of the data's own splits")
    if selection.near_duplicates == "leave_out" and copies is not None:
        notes += leave_out(source, splits, copies)
    splits["train"], few = _thinned(source, splits["train"], selection, seed)
    return splits, [*notes, *few, *(copies.notes if groups is not None and copies is not None else [])]


def groups_of(copies: NearDuplicates | None, selection: Selection) -> np.ndarray | None:
    """[N] as `NearDuplicates.groups`; None where no image has a near-duplicate, or where they are ignored."""
    if copies is None or selection.near_duplicates == "ignore":
        return None
    return groups if ((groups := copies.groups) >= 0).any() else None


def _thinned(source: Source, train: np.ndarray, selection: Selection, seed: int) -> tuple[np.ndarray, list[str]]:
    """The training images that are learnt from, and what a person should know about them."""
    labels = source.labels[train]
    if labels.ndim == 2 and (selection.per_class is not None or selection.rule == "bootstrapping"):
        key = "rule bootstrapping" if selection.per_class is None else "per_class"
        raise UserError(
            f"data.{key} counts images of one class, and an image may have several; give data.fraction alone"
        )
    seed = seed if selection.subset_seed is None else selection.subset_seed
    if selection.per_class is None:
        if selection.fraction is None:
            return train, []
        if selection.rule == "bootstrapping":
            if without := int((~subsets.labeled(labels)).sum()):
                raise UserError(
                    f"the rule bootstrapping draws from every class, and {counted(without, 'training image')} of "
                    f"{source.name} {'has' if without == 1 else 'have'} none; give data.fraction alone"
                )
            return train[subsets.bootstrapping(labels, selection.fraction)], []
        return train[subsets.fraction_of_each(labels, selection.fraction, seed)], []
    if not source.classes:
        raise UserError(f"per_class needs labels, and {source.name} has none; give a fraction")
    few = train[subsets.count_of_each(labels, selection.per_class, seed)]
    short = [source.classes[c] for c, n in enumerate(_count(source, train)) if n < selection.per_class]
    if not short:
        return few, []
    if selection.folds is not None:
        raise UserError(
            f"per_class must not exceed what {selection.folds} folds leave to learn from, got {selection.per_class}: "
            f"{some(short, 5)} has fewer; take fewer images, or leave the folds out"
        )
    note = f"fewer than {selection.per_class} training images in {counted(len(short), 'class')}: {some(short, 5)}"
    return few, [note]


def use_validation(splits: Splits, selection: Selection, name: str) -> None:
    """Learn from the data's own validation images, or test on them, where that is asked for; changes `splits`.

    Raises: UserError where the data declares none.
    """
    for key, wanted in (("train_on", selection.train_on == "train+val"), ("test_on", selection.test_on == "val")):
        if not wanted:
            continue
        if "val" not in splits:
            raise UserError(f"data.{key} asks for validation images, and {name} declares none; leave it out")
        held = splits.pop("val")
        if key == "test_on":
            splits["test"] = held
        else:
            splits["train"] = np.sort(np.concatenate([splits.get("train", held[:0]), held]))


def recall(source: Source, remembered: Mapping[str, Sequence[str]]) -> Splits:
    """The same images as in an earlier run, whatever the rules say today.

    Args:
        source: the images.
        remembered: split -> names, in order.

    Raises: UserError if images have vanished.
    """
    position = {name: i for i, name in enumerate(source.names)}
    gone = [name for names in remembered.values() for name in names if name not in position]
    if gone:
        raise UserError(
            f"{source.name} no longer holds {counted(len(gone), 'image')} that this run was given: {some(gone)}; put"
            " back what is gone, or start a new run"
        )
    return {kind: np.array([position[name] for name in names], dtype=np.int64) for kind, names in remembered.items()}


def check_classes(source: Source, train: np.ndarray) -> None:
    """Refuse data that no classifier can be trained on.

    Raises: UserError for data without labels, with one class only, or with a class that has no training images.
    """
    if not source.classes:
        raise UserError(
            f"{source.name} has images but no labels; to learn classes, sort them into one folder per class, or list"
            " them in a CSV with path,label; --recipe mae/photos learns without"
        )
    if len(source.classes) == 1 and source.labels.ndim == 1:
        raise UserError(f"{source.name} has one class only ({source.classes[0]!r}); it takes two to tell them apart")
    empty = [name for name, count in zip(source.classes, _count(source, train), strict=True) if count == 0]
    if empty:
        raise UserError(
            f"{len(empty)} of {len(source.classes)} classes have no training images: {some(empty)}; add some, or remove"
            " the class (every folder counts as one)"
        )


def _count(source: Source, rows: np.ndarray) -> list[int]:
    return subsets.count_by_class(source.labels[rows], len(source.classes)).tolist()


def _with_labels(source: Source) -> tuple[Splits, list[str]]:
    splits, notes = {}, list[str]()
    for kind, rows in source.splits.items():
        kept = rows[subsets.labeled(source.labels[rows])]
        damaged = np.isin(rows, list(source.damaged)) & ~np.isin(rows, kept)  # these are told for what they are
        if left_out := len(rows) - len(kept) - int(damaged.sum()):
            notes.append(f"left out {counted(left_out, f'{kind} image')} without a label")
        if len(kept):
            splits[kind] = kept
    return splits, notes


def _hold_out(
    source: Source, rows: np.ndarray, fraction: float, seed: int, copies: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Only labeled images are held out; of the data's own groups, all labeled images or none; else near-duplicates
    together (`copies` as in `groups_of`)."""
    has_label = subsets.labeled(source.labels[rows])
    known = rows[has_label]
    labels, near = source.labels[known], None if copies is None else copies[known]
    groups = None if source.groups is None else source.groups[known]
    if groups is None and near is not None and labels.ndim == 2:
        groups = parts_of(near, labels, fraction)
    if groups is None:
        stay, held = subsets.holdout(labels, fraction, seed, near)
    else:
        chosen = hold_out_groups(labels, groups, fraction, seed)
        stay, held = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    return np.sort(np.concatenate([known[stay], rows[~has_label]])), known[held]


def _leave_with_group(source: Source, splits: Splits, kind: str) -> list[str]:
    """Take out of the training what belongs to a group that was held out as a split, which is images without a label:
    only labeled ones are held out. A warning where there are any."""
    if source.groups is None:
        return []
    train, held = splits["train"], source.groups[splits[kind]]
    leave = np.isin(source.groups[train], held[held >= 0])
    splits["train"] = train[~leave]
    left = counted(int(leave.sum()), "image")
    return [f"left out {left} without a label, of groups that are held out as {kind}"] if leave.any() else []


def _unshown(source: Source, splits: Splits) -> list[str]:
    """A warning for each split that the data or a fold gives, and that is measured, where none of its images shows some
    class; of one class an image, validation images only choose."""
    warnings = []
    for kind in ("test", "val") if source.labels.ndim == 2 else ("test",):
        if kind not in splits:
            continue
        counts = _count(source, splits[kind])
        if absent := [name for name, count in zip(source.classes, counts, strict=True) if not count]:
            warnings.append(f"no {kind} image shows {some(absent, 5)}: nothing is measured of what no image shows")
    return warnings


def _without_held(source: Source, train: np.ndarray, held: np.ndarray, kind: str) -> list[str]:
    """A warning where classes have images to learn from and none that were held out as a split."""
    pairs = zip(source.classes, _count(source, train), _count(source, held), strict=True)
    without = [name for name, learned, kept in pairs if learned and not kept]
    few = "images" if source.groups is None else "groups"
    return (
        [f"no image of {counted(len(without), 'class')} is held out as {kind}, for too few {few}: {some(without, 5)}"]
        if without
        else []
    )


def _hold_out_fold(source: Source, splits: Splits, selection: Selection, copies: np.ndarray | None) -> list[str]:
    """Move one fold from the training images to the test, or to the validation of data with its own test; a warning.

    Raises: UserError where the data has its own validation and test images.
    """
    assert selection.folds is not None
    kind = "val" if "test" in splits else "test"
    if kind in splits:
        raise UserError(
            f"{source.name} declares its own validation and test images, so that no fold can be held out; "
            "--data.train_on train+val divides its validation images, too"
        )
    rows = splits["train"]
    known = rows[subsets.labeled(source.labels[rows])]
    near = None if copies is None else copies[known]
    held = known[folds_of(source, known, selection.folds, selection.split_seed, near) == selection.fold]
    splits["train"], splits[kind] = np.setdiff1d(rows, held), held
    notes = _leave_with_group(source, splits, kind)
    own = "the test images are the data's own in every fold; a fold's own validate"
    return notes if kind == "test" else [own, *notes]
