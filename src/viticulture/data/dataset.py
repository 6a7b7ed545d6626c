# SPDX-License-Identifier: Apache-2.0
"""From a name or a folder to the splits that a run learns from and is judged by."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..cache import digest
from ..errors import UserError, counted, unknown
from ..parallel import Progress
from . import decoded_cache, subsets
from .image_set import CachedImages, Images, Records
from .image_settings import Channels, ImageSettings, choose_cache_size, choose_image_size, normalization
from .images.decode import OtherValues, Unreadable
from .near_duplicates import NearDuplicates
from .open import open_source
from .sources.source import Source, portable
from .splits import Selection, Splits, check_classes, recall, select
from .statistics import cached_statistics, sample_sizes, streamed_statistics
from .stream import StreamImages
from .targets.objects import Annotations
from .warnings import warnings_of

__all__ = ["Dataset", "ImageSettings", "Selection", "prepare", "prepare_test"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Data as one run sees it.

    Args:
        name: what to call it.
        classes: class names in the order of the labels; empty without labels.
        train: images to learn from.
        val: images to choose by; None without.
        test: images to report on; None without.
        image_size: height and width of the network's input, pixels; a list where they differ.
        mean: per channel, subtracted from images scaled to [0, 1].
        std: per channel, divides after the mean is subtracted.
        image_settings: the sizes and the normalization, with every automatic choice made.
        split_names: split -> names of its images, in order; `prepare` takes it back as `remembered`.
        skipped: name of an image that could not be read -> what is wrong with it.
        warnings: what a person should know, one sentence each.
        fingerprint: 32 hexadecimal digits that change with the classes, the splits, a label or a pixel, and not with
            names or where the data lies. (Where images are streamed, files' paths and fingerprints stand for pixels.)
        portable: the fingerprint; where images are streamed, one that faithful copies in another folder have as well.
        annotations: split -> objects of its images, or classes of their pixels (annotated.py); empty otherwise.
        contents: split -> digest of what its images hold and are labeled, which changes as the portable fingerprint
            does, but with this split alone.
        near_duplicates: val, test -> names of images with near-duplicates among the training images; empty where none
            have any, where they were not looked for, or where the splits were remembered.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    val: Images | None
    test: Images | None
    image_size: int | list[int]
    mean: Channels
    std: Channels
    image_settings: ImageSettings
    split_names: dict[str, list[str]]
    skipped: dict[str, str]
    warnings: tuple[str, ...]
    fingerprint: str
    portable: str
    annotations: Mapping[str, Annotations] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    near_duplicates: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def held_out(self) -> dict[str, Images]:
        """Split -> images that do not teach, test before validation: the first one counts. Empty where all teach."""
        splits = {"test": self.test, "val": self.val}
        return {split: images for split, images in splits.items() if images is not None}


def prepare(
    data: str | Path | Source,
    selection: Selection | None = None,
    image_settings: ImageSettings | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    remembered: Mapping[str, Sequence[str]] | None = None,
    labeled: bool = True,
) -> Dataset:
    """Make data ready for a run: choose its images, decode them into a store (or have them streamed), check them.

    Args:
        data: a folder, file or name of a data set (`open_source`).
        selection: which images to use; None for the defaults.
        image_settings: in what size; None for the defaults.
        seed: the run's; draws subsets of the training images.
        progress: told how many images are decoded.
        remembered: the `split_names` of an earlier run, to have exactly its images whatever the rules say today.
        labeled: whether labels are needed; else images without are welcome as training images.

    Raises: UserError if the data cannot be trained on.
    """
    selection, image_settings = selection or Selection(), image_settings or ImageSettings()
    source = data if isinstance(data, Source) else open_source(data)
    if not selection.skip_unreadable:
        decoded_cache.refuse(source, source.damaged, len(source))
    if labeled:
        check_classes(source, np.arange(len(source)))
    source, image_settings = _as_wanted(source, image_settings)
    assert image_settings.image_size is not None
    copies = None if remembered else _copies(source, selection, image_settings, progress)
    splits, notes = (recall(source, remembered), []) if remembered else select(source, selection, seed, labeled, copies)
    if labeled:
        check_classes(source, splits["train"])
    read = _read(source, splits, image_settings, selection.skip_unreadable, progress)
    skipped = {source.names[i]: reason for i, reason in sorted({**source.damaged, **read.unreadable}.items())}
    if "train" not in read.splits:
        raise UserError(f"{source.name} has no training images that can be read")
    if skipped and labeled:
        check_classes(source, read.splits["train"])
    lost = ["validation" if kind == "val" else kind for kind in splits if kind not in read.splits]
    notes += [f"no {kind} image can be read, so the run has no {kind}" for kind in lost]
    mean, std = _normalization(source, read, image_settings)
    names = {kind: [source.names[i] for i in rows] for kind, rows in read.splits.items()}
    near = {} if remembered else _near(source, read.splits, copies)
    warnings = (*source.notes, *notes, *warnings_of(source, read.splits, read.held, selection, skipped, labeled, near))
    marks = _marks(source, read, anywhere=True)
    fingerprint = _fingerprint(source, marks)
    return Dataset(
        name=source.name,
        classes=source.classes,
        train=read.images["train"],
        val=read.images.get("val"),
        test=read.images.get("test"),
        image_size=image_settings.image_size,
        mean=mean,
        std=std,
        image_settings=image_settings,
        split_names=names,
        skipped=skipped,
        warnings=warnings,
        fingerprint=_fingerprint(source, _marks(source, read, anywhere=False)) if read.held is None else fingerprint,
        portable=fingerprint,
        contents={kind: digest(mark) for kind, mark in marks.items()},
        near_duplicates=near or {},
    )


def _copies(
    source: Source, selection: Selection, image_settings: ImageSettings, progress: Progress | None
) -> NearDuplicates | None:
    """The near-duplicates among a source's images, where some are held out; None where they are not looked for: of
    images that are to be streamed none is opened beforehand."""
    drawn = bool(source.classes) and (selection.val_fraction or selection.test_fraction or selection.folds)
    if (
        selection.near_duplicates == "ignore"
        or image_settings.stream
        or not (drawn or source.splits.keys() - {"train"})
    ):
        return None
    return decoded_cache.find_near_duplicates(source, progress)


def _near(source: Source, splits: Splits, copies: NearDuplicates | None) -> dict[str, list[str]] | None:
    """As `Dataset.near_duplicates`; None where they were not looked for."""
    if copies is None:
        return None
    held = {kind: rows[copies.among(rows, splits["train"])] for kind, rows in splits.items() if kind != "train"}
    return {kind: [source.names[i] for i in rows] for kind, rows in held.items() if len(rows)}


def prepare_test(
    data: str | Path | Source,
    classes: Sequence[str],
    image_settings: ImageSettings,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> tuple[Images, dict[str, str]]:
    """Other data to judge a trained network by: its test split, or all of it where it declares none.

    Args:
        data: as in `prepare`.
        classes: the network's, in the order of its logits; the data may lack some, but have no others.
        image_settings: the sizes that the network was trained with.
        skip_unreadable: go on without images that cannot be read.
        progress: as in `prepare`.

    Returns: the images, labeled in the network's order, and what was skipped.
    Raises: UserError if the data has a class that the network does not know, or no labels.
    """
    source = data if isinstance(data, Source) else open_source(data)
    if not skip_unreadable:
        decoded_cache.refuse(source, source.damaged, len(source))
    for name in source.classes:
        if name not in classes:
            raise unknown(f"class of {source.name}", name, classes)
    source = dataclasses.replace(source, labels=_numbered(source, classes), classes=tuple(classes))
    rows = _to_test_on(source)
    rows = rows[subsets.labeled(source.labels[rows])]
    if not len(rows):
        raise UserError(f"{source.name} has no labeled images to test on")
    images, skipped = read_rows(source, rows, image_settings, skip_unreadable, progress)
    return images, {source.names[i]: reason for i, reason in source.damaged.items()} | skipped


def warnings_on_test(source: Source, skipped: Mapping[str, str]) -> list[str]:
    """What a person should know of the images that `prepare_test` takes of a source, a sentence each; `skipped` as it
    gave them."""
    rows = _to_test_on(source)
    bare = rows[~subsets.labeled(source.labels[rows]) & ~np.isin(rows, list(source.damaged))]
    left = [f"left out {counted(len(bare), 'image')} without a label"] if len(bare) else []
    lost = [f"skipped {counted(len(skipped), 'image')} that could not be read"] if skipped else []
    return [*source.notes, *left, *lost]


def _to_test_on(source: Source) -> np.ndarray:
    """Positions of a source's test images; of all where it declares none."""
    return source.splits.get("test", np.arange(len(source)))


