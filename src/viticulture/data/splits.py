# SPDX-License-Identifier: Apache-2.0
"""Training, validation and test images of a source: the data's splits, else a seeded rule."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import UserError, counted, some
from ..outputs import csv_cell
from . import subsets
from .data_settings import DataSettings
from .near_duplicates import NearDuplicates
from .sources.labels import doubtful
from .sources.source import UNLABELED, Source
from .sources.written import csv_rows

Splits = dict[str, np.ndarray]  # train, val, test -> positions in the source, int64; a split without images is absent
NUMBER_RANGES = 5


def select(
    source: Source, settings: DataSettings, seed: int, labeled: bool = True, near: NearDuplicates | None = None
) -> tuple[Splits, list[str]]:
    """Choose the images of each split: hold out first (by `split_seed`), then the training subset (by `subset_seed`, or
    else by `seed`).

    Args:
        near: the near-duplicates among the source's images; None where they are unknown.

    Returns: the splits, and warnings.
    Raises: UserError if nothing is left to train on, or if validation images would be taken from those that the
        paper's rule draws from.
    """
    own = {kind: rows for kind, rows in source.splits.items() if kind != UNLABELED}
    splits, warnings = _with_labels(source, own) if labeled else (own, list[str]())
    groups, aside = groups_of(near, settings), own.get("test", np.zeros(0, dtype=np.int64))
    warnings += doubtful(source.classes) if labeled else []
    apply_test_on(splits, settings, source.name)
    if "train" not in splits:
        there = " and ".join(splits) or "images without labels"
        raise UserError(f"{source.name} holds no training images, only {there}")
    if settings.folds is not None:
        warnings += _hold_out_fold(source, splits, settings, groups)
    warnings += _missing_classes(source, splits) if labeled else []
    for kind, fraction in fractions_to_hold_out(splits, settings) if source.classes else ():
        if kind == "val" and settings.rule == "bootstrapping":
            raise UserError(
                f"the rule bootstrapping draws from all training images, and data.val_fraction {fraction:g} would "
                "hold out some of them first; set it to 0, or take the rule balanced"
            )
        splits["train"], held = _hold_out(source, splits["train"], fraction, settings.split_seed, groups)
        warnings += _classes_without_held_out(source, splits["train"], held, kind)
        if len(held):
            splits[kind] = held
            warnings += _leave_out_with_group(source, splits, kind)
    if divided := groups_across_splits(source, splits):
        warnings.append(f"{counted(divided, 'group')} of images are in several of the data's splits")
    if settings.near_duplicates == "leave_out" and near is not None:
        warnings += _leave_out_near_duplicates(source, splits, near, aside)
    if settings.leave_out is not None:
        warnings += _leave_out_listed(source, splits, settings.leave_out)
    splits["train"], few = _subset(source, splits["train"], settings, seed)
    if UNLABELED in source.splits:
        warnings += _add_unlabeled(source, splits, near, aside)
    return splits, [*warnings, *few, *(near.warnings if groups is not None and near is not None else [])]


def groups_of(near: NearDuplicates | None, settings: DataSettings) -> np.ndarray | None:
    """[N] as `NearDuplicates.groups`; None where no image has a near-duplicate, or where they are ignored."""
    if near is None or settings.near_duplicates == "ignore":
        return None
    return groups if ((groups := near.groups) >= 0).any() else None


def apply_test_on(splits: Splits, settings: DataSettings, name: str) -> None:
    """Leave the test aside, test on the data's validation images, or train on them, as the settings say.

    Raises: UserError where the data has no validation images.
    """
    if settings.test_on == "none":
        splits.pop("test", None)
    for key, used in (("train_on", settings.train_on == "train+val"), ("test_on", settings.test_on == "val")):
        if used and "val" not in splits:
            raise UserError(f"data.{key} needs validation images, and {name} has none; leave it out")
        if used:
            val = splits.pop("val")
            if key == "test_on":
                splits["test"] = val
            else:
                splits["train"] = np.sort(np.concatenate([splits.get("train", val[:0]), val]))


def fractions_to_hold_out(splits: Splits, settings: DataSettings) -> list[tuple[str, float]]:
    """Splits that the data lacks and that are to be held out, test first, each with its share."""
    shares = {"test": settings.test_fraction if settings.test_on != "none" else 0.0, "val": settings.val_fraction}
    return [(kind, fraction) for kind, fraction in shares.items() if kind not in splits and fraction > 0]


def restore(source: Source, saved: Mapping[str, Sequence[str]]) -> Splits:
    """Select the images of an earlier run, independent of today's rules. Raises: UserError if images are missing."""
    if UNLABELED not in source.splits:  # none are needed to evaluate
        saved = {kind: names for kind, names in saved.items() if kind != UNLABELED}
    position = {name: i for i, name in enumerate(source.names)}
    missing = [name for names in saved.values() for name in names if name not in position]
    if missing:
        raise UserError(
            f"{source.name} no longer holds {counted(len(missing), 'image')} of this run: {some(missing)}; restore the "
            "missing files, or start a new run"
        )
    return {kind: np.array([position[name] for name in names], dtype=np.int64) for kind, names in saved.items()}


