# SPDX-License-Identifier: Apache-2.0
"""From a name or a folder to the images of each split, cached or streamed, that a run is trained and evaluated on."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from ..cache import digest
from ..errors import UserError, counted, unknown
from ..parallel import Progress
from . import decoded_cache, subsets
from .data_settings import DataSettings
from .decoded_cache import DecodedCache, Survey
from .image_set import CachedImages, Images, Records, StreamedImages
from .image_settings import Channels, ImageSettings, choose_cache_size, choose_image_size, normalization
from .images.decode import OtherValues, Unreadable
from .near_duplicates import NearDuplicates
from .open import open_source
from .sources.source import UNLABELED, Source, portable
from .splits import Splits, check_classes, groups_of, restore, select, with_number_ranges
from .statistics import cached_statistics, sample_sizes, streamed_statistics
from .targets.objects import Annotations
from .warnings import warnings_of

__all__ = ["DataSettings", "Dataset", "ImageSettings", "prepare", "prepare_test"]

FOLDS = 5  # of a cross-validation within the training images
NUMBER = ("value",)  # the classes of a data set with a number an image: the name of a network's one output


@dataclass(frozen=True, eq=False)
class Dataset:
    """The data of one run."""

    name: str
    # Class names in the order of the labels; empty without labels; ("value",) for a number an image.
    classes: tuple[str, ...]
    splits: Mapping[str, Images]  # train, val, test, unlabeled -> images; one without is absent
    mean: Channels
    std: Channels
    image_settings: ImageSettings
    skipped: Mapping[str, str] = field(default_factory=dict)  # name of an image that could not be read -> reason
    warnings: tuple[str, ...] = ()
    # 32 hexadecimal digits that change with the classes, the splits, a label or a pixel, and not with names or where
    # the data lies. (Where images are streamed, files' paths and fingerprints stand for pixels.).
    fingerprint: str = ""
    # The fingerprint; where images are streamed, one that faithful copies in another folder have as well.
    portable: str = ""
    # Split -> objects of its images, or classes of their pixels (annotated.py); empty otherwise.
    annotations: Mapping[str, Annotations] = field(default_factory=dict)
    # Split -> digest of its images and labels, which changes as the portable fingerprint does, but with this split
    # alone.
    contents: Mapping[str, str] = field(default_factory=dict)
    # Val, test -> names of images with near-duplicates among the training images; empty where none have any, where they
    # were not searched, or where the splits were restored.
    near_duplicates: Mapping[str, list[str]] = field(default_factory=dict)
    find_groups: Callable[[], np.ndarray | None] = lambda: None

    @property
    def train(self) -> Images:
        """Training images; of a method with labels those that have one."""
        return self.splits["train"]

    @cached_property
    def trained_on(self) -> Images:
        """Training images, and behind them those of data.unlabeled, whose label is -1."""
        return self.train.followed_by(self.splits[UNLABELED]) if UNLABELED in self.splits else self.train

    @cached_property
    def train_groups(self) -> np.ndarray | None:
        """Groups of training images, [N] as in `subsets.assign`, that lie in one fold of a cross-validation: the
        data's, or near-duplicates; None where there are none."""
        return self.find_groups()

    @property
    def val(self) -> Images | None:
        """Validation images; None without."""
        return self.splits.get("val")

    @property
    def test(self) -> Images | None:
        """Test images; None without."""
        return self.splits.get("test")

    @property
    def held_out(self) -> dict[str, Images]:
        """Split -> images that are not trained on, test before validation: the first one counts."""
        return {split: self.splits[split] for split in ("test", "val") if split in self.splits}

    @property
    def image_size(self) -> int | list[int]:
        """Height and width of the network's input, pixels; a list where they differ."""
        assert self.image_settings.image_size is not None
        return self.image_settings.image_size

    @property
    def split_names(self) -> dict[str, list[str]]:
        """Split -> names of its images, in order; `prepare` restores them."""
        return {split: images.records.names for split, images in self.splits.items()}