def read_rows(
    source: Source,
    rows: np.ndarray,
    image_settings: ImageSettings,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> tuple[Images, dict[str, str]]:
    """Some images of a source, and by name what is wrong with those that were skipped; arguments as `prepare_test`.

    Raises: UserError where none can be read.
    """
    source, image_settings = _as_wanted(source, image_settings)
    read = _read(source, {"test": rows}, image_settings, skip_unreadable, progress)
    if "test" not in read.images:
        raise UserError(f"{source.name} has no images to test on that can be read")
    return read.images["test"], {source.names[i]: reason for i, reason in sorted(read.unreadable.items())}


@dataclass(frozen=True)
class _Read:
    """The splits without their unreadable images, and without splits of which none is left; `held` is None where they
    are streamed."""

    splits: Splits
    images: dict[str, Images]
    unreadable: dict[int, str]
    held: decoded_cache.DecodedCache | None


def _as_wanted(source: Source, image_settings: ImageSettings) -> tuple[Source, ImageSettings]:
    """A source whose images are kept as the settings say, and these with every size chosen.

    Raises: UserError where the first image does not hold the channels or values that are wanted.
    """
    source = dataclasses.replace(source, pixel_format=image_settings.pixel_format)
    try:
        if not image_settings.stream:  # of which none is opened before it is asked for
            source.picture(0, shrink=1)
    except OtherValues as error:
        raise UserError(str(error)) from error
    except Unreadable:
        pass  # told with all the others
    image_settings = _sized(source, image_settings)
    return dataclasses.replace(source, fit=image_settings.fitting), image_settings


def _sized(source: Source, image_settings: ImageSettings) -> ImageSettings:
    if image_settings.image_size is not None and image_settings.cache_size is not None:
        return image_settings
    sizes = sample_sizes(source)
    image_size = image_settings.image_size or choose_image_size(sizes)
    cache_size = image_settings.cache_size or choose_cache_size(image_size, sizes, image_settings.cache_margin)
    return dataclasses.replace(image_settings, image_size=image_size, cache_size=cache_size)


def _read(
    source: Source,
    splits: Splits,
    image_settings: ImageSettings,
    skip_unreadable: bool,
    progress: Progress | None,
) -> _Read:
    used = np.sort(np.concatenate(list(splits.values())))
    size = image_settings.cache_size
    assert size is not None
    image_bytes, budget = image_settings.channels * size * size, int(image_settings.max_cache_gb * 1e9)
    held: decoded_cache.Survey
    if image_settings.stream or (image_settings.stream is None and len(used) * image_bytes > budget):
        # Unless bad images are to be skipped, none is opened before the training asks for it: there may be millions.
        unknown = decoded_cache.Survey(used, np.full((len(used), 2), -1, dtype=np.int32), {})
        held = decoded_cache.survey(source, used, progress) if skip_unreadable else unknown
    else:
        # All where all fit: runs on other subsets, seeds and splits then share one store.
        rows = None if len(source) * image_bytes <= budget else used
        held = decoded_cache.build(source, size, rows, budget, skip_unreadable=True, progress=progress)
    unreadable = {i: held.unreadable[i] for i in used.tolist() if i in held.unreadable}
    if not skip_unreadable:
        decoded_cache.refuse(source, unreadable, len(used))
    images: dict[str, Images] = {}
    kept: Splits = {}
    for kind, rows in splits.items():
        left = rows[~np.isin(rows, list(unreadable))]
        if len(left):
            kept[kind] = left
            images[kind] = _images(source, left, np.searchsorted(held.rows, left), held, size)
    return _Read(kept, images, unreadable, held if isinstance(held, decoded_cache.DecodedCache) else None)


def _images(source: Source, rows: np.ndarray, places: np.ndarray, held: decoded_cache.Survey, size: int) -> Images:
    records = Records(
        labels=torch.from_numpy(source.labels[rows]),
        sizes=torch.from_numpy(held.sizes[places]),
        names=[source.names[i] for i in rows],
    )
    if isinstance(held, decoded_cache.DecodedCache):
        return CachedImages(held.pixels, torch.from_numpy(places), records)
    return StreamImages(source, torch.from_numpy(rows), records, size)


def _normalization(source: Source, read: _Read, image_settings: ImageSettings) -> tuple[Channels, Channels]:
    if image_settings.normalize != "dataset":
        return normalization(image_settings.normalize, image_settings.channels)
    train = read.images["train"]
    if isinstance(train, CachedImages):
        return cached_statistics(train.pixels, train.rows)
    assert image_settings.cache_size is not None
    return streamed_statistics(source, read.splits["train"], image_settings.cache_size)


def _fingerprint(source: Source, marks: Mapping[str, Sequence[str]]) -> str:
    """As `Dataset` says, of what `_marks` gave."""
    return digest([*source.classes, *(part for kind in sorted(marks) for part in (kind, *marks[kind]))])


def _marks(source: Source, read: _Read, anywhere: bool) -> dict[str, list[str]]:
    """Split -> digests of its labels and of its pixels; of streamed images `anywhere` takes what faithful copies share
    with them."""
    parts: dict[str, list[str]] = {}
    for kind, rows in read.splits.items():
        if read.held is None:
            files = ((source.names[i], source.fingerprints[i]) for i in rows.tolist())
            root = "" if anywhere else source.root
            marks = [f"{root}\0{name}\0{portable(mark) if anywhere else mark}" for name, mark in files]
        else:
            marks = [mark.tobytes().hex() for mark in read.held.digests[np.searchsorted(read.held.rows, rows)]]
        parts[kind] = [digest(map(str, source.labels[rows].tolist())), digest(marks)]
    return parts


def _numbered(source: Source, classes: Sequence[str]) -> np.ndarray:
    """A source's labels by the positions of its classes among others."""
    position = {name: i for i, name in enumerate(classes)}
    numbers = [position[name] for name in source.classes]
    if source.labels.ndim == 1:
        return np.array([*numbers, -1])[source.labels]  # the last is for "no label"
    shown = np.zeros((len(source), len(classes)), source.labels.dtype)
    shown[:, numbers] = source.labels
    return shown
