# SPDX-License-Identifier: Apache-2.0
"""Inspect a data set before training on it; of its images only the near-duplicates are cached."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, counted
from ..parallel import Progress, in_parallel
from .annotation_counts import AnnotationCounts, inspect_annotations
from .balance import balancing_options, is_unbalanced
from .data_settings import DataSettings
from .decoded_cache import find_near_duplicates, pixel_digest
from .image_settings import MAX_SIDE
from .images.decode import Unreadable, is_16_bit
from .images.format import ANY_FORMAT, levels_left
from .near_duplicates import TOO_MANY, NearDuplicates
from .open import open_source
from .sources.several import are_numbers, as_numbers, is_joined, separated, several_words
from .sources.source import Contents, Source
from .splits import Splits, check_classes, select, with_number_ranges
from .subsets import count_by_class, labeled
from .warnings import warnings_of_pages


@dataclass(frozen=True)
class SizeRange:
    """Minimum, median and maximum of a number of pixels."""

    least: int
    median: float
    greatest: int


class CopyPair(NamedTuple):
    """Names, splits and classes of two near-duplicate images; "" where one is in no split or has no label."""

    first: str
    second: str
    first_split: str
    second_split: str
    first_class: str
    second_class: str


class _Properties(NamedTuple):
    """Properties of a decoded image, and the digest of its pixels."""

    height: int
    width: int
    mode: str
    digest: bytes
    value_range: tuple[float, float] | None
    first: bool
    channels: int


@dataclass(frozen=True)
class Inspection:
    """Contents of a data set."""

    name: str
    contents: Contents
    classes: tuple[str, ...]
    images: int
    splits: dict[str, int]
    unlabeled: int
    # Split -> images of each class; objects of each class, crowds left out; or images whose mask has it.
    counts: dict[str, tuple[int, ...]]
    height: SizeRange | None  # of the readable images, pixels; None where there are none
    width: SizeRange | None
    modes: dict[str, int]  # Pillow's name of the files' color mode -> images
    unreadable: dict[str, str]  # name -> what is wrong with the image or its annotation
    ignored: tuple[str, ...]
    # Groups of identical images (pixel by pixel) of different splits: test images that are trained on.
    across: tuple[tuple[str, ...], ...]
    contradicting: tuple[tuple[str, ...], ...]
    repeated: int
    warnings: tuple[str, ...]
    # Split -> images that `train` would have in it, by its defaults; empty where it could not train, and for objects
    # and masks.
    planned: dict[str, int]
    refused: str  # why `train` would refuse the data as it is; empty where it would not
    smallest: str  # name of the image with the fewest pixels; empty where all have as many
    largest: str
    # Pairs of images in different planned splits that are near-duplicates, though not equal pixel by pixel.
    near: tuple[tuple[str, ...], ...]
    pairs: tuple[CopyPair, ...]  # all pairs of near-duplicates, equal ones included
    uneven: str  # settings that make up for uneven classes among the training images; empty where they are even
    several: str  # how many labels images have, where they have several each; else empty
    values: str  # settings for channels and values that three levels of eight bits do not hold; else empty
    annotations: AnnotationCounts | None = None
    data: str = "DATA"

    def to_dict(self) -> dict[str, Any]:
        """Return nested dictionaries and lists, ready for JSON."""
        return dataclasses.asdict(self)


def inspect(data: str | Path | Source, progress: Progress | None = None, image_size: int = MAX_SIDE) -> Inspection:
    """Read every image and target of some data once, in parallel.

    Args:
        data: a folder, file or name of a data set (`open_source`).
        image_size: at which objects or masks would be trained on, pixels; by default the largest possible.

    Raises: UserError if there is no such data or it holds no images.
    """
    source = data if isinstance(data, Source) else open_source(data)
    labels_read = separated(source) if is_joined(source) else as_numbers(source) if are_numbers(source) else source
    source = dataclasses.replace(labels_read, pixel_format=ANY_FORMAT)

    def properties(i: int) -> _Properties | str:
        try:
            picture = source.picture(i)
        except Unreadable as error:
            return error.reason
        mark, channels = pixel_digest(picture.pixels), picture.pixels.shape[2]
        return _Properties(
            picture.height, picture.width, picture.mode, mark, picture.value_range, picture.first, channels
        )

    every = list(in_parallel(properties, range(len(source)), progress))
    read = {i: image for i, image in enumerate(every) if not isinstance(image, str)}
    unreadable = {source.names[i]: image for i, image in enumerate(every) if isinstance(image, str)}
    same: dict[bytes, list[int]] = {}
    for i, image in read.items():
        same.setdefault(image.digest, []).append(i)
    groups = [group for group in same.values() if len(group) > 1]
    split = {int(i): kind for kind, rows in source.splits.items() for i in rows}
    copies = find_near_duplicates(source.images_alone, progress)
    warnings = [*source.warnings]
    planned, refused, annotated = Splits(), "", None
    labels = None if source.targets is not None or source.contents == "numbers" else source.labels
    if source.targets is not None:
        sizes = {row: (image.height, image.width) for row, image in read.items()}
        annotated = inspect_annotations(source, sizes, image_size)
        unreadable |= annotated.unreadable
    else:
        planned, chosen, refused = _planned(source, copies)
        warnings += chosen
    warnings += [*warnings_of_pages([image.first for image in read.values()]), *([TOO_MANY] if copies is None else [])]
    kind_of = split if annotated else {int(i): kind for kind, rows in planned.items() for i in rows}
    mark = {i: image.digest for i, image in read.items()}
    near = [
        [a, b]
        for a, b in ([] if copies is None else copies.listed())
        if len({kind_of.get(a), kind_of.get(b), None}) == 3 and mark.get(a) != mark.get(b)
    ]
    by_pixels = sorted(read, key=lambda i: read[i][0] * read[i][1])
    if len({image[:2] for image in read.values()}) == 1:
        by_pixels = []
    trained = _counts(source, planned["train"]) if planned and source.classes else ()
    return Inspection(
        name=source.name,
        contents=source.contents,
        classes=source.classes,
        images=len(source),
        splits={kind: len(rows) for kind, rows in source.splits.items()},
        unlabeled=0 if source.targets is not None else int((~labeled(source.labels)).sum()),
        counts=annotated.counts if annotated else {kind: _counts(source, rows) for kind, rows in source.splits.items()},
        height=_spread([image.height for image in read.values()]),
        width=_spread([image.width for image in read.values()]),
        modes=dict(Counter(image.mode for image in read.values()).most_common()),
        unreadable=unreadable,
        ignored=source.ignored,
        across=_named(source, [group for group in groups if len({split[i] for i in group}) > 1]),
        contradicting=_named(source, [group for group in groups if labels is not None and _contradict(labels[group])]),
        repeated=sum(len(group) - 1 for group in groups),
        warnings=(*warnings, *(annotated.warnings if annotated else ())),
        planned={kind: len(rows) for kind, rows in planned.items()},
        refused=refused,
        smallest=source.names[by_pixels[0]] if by_pixels else "",
        largest=source.names[by_pixels[-1]] if by_pixels else "",
        near=_named(source, near),
        pairs=copy_pairs(source, planned or source.splits, copies),
        uneven=balancing_options(source.labels) if is_unbalanced(trained) else "",
        several=several_words(source.labels[labeled(source.labels)]) if source.labels.ndim == 2 else "",
        values=_values(list(read.values())),
        annotations=annotated.properties if annotated else None,
    )


def _values(images: Sequence[_Properties]) -> str:
    """Return the settings of `train` for channels and values, and how many levels eight bits leave of the latter."""
    words = []
    channels = sorted({image.channels for image in images} - {1, 3})
    if channels:
        kinds = " or ".join(counted(count, "channel") for count in channels)
        words.append(f"{kinds}, read by --images.channels {channels[-1]}")
    if spans := [image.value_range for image in images if image.value_range is not None]:
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        words.append(f"values of more than 8 bits lie in {low:g} to {high:g}")
        if all(image.value_range is None or is_16_bit(image.mode) for image in images):
            words[-1] += f", of which 8 bits of the whole range leave {levels_left(high - low)}"
        if high > low:
            words.append(f'--images.range "[{low:g}, {high:g}]" spreads them over all 256')
    return "; ".join(words)


def copy_pairs(source: Source, splits: Splits, copies: NearDuplicates | None) -> tuple[CopyPair, ...]:
    """Return all pairs of near-duplicates, in the order of the images."""
    split_of = {int(i): split for split, rows in splits.items() for i in rows}
    several = source.labels.ndim == 2

    def pair(*images: int) -> CopyPair:
        labels = [np.flatnonzero(source.labels[i] > 0) if several else source.labels[i : i + 1] for i in images]
        classes = ["|".join(source.classes[c] for c in row if c >= 0) for row in labels]
        return CopyPair(*(source.names[i] for i in images), *(split_of.get(i, "") for i in images), *classes)

    return () if copies is None else tuple(pair(a, b) for a, b in copies.listed())


def _planned(source: Source, copies: NearDuplicates | None) -> tuple[Splits, list[str], str]:
    """Return the splits that `train` would make by its defaults, its warnings, and why it would refuse them; images
    without any label are for a recipe that needs none."""
    splits, warnings = dict[str, np.ndarray](), list[str]()
    try:
        by_class = with_number_ranges(source)
        splits, warnings = select(by_class, DataSettings(), 0, bool(by_class.classes), copies)
        if by_class.classes:
            check_classes(source, splits["train"])
    except UserError as error:
        return splits, warnings, str(error)
    return splits, warnings, ""


def _contradict(labels: np.ndarray) -> bool:
    """Return whether labeled images of these labels differ in them."""
    return len(np.unique(labels[labeled(labels)], axis=0)) > 1


def _counts(source: Source, rows: np.ndarray) -> tuple[int, ...]:
    return tuple(count_by_class(source.labels[rows], len(source.classes)).tolist())


def _spread(values: Sequence[int]) -> SizeRange | None:
    return SizeRange(min(values), float(np.median(values)), max(values)) if values else None


def _named(source: Source, groups: list[list[int]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(source.names[i] for i in group) for group in groups)