def prepare(
    data: str | Path | Source,
    settings: DataSettings | None = None,
    image_settings: ImageSettings | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    remembered: Mapping[str, Sequence[str]] | None = None,
    labeled: bool = True,
) -> Dataset:
    """Prepare data for a run: choose its images, decode them into the cache (or have them streamed), check them.

    Args:
        data: a folder, file or name of a data set (`open_source`).
        seed: of the run; draws training subsets.
        remembered: the `split_names` of an earlier run, to restore its splits.
        labeled: whether labels are needed; else images without are training images as well.

    Raises: UserError if the data cannot be trained on.
    """
    settings, image_settings = settings or DataSettings(), image_settings or ImageSettings()
    source = data if isinstance(data, Source) else open_source(data)
    if not settings.skip_unreadable:
        decoded_cache.refuse(source, source.damaged, len(source))
    if labeled:
        check_classes(source, np.arange(len(source)))
    source, image_settings = _resolved(source, image_settings)
    near: NearDuplicates | None = None
    search = partial(_find_near_duplicates, with_number_ranges(source), settings, image_settings, progress)
    if remembered:
        splits, warnings = restore(source, remembered), list[str]()
    else:
        near = search()
        splits, warnings = select(with_number_ranges(source), settings, seed, labeled, near)
    if labeled:
        check_classes(source, splits["train"])
    read = _read(source, splits, image_settings, settings.skip_unreadable, progress)
    skipped = {source.names[i]: reason for i, reason in sorted({**source.damaged, **read.unreadable}.items())}
    if "train" not in read.splits:
        raise UserError(f"{source.name} has no training images that can be read")
    if skipped and labeled:
        check_classes(source, read.splits["train"])
    lost = ["validation" if kind == "val" else kind for kind in splits if kind not in read.splits]
    warnings += [f"no {kind} image can be read, so the run has no {kind}" for kind in lost]
    mean, std = _normalization(source, read, image_settings)
    duplicated = None if near is None else _duplicated(source, read.splits, near)
    searched = {} if remembered else duplicated
    warnings += warnings_of(source, read.splits, read.cached, settings, skipped, labeled, searched)
    marks = {kind: _digests(source, read, kind, anywhere=True) for kind in read.splits}
    here = marks if read.cached else {kind: _digests(source, read, kind, anywhere=False) for kind in read.splits}
    fingerprint, portable = (
        digest([*source.classes, *(part for kind in sorted(parts) for part in (kind, *parts[kind]))])
        for parts in (here, marks)
    )
    return Dataset(
        source.name,
        NUMBER if source.contents == "numbers" else source.classes,
        read.images,
        mean,
        std,
        image_settings,
        skipped,
        (*source.warnings, *warnings),
        fingerprint,
        portable,
        contents={kind: digest(mark) for kind, mark in marks.items()},
        near_duplicates=duplicated or {},
        find_groups=partial(
            _train_groups, source, read.splits["train"], settings, search if remembered else lambda: near
        ),
    )


def _train_groups(
    source: Source, rows: np.ndarray, settings: DataSettings, found: Callable[[], NearDuplicates | None]
) -> np.ndarray | None:
    """Return `Dataset.train_groups`."""
    if source.contents != "classes" or source.labels[rows].min() < 0 or source.groups is not None:
        return None if source.groups is None else source.groups[rows]
    near = groups_of(found(), settings)
    groups = None if near is None else subsets.limited_groups(near[rows], source.labels[rows], 1 / FOLDS)
    return None if groups is None or (groups < 0).all() else groups


def _find_near_duplicates(
    source: Source, settings: DataSettings, image_settings: ImageSettings, progress: Progress | None
) -> NearDuplicates | None:
    """Search a source for near-duplicates if some images are held out; None for images that are to be streamed, none
    of which is opened first."""
    holds_out = source.classes and (settings.val_fraction or settings.test_fraction or settings.folds)
    if settings.near_duplicates == "ignore" or image_settings.stream:
        return None
    if not (holds_out or source.splits.keys() - {"train"}):
        return None
    return decoded_cache.find_near_duplicates(source, progress)


