# SPDX-License-Identifier: Apache-2.0
"""Contents of a data set, before anything is trained on it; of the images only their near-duplicates are remembered."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, counted
from ..parallel import Progress, in_parallel
from .balance import is_uneven, mends
from .decoded_cache import find_near_duplicates, pixel_digest
from .images.decode import Unreadable, is_16_bit
from .images.format import ANY_FORMAT, levels_left
from .near_duplicates import TOO_MANY, NearDuplicates
from .open import open_source
from .sources.several import is_joined, separated, several_words
from .sources.source import Source
from .splits import Selection, Splits, check_classes, select
from .subsets import count_by_class, labeled
from .warnings import firsts


@dataclass(frozen=True)
class SizeRange:
    """Least, median and greatest of a number of pixels."""

    least: int
    median: float
    greatest: int


class CopyPair(NamedTuple):
    """Two images that are near-duplicates: their names, splits and classes; "" where an image is in no split or has no
    label."""

    first: str
    second: str
    first_split: str
    second_split: str
    first_class: str
    second_class: str


class _Seen(NamedTuple):
    """Properties of an image, and its digest."""

    height: int
    width: int
    mode: str
    digest: bytes
    value_range: tuple[float, float] | None
    first: bool
    channels: int


@dataclass(frozen=True)
class Inspection:
    """What a data set holds.

    Args:
        name: what it is called.
        classes: class names in the order of the labels.
        images: how many there are, unreadable ones included.
        unlabeled: how many have no label.
        counts: split -> images of each class.
        height: of the readable images, pixels; None where there are none.
        width: of the readable images, pixels; None where there are none.
        modes: how the files hold their colors, in Pillow's words -> images.
        unreadable: name -> what is wrong with it.
        ignored: files that are no images.
        across: groups of identical images (pixel by pixel) of different splits: a test that the training has seen.
        contradicting: groups of identical images with different labels.
        repeated: images that repeat another one anywhere.
        notes: what else a person should know.
        planned: split -> images that `train` would have in it, by its defaults; empty where it could not train.
        refused: why `train` would refuse the data as they are; empty where it would not.
        smallest: name of the image with the fewest pixels; empty where all have as many.
        largest: name of the one with the most.
        near: pairs of images in different ones of those splits that are near-duplicates, though not equal pixel by
            pixel.
        pairs: all pairs of near-duplicates, equal ones included.
        uneven: what makes up for classes that are uneven among the training images; empty where they are even.
        several: how many labels images have, where they have several each; else empty.
        values: what becomes of channels and values that three levels of eight bits do not hold; else empty.
    """

    name: str
    classes: tuple[str, ...]
    images: int
    unlabeled: int
    counts: dict[str, tuple[int, ...]]
    height: SizeRange | None
    width: SizeRange | None
    modes: dict[str, int]
    unreadable: dict[str, str]
    ignored: tuple[str, ...]
    across: tuple[tuple[str, ...], ...]
    contradicting: tuple[tuple[str, ...], ...]
    repeated: int
    notes: tuple[str, ...]
    planned: dict[str, int]
    refused: str
    smallest: str
    largest: str
    near: tuple[tuple[str, ...], ...]
    pairs: tuple[CopyPair, ...]
    uneven: str
    several: str
    values: str

    def to_dict(self) -> dict[str, Any]:
        """The same as nested dictionaries and lists, ready for JSON."""
        return dataclasses.asdict(self)


def inspect(data: str | Path | Source, progress: Progress | None = None) -> Inspection:
    """Read every image of some data once, in parallel, and say what is there.

    Args:
        data: a folder, file or name of a data set (`open_source`).
        progress: told how many images are read.

    Raises: UserError if there is no such data or it holds no images.
    """
    source = data if isinstance(data, Source) else open_source(data)
    source = dataclasses.replace(separated(source) if is_joined(source) else source, pixel_format=ANY_FORMAT)

    def look(i: int) -> _Seen | str:
        try:
            picture = source.picture(i)
        except Unreadable as error:
            return error.reason
        mark, channels = pixel_digest(picture.pixels), picture.pixels.shape[2]
        return _Seen(picture.height, picture.width, picture.mode, mark, picture.value_range, picture.first, channels)

    seen = list(in_parallel(look, range(len(source)), progress))
    read = {i: image for i, image in enumerate(seen) if not isinstance(image, str)}
    same: dict[bytes, list[int]] = {}
    for i, image in read.items():
        same.setdefault(image.digest, []).append(i)
    groups = [group for group in same.values() if len(group) > 1]
    split = {int(i): kind for kind, rows in source.splits.items() for i in rows}
    copies = find_near_duplicates(source, progress)
    too_many = [TOO_MANY] if copies is None else []
    planned, warnings, refused = _planned(source, copies)
    kind_of = {int(i): kind for kind, rows in planned.items() for i in rows}
    mark = {i: image.digest for i, image in read.items()}
    near = [
        [a, b]
        for a, b in ([] if copies is None else copies.listed())
        if len({kind_of.get(a), kind_of.get(b), None}) == 3 and mark.get(a) != mark.get(b)
    ]
    by_pixels = sorted(read, key=lambda i: read[i][0] * read[i][1])
    if len({image[:2] for image in read.values()}) == 1:
        by_pixels = []
    learnt = _counts(source, planned["train"]) if planned and source.classes else ()
    return Inspection(
        name=source.name,
        classes=source.classes,
        images=len(source),
        unlabeled=int((~labeled(source.labels)).sum()),
        counts={kind: _counts(source, rows) for kind, rows in source.splits.items()},
        height=_spread([image.height for image in read.values()]),
        width=_spread([image.width for image in read.values()]),
        modes=dict(Counter(image.mode for image in read.values()).most_common()),
        unreadable={source.names[i]: image for i, image in enumerate(seen) if isinstance(image, str)},
        ignored=source.ignored,
        across=_named(source, [group for group in groups if len({split[i] for i in group}) > 1]),
        contradicting=_named(source, [group for group in groups if _contradict(source.labels[group])]),
        repeated=sum(len(group) - 1 for group in groups),
        notes=(*source.notes, *warnings, *firsts([image.first for image in read.values()]), *too_many),
        planned={kind: len(rows) for kind, rows in planned.items()},
        refused=refused,
        smallest=source.names[by_pixels[0]] if by_pixels else "",
        largest=source.names[by_pixels[-1]] if by_pixels else "",
        near=_named(source, near),
        pairs=copy_pairs(source, planned or source.splits, copies),
        uneven=mends(source.labels) if is_uneven(learnt) else "",
        several=several_words(source.labels[labeled(source.labels)]) if source.labels.ndim == 2 else "",
        values=_values(list(read.values())),
    )


def _values(seen: Sequence[_Seen]) -> str:
    """What `train` needs to be told of channels and values, and what levels of eight bits leave of the latter."""
    words = []
    channels = sorted({image.channels for image in seen} - {1, 3})
    if channels:
        kinds = " or ".join(counted(count, "channel") for count in channels)
        words.append(f"{kinds}, kept by --images.channels {channels[-1]}")
    if spans := [image.value_range for image in seen if image.value_range is not None]:
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        words.append(f"values of more than 8 bits lie in {low:g} to {high:g}")
        if all(image.value_range is None or is_16_bit(image.mode) for image in seen):
            words[-1] += f", of which 8 bits of the whole range leave {levels_left(high - low)}"
        if high > low:
            words.append(f'--images.range "[{low:g}, {high:g}]" spreads them over all 256')
    return "; ".join(words)


def copy_pairs(source: Source, splits: Splits, copies: NearDuplicates | None) -> tuple[CopyPair, ...]:
    """All pairs of near-duplicates, in the order of the images."""
    split_of = {int(i): split for split, rows in splits.items() for i in rows}
    several = source.labels.ndim == 2

    def pair(*images: int) -> CopyPair:
        labels = [np.flatnonzero(source.labels[i] > 0) if several else source.labels[i : i + 1] for i in images]
        classes = ["|".join(source.classes[c] for c in shown if c >= 0) for shown in labels]
        return CopyPair(*(source.names[i] for i in images), *(split_of.get(i, "") for i in images), *classes)

    return () if copies is None else tuple(pair(a, b) for a, b in copies.listed())


def _planned(source: Source, copies: NearDuplicates | None) -> tuple[Splits, list[str], str]:
    """The splits that `train` would make by its defaults, its warnings, and why it would refuse them; images without
    any label are for a recipe that needs none."""
    splits, warnings = dict[str, np.ndarray](), list[str]()
    try:
        splits, warnings = select(source, Selection(), 0, bool(source.classes), copies)
        if source.classes:
            check_classes(source, splits["train"])
    except UserError as error:
        return splits, warnings, str(error)
    return splits, warnings, ""


def _contradict(labels: np.ndarray) -> bool:
    """Whether images of which these are the labels show different things, as far as anybody said."""
    return len(np.unique(labels[labeled(labels)], axis=0)) > 1


def _counts(source: Source, rows: np.ndarray) -> tuple[int, ...]:
    return tuple(count_by_class(source.labels[rows], len(source.classes)).tolist())


def _spread(values: Sequence[int]) -> SizeRange | None:
    return SizeRange(min(values), float(np.median(values)), max(values)) if values else None


def _named(source: Source, groups: list[list[int]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(source.names[i] for i in group) for group in groups)