def with_number_ranges(source: Source) -> Source:
    """Return a source of numbers with ranges of them as classes, equally many images in each, so that every split and
    subset holds small and large ones; other sources as they are."""
    if source.contents != "numbers":
        return source
    labeled_rows = np.flatnonzero(subsets.labeled(source.labels))
    ranges = min(NUMBER_RANGES, max(len(labeled_rows) // 2, 1))
    labels = np.full(len(source), -1, dtype=np.int64)
    labels[labeled_rows[np.argsort(source.labels[labeled_rows], kind="stable")]] = (
        np.arange(len(labeled_rows)) * ranges // max(len(labeled_rows), 1)
    )
    return replace(source, classes=tuple(f"range {k} of {ranges}" for k in range(1, ranges + 1)), labels=labels)


def check_classes(source: Source, train: np.ndarray) -> None:
    """Refuse data that no classifier can be trained on, or no regression.

    Raises: UserError for data without labels, with one class only, with a class that has no training images, or with
        the same number for all training images.
    """
    if source.contents == "numbers":
        numbers = source.labels[train]
        if len(np.unique(numbers[subsets.labeled(numbers)])) < 2:
            raise UserError(f"{source.name} needs training images with different numbers; label more images")
        return
    if not source.classes:
        raise UserError(
            f"{source.name} has images but no labels; to train a classifier, sort them into one folder per class, or "
            "list them in a CSV with path,label; --recipe mae/photos trains without labels"
        )
    if len(source.classes) == 1 and source.labels.ndim == 1:
        raise UserError(f"{source.name} has one class only ({source.classes[0]!r}); a classifier needs two")
    empty = [name for name, count in zip(source.classes, _count(source, train), strict=True) if count == 0]
    if empty:
        raise UserError(
            f"{len(empty)} of {len(source.classes)} classes have no training images: {some(empty)}; add some, or remove"
            " the class (every folder counts as one)"
        )


def folds_of(source: Source, rows: np.ndarray, folds: int, seed: int, near: np.ndarray | None = None) -> np.ndarray:
    """The fold of each labeled image among `rows`; near-duplicates, `near` [N] as in `subsets.holdout`, lie in one fold
    as far as every fold can hold its share of every class.

    Raises: UserError for data without labels, and for a class with fewer images or groups than folds.
    """
    if not source.classes:
        raise UserError(f"folds hold out images of every class, and {source.name} has no labels; leave data.folds out")
    labels, groups = source.labels[rows], None if source.groups is None else source.groups[rows]
    number = subsets.numbered(groups, len(rows))
    shows = [labels == c if labels.ndim == 1 else labels[:, c] > 0 for c in range(len(source.classes))]
    counts = {name: len(np.unique(number[there])) for name, there in zip(source.classes, shows, strict=True)}
    if short := [f"{name} has {count}" for name, count in counts.items() if 0 < count < folds]:
        what = "image" if groups is None else "group"
        raise UserError(
            f"{folds} folds need {counted(folds, what)} of every class: {some(short, 5)}; take at most "
            f"{max(min(count for count in counts.values() if count), 2)} folds, or leave such classes out"
        )
    if groups is None and near is not None:
        groups = subsets.limited_groups(near, labels, 1 / folds)
        for there in shows:
            if len(np.unique(subsets.numbered(groups, len(rows))[there])) < folds:
                groups[there] = -1
    return subsets.assign(labels, groups, [1 / folds] * folds, seed)


def groups_across_splits(source: Source, splits: Splits) -> int:
    """Count the groups with images in more than one split."""
    if source.groups is None:
        return 0
    by_split = [np.unique(groups[groups >= 0]) for groups in (source.groups[rows] for rows in splits.values())]
    return int((np.unique(np.concatenate(by_split), return_counts=True)[1] > 1).sum())


def _count(source: Source, rows: np.ndarray) -> list[int]:
    return subsets.count_by_class(source.labels[rows], len(source.classes)).tolist()


def _with_labels(source: Source, own: Splits) -> tuple[Splits, list[str]]:
    splits, warnings = {}, list[str]()
    for kind, rows in own.items():
        with_label = rows[subsets.labeled(source.labels[rows])]
        damaged = np.isin(rows, list(source.damaged)) & ~np.isin(rows, with_label)  # reported as damaged
        if left_out := len(rows) - len(with_label) - int(damaged.sum()):
            warnings.append(f"left out {counted(left_out, f'{kind} image')} without a label")
        if len(with_label):
            splits[kind] = with_label
    return splits, warnings


def _hold_out(
    source: Source, rows: np.ndarray, fraction: float, seed: int, near: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Hold out labeled images: of the data's groups, all of them or none; else near-duplicates together."""
    has_label = subsets.labeled(source.labels[rows])
    labeled_rows = rows[has_label]
    labels, near = source.labels[labeled_rows], None if near is None else near[labeled_rows]
    groups = None if source.groups is None else source.groups[labeled_rows]
    if groups is None and near is not None and labels.ndim == 2:
        groups = subsets.limited_groups(near, labels, fraction)
    if groups is None:
        stay, held = subsets.holdout(labels, fraction, seed, near)
    else:
        chosen = subsets.hold_out_groups(labels, groups, fraction, seed)
        stay, held = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    return np.sort(np.concatenate([labeled_rows[stay], rows[~has_label]])), labeled_rows[held]


def _hold_out_fold(source: Source, splits: Splits, settings: DataSettings, near: np.ndarray | None) -> list[str]:
    """Move one fold from the training images to the test, or to the validation of data with a test split; a warning.

    Raises: UserError where the data has its own validation and test images.
    """
    assert settings.folds is not None
    kind = "val" if "test" in splits else "test"
    if kind in splits:
        raise UserError(
            f"{source.name} has its own validation and test images, so that no fold can be held out; "
            "--data.train_on train+val divides its validation images, too"
        )
    rows = splits["train"]
    labeled_rows = rows[subsets.labeled(source.labels[rows])]
    fold = folds_of(
        source, labeled_rows, settings.folds, settings.split_seed, None if near is None else near[labeled_rows]
    )
    held = labeled_rows[fold == settings.fold]
    splits["train"], splits[kind] = np.setdiff1d(rows, held), held
    warnings = _leave_out_with_group(source, splits, kind)
    same_test = "the data's test images are the same in every fold; the fold itself is for validation"
    return warnings if kind == "test" else [same_test, *warnings]


def _leave_out_with_group(source: Source, splits: Splits, kind: str) -> list[str]:
    """Leave out unlabeled training images of groups that were held out as a split: only labeled ones are held out."""
    if source.groups is None:
        return []
    train, held = splits["train"], source.groups[splits[kind]]
    leave = np.isin(source.groups[train], held[held >= 0])
    splits["train"] = train[~leave]
    left = counted(int(leave.sum()), "image")
    return [f"left out {left} without a label, of groups that are held out as {kind}"] if leave.any() else []


def _leave_out_near_duplicates(source: Source, splits: Splits, near: NearDuplicates, aside: np.ndarray) -> list[str]:
    """Leave out training images that are near-duplicates of held-out ones, or of the data's test images, `aside`.

    Raises: UserError where a class would lose all of its training images.
    """
    train = splits["train"]
    held = np.concatenate([aside, *(rows for kind, rows in splits.items() if kind != "train")])
    leave = near.among(train, held)
    splits["train"] = train[~leave]
    if lost := _lost_classes(source, train, splits["train"]):
        raise UserError(
            f"data.near_duplicates leave_out would leave no training image of {some(lost, 5)}: all are near-duplicates "
            "of held-out images; see `viticulture data DATA --out pairs.csv`, or take together"
        )
    left = counted(int(leave.sum()), "training image")
    return [f"left out {left} for being near-duplicates of held-out images"] if leave.any() else []


def _leave_out_listed(source: Source, splits: Splits, file: str) -> list[str]:
    """Leave out the training images that a CSV lists.

    Raises: UserError for a file without a column image, or with no image of the source; where a class would lose all of
        its training images.
    """
    header, rows, _ = csv_rows(Path(file), padded=True)
    if "image" not in (columns := [name.lower() for name in header]):
        raise UserError(f"data.leave_out needs a column image, and {file} has none; name one of `viticulture review`")
    place, train = columns.index("image"), splits["train"]
    names = {cells[place] for _, cells in rows if cells[place]}
    there = np.array([str(csv_cell(name)).strip() in names for name in source.names])
    if names and not there.any():
        raise UserError(f"data.leave_out lists no image of {source.name}: {some(sorted(names), 3)}; was it moved?")
    splits["train"] = train[~there[train]]
    if lost := _lost_classes(source, train, splits["train"]):
        raise UserError(
            f"data.leave_out would leave no training image of {some(lost, 5)}; keep some, or remove the class"
        )
    left, gone = len(train) - len(splits["train"]), len(names) - int(there.sum())
    missing = f"{counted(gone, 'image')} of {file} {'is' if gone == 1 else 'are'} not in {source.name}"
    held = sum(int(there[rows].sum()) for kind, rows in splits.items() if kind not in ("train", UNLABELED))
    staying = f"; {counted(held, 'held-out image')} of it {'stays' if held == 1 else 'stay'}" if held else ""
    return [f"left out {counted(left, 'training image')} by {file}{staying}", *([missing] if gone else [])]


def _add_unlabeled(source: Source, splits: Splits, near: NearDuplicates | None, aside: np.ndarray) -> list[str]:
    """Add the images of data.unlabeled, without near-duplicates of held-out images, or of the data's own test images,
    `aside`.

    Raises: UserError where all of them are.
    """
    rows = source.splits[UNLABELED]
    held = np.concatenate([aside, *(held for kind, held in splits.items() if kind != "train")])
    copied = source.copies(rows, held) if near is None else near.among(rows, held)
    if copied.all():
        raise UserError(
            f"all {counted(len(rows), 'image')} of data.unlabeled are, or resemble, validation or test images of "
            f"{source.name}, from which a training must not learn; name other images"
        )
    splits[UNLABELED] = rows[~copied]
    left = counted(int(copied.sum()), "unlabeled image")
    how = "the files" if near is None else "near-duplicates"
    warnings = [f"left out {left} for being {how} of held-out images"] if copied.any() else []
    if near is None and len(held):
        warnings.append(
            "near-duplicates are not searched: of unlabeled images only copies of held-out files are left out"
        )
    return warnings


def _lost_classes(source: Source, before: np.ndarray, after: np.ndarray) -> list[str]:
    """Return the classes with images before but none after."""
    counts = zip(source.classes, _count(source, before), _count(source, after), strict=True)
    return [name for name, had, has in counts if had and not has]


def _missing_classes(source: Source, splits: Splits) -> list[str]:
    """Warn of splits of the data, or folds, without images of some class; with one class an image, of the test alone,
    as validation images only choose."""
    warnings = []
    for kind in ("test", "val") if source.labels.ndim == 2 else ("test",):
        if kind in splits:
            counts = zip(source.classes, _count(source, splits[kind]), strict=True)
            if absent := [name for name, count in counts if not count]:
                warnings.append(f"no {kind} image shows {some(absent, 5)}: nothing is measured of what no image shows")
    return warnings


def _classes_without_held_out(source: Source, train: np.ndarray, held: np.ndarray, kind: str) -> list[str]:
    """Warn of classes with training images of which none were held out as a split."""
    counts = zip(source.classes, _count(source, train), _count(source, held), strict=True)
    without = [name for name, trained, held_out in counts if trained and not held_out]
    few, classes = "images" if source.groups is None else "groups", counted(len(without), "class")
    why = f"no image of {classes} is held out as {kind}, for too few {few}: {some(without, 5)}"
    return [why] if without else []


def _subset(source: Source, train: np.ndarray, settings: DataSettings, seed: int) -> tuple[np.ndarray, list[str]]:
    """The training subset by `fraction` or `per_class`, and warnings."""
    labels = source.labels[train]
    if labels.ndim == 2 and (settings.per_class is not None or settings.rule == "bootstrapping"):
        key = "rule bootstrapping" if settings.per_class is None else "per_class"
        raise UserError(
            f"data.{key} counts images of one class, and an image may have several; set data.fraction alone"
        )
    seed = seed if settings.subset_seed is None else settings.subset_seed
    if settings.per_class is None:
        if settings.fraction is None:
            return train, []
        if settings.rule == "balanced":
            return train[subsets.fraction_of_each(labels, settings.fraction, seed)], []
        if without := int((~subsets.labeled(labels)).sum()):
            raise UserError(
                f"the rule bootstrapping draws from every class, and {counted(without, 'training image')} of "
                f"{source.name} {'has' if without == 1 else 'have'} none; set data.fraction alone"
            )
        return train[subsets.bootstrapping(labels, settings.fraction)], []
    if not source.classes:
        raise UserError(f"per_class needs labels, and {source.name} has none; set data.fraction")
    few = train[subsets.count_of_each(labels, settings.per_class, seed)]
    short = [source.classes[c] for c, n in enumerate(_count(source, train)) if n < settings.per_class]
    if short and settings.folds is not None:
        raise UserError(
            f"per_class must not exceed the training images of {settings.folds} folds, got {settings.per_class}: "
            f"{some(short, 5)} has fewer; take fewer images, or leave the folds out"
        )
    classes = counted(len(short), "class")
    warning = f"fewer than {settings.per_class} training images in {classes}: {some(short, 5)}"
    return few, [warning] if short else []