def _duplicated(source: Source, splits: Splits, near: NearDuplicates) -> dict[str, list[str]]:
    """Return `Dataset.near_duplicates`."""
    rows_of = {kind: rows[near.among(rows, splits["train"])] for kind, rows in splits.items() if kind != "train"}
    return {kind: [source.names[i] for i in rows] for kind, rows in rows_of.items() if len(rows)}


def prepare_test(
    data: str | Path | Source,
    classes: Sequence[str],
    image_settings: ImageSettings,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> tuple[Images, dict[str, str]]:
    """Prepare other data to evaluate a trained network on: its test split, or all of it without one.

    Args:
        classes: of the network, in the order of its logits; the data may lack some, but have no others.

    Returns: the images, labeled in the network's order, and skipped names with reasons.
    Raises: UserError if the data has a class that the network was not trained on, or no labels.
    """
    source = data if isinstance(data, Source) else open_source(data)
    if not skip_unreadable:
        decoded_cache.refuse(source, source.damaged, len(source))
    for name in source.classes:
        if name not in classes:
            raise unknown(f"class of {source.name}", name, classes)
    if source.contents != "numbers":
        source = dataclasses.replace(source, labels=_numbered(source, classes), classes=tuple(classes))
    rows = _test_rows(source)
    rows = rows[subsets.labeled(source.labels[rows])]
    if not len(rows):
        raise UserError(f"{source.name} has no labeled images to test on")
    images, skipped = read_rows(source, rows, image_settings, skip_unreadable, progress)
    return images, {source.names[i]: reason for i, reason in source.damaged.items()} | skipped


def warnings_on_test(source: Source, skipped: Mapping[str, str]) -> list[str]:
    """Warnings about the images of `prepare_test`, which returned `skipped`."""
    rows = _test_rows(source)
    unlabeled = int((~subsets.labeled(source.labels[rows]) & ~np.isin(rows, list(source.damaged))).sum())
    left = [f"left out {counted(unlabeled, 'image')} without a label"] if unlabeled else []
    lost = [f"skipped {counted(len(skipped), 'image')} that could not be read"] if skipped else []
    return [*source.warnings, *left, *lost]


def _test_rows(source: Source) -> np.ndarray:
    """Positions of a source's test images; of all where it has none."""
    return source.splits.get("test", np.arange(len(source)))


def read_rows(
    source: Source,
    rows: np.ndarray,
    image_settings: ImageSettings,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> tuple[Images, dict[str, str]]:
    """Read some images of a source; returns them, and skipped names with reasons. Arguments as in `prepare_test`.

    Raises: UserError where none can be read.
    """
    source, image_settings = _resolved(source, image_settings)
    read = _read(source, {"test": rows}, image_settings, skip_unreadable, progress)
    if "test" not in read.images:
        raise UserError(f"{source.name} has no images to test on that can be read")
    return read.images["test"], {source.names[i]: reason for i, reason in sorted(read.unreadable.items())}


@dataclass(frozen=True)
class _Read:
    """Splits without unreadable images, and without splits that then are empty; `cached` is None for streamed ones."""

    splits: Splits
    images: dict[str, Images]
    unreadable: dict[int, str]
    cached: DecodedCache | None


def _resolved(source: Source, image_settings: ImageSettings) -> tuple[Source, ImageSettings]:
    """Choose every automatic size, and give the source the settings' pixel format and fit.

    Raises: UserError where the first image does not have these channels or values.
    """
    source = dataclasses.replace(source, pixel_format=image_settings.pixel_format)
    try:
        if not image_settings.stream:  # of these none is opened beforehand
            source.picture(0, shrink=1)
    except OtherValues as error:
        raise UserError(str(error)) from error
    except Unreadable:
        pass  # reported with all others
    if image_settings.image_size is None or image_settings.cache_size is None:
        sizes = sample_sizes(source)
        image_size = image_settings.image_size or choose_image_size(sizes)
        image_settings = dataclasses.replace(image_settings, image_size=image_size)
        cache_size = image_settings.cache_size or choose_cache_size(
            image_settings.longest_input, sizes, image_settings.cache_margin
        )
        image_settings = dataclasses.replace(image_settings, cache_size=cache_size)
    return dataclasses.replace(source, fit=image_settings.fitting), image_settings


def _read(
    source: Source, splits: Splits, image_settings: ImageSettings, skip_unreadable: bool, progress: Progress | None
) -> _Read:
    used = np.sort(np.concatenate(list(splits.values())))
    side = image_settings.cache_size
    assert side is not None
    image_bytes, budget = image_settings.channels * side * side, int(image_settings.max_cache_gb * 1e9)
    decoded: Survey
    if image_settings.stream or (image_settings.stream is None and len(used) * image_bytes > budget):
        # Unless bad images are to be skipped, none is opened before training needs it: there may be millions.
        unopened = Survey(used, np.full((len(used), 2), -1, dtype=np.int32), {})
        decoded = decoded_cache.survey(source, used, progress) if skip_unreadable else unopened
    else:
        # All where all fit: runs on other subsets, seeds and splits then share one cache.
        rows = None if len(source) * image_bytes <= budget else used
        decoded = decoded_cache.build(source, side, rows, budget, skip_unreadable=True, progress=progress)
    unreadable = {i: decoded.unreadable[i] for i in used.tolist() if i in decoded.unreadable}
    if not skip_unreadable:
        decoded_cache.refuse(source, unreadable, len(used))
    cached = decoded if isinstance(decoded, DecodedCache) else None
    images: dict[str, Images] = {}
    readable = {kind: rows[~np.isin(rows, list(unreadable))] for kind, rows in splits.items()}
    readable = {kind: rows for kind, rows in readable.items() if len(rows)}
    for kind, rows in readable.items():
        places = np.searchsorted(decoded.rows, rows)
        labels, sizes = torch.from_numpy(source.labels[rows]), torch.from_numpy(decoded.sizes[places])
        records = Records(labels, sizes, [source.names[i] for i in rows])
        if cached is not None:
            images[kind] = CachedImages(cached.pixels, torch.from_numpy(places), records)
        else:
            images[kind] = StreamedImages(source, torch.from_numpy(rows), records, side)
    return _Read(readable, images, unreadable, cached)


def _normalization(source: Source, read: _Read, image_settings: ImageSettings) -> tuple[Channels, Channels]:
    if image_settings.normalize != "dataset":
        return normalization(image_settings.normalize, image_settings.channels)
    train = read.images["train"]
    if isinstance(train, CachedImages):
        return cached_statistics(train.pixels, train.rows)
    return streamed_statistics(source, read.splits["train"], train.side)


def _digests(source: Source, read: _Read, kind: str, anywhere: bool) -> list[str]:
    """Digests of a split's labels and of its pixels; for streamed images `anywhere` takes what faithful copies have in
    common."""
    rows = read.splits[kind]
    if read.cached is not None:
        marks = [mark.tobytes().hex() for mark in read.cached.digests[np.searchsorted(read.cached.rows, rows)]]
    else:
        root, files = "" if anywhere else source.root, [(source.names[i], source.fingerprints[i]) for i in rows]
        marks = [f"{root}\0{name}\0{portable(mark) if anywhere else mark}" for name, mark in files]
    return [digest(map(str, source.labels[rows].tolist())), digest(marks)]


def _numbered(source: Source, classes: Sequence[str]) -> np.ndarray:
    """Renumber a source's labels by the positions of its classes in `classes`."""
    position = {name: i for i, name in enumerate(classes)}
    numbers = [position[name] for name in source.classes]
    if source.labels.ndim == 1:
        return np.array([*numbers, -1])[source.labels]  # the last is for "no label"
    labels = np.zeros((len(source), len(classes)), source.labels.dtype)
    labels[:, numbers] = source.labels
    return labels
