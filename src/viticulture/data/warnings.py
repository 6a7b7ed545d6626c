# SPDX-License-Identifier: Apache-2.0
"""Warnings about a data set before training: images that are left out, rare, unbalanced or repeated."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import counted, some
from . import subsets
from .balance import balancing_options, is_unbalanced
from .data_settings import DataSettings
from .decoded_cache import DecodedCache
from .images.decode import DecodedImage, is_16_bit
from .images.format import levels_left
from .near_duplicates import MAX_IMAGES, TOO_MANY
from .sources.source import Source
from .splits import Splits

_TINY = 5
_SAMPLE = 8  # images, whose files are opened once more
_DARK = 14  # bits, of 16, that leave 64 levels of 256
_DOCUMENT = re.compile(r"(^|/)(readme|licen[cs]e|copying|citation|authors|changelog)[^/]*$|\.md$", re.IGNORECASE)


def warnings_of(
    source: Source,
    splits: Splits,
    cached: DecodedCache | None,
    settings: DataSettings,
    skipped: Mapping[str, str],
    labeled: bool,
    near: Mapping[str, Sequence[str]] | None,
) -> list[str]:
    """Warnings about the splits of a run, a sentence each. `near`: val, test -> names of images that have
    near-duplicates among the training images; None where they were not searched.
    """
    sentences = []
    if skipped:
        sentences.append(f"skipped {counted(len(skipped), 'image')} that could not be read: {some(list(skipped), 5)}")
    if ignored := [name for name in source.ignored if not _DOCUMENT.search(name)]:
        lists = [name for name in ignored if name.lower().endswith((".csv", ".tsv", ".parquet"))]
        named = (
            f"; a list of labels such as {lists[0]} is read where it is named in place of its folder" if lists else ""
        )
        sentences.append(
            f"ignored files that are no images: {counted(len(ignored), 'file')}, {some(ignored, 5)}{named}"
        )
    if cached is not None:
        sentences += _of_a_sample(source, splits["train"])
    for kind, word in (("test", "test"), ("val", "validation")):
        same = [] if cached is None else _repeated(cached, splits["train"], splits.get(kind))
        if same:
            first, second = (source.names[i] for i in same[0])
            images = counted(len(same), f"{word} image")
            sentences.append(f"{images}, pixel by pixel the same as training images: such as {second} and {first}")
        if len(names := (near or {}).get(kind, ())) > len(same):
            images, have = counted(len(splits[kind]), f"{word} image"), "has" if len(names) == 1 else "have"
            sentences.append(
                f"{len(names):,} of {images} {have} near-duplicates among the training images, such as {names[0]}; "
                "--data.near_duplicates leave_out trains without these"
            )
    if near is None and settings.near_duplicates != "ignore" and len(splits) > 1:
        why = "near-duplicates are not searched among streamed images" if len(source) <= MAX_IMAGES else TOO_MANY
        sentences.append(f"{why}: held-out images may have some among the training images")
    if "val" in source.splits.keys() & splits.keys() and source.contents == "classes":
        val = set(source.labels[splits["val"]].tolist())
        if len(val) == 1 and len(source.classes) > 1:
            sentences.append(
                f"all validation images are of one class, {source.classes[val.pop()]}, by which alone they choose "
                "weights; add images of the others, or take these out"
            )
    counts = subsets.count_by_class(source.labels[splits["train"]], len(source.classes))
    if is_unbalanced(counts):
        most, fewest = (f"{source.classes[i]} has {counts[i]}" for i in (counts.argmax(), counts.argmin()))
        balanced = settings.sampling == "balanced" or settings.class_weights is not None or not labeled
        cure = "" if balanced else f"; {balancing_options(source.labels)}"
        sentences.append(f"classes are unbalanced: {most} training images, {fewest}{cure}")
    tiny = [name for name, count in zip(source.classes, counts, strict=True) if count < _TINY]
    if tiny and settings.per_class is None:
        sentences.append(f"fewer than {_TINY} training images in {counted(len(tiny), 'class')}: {some(tiny, 5)}")
    return sentences


def warnings_of_pages(first: Sequence[bool]) -> list[str]:
    """Warn where images are the first of several in their files, as `first` says for each."""
    if not any(first):
        return []
    return [f"of several pages or frames in a file the first is read: {sum(first):,} of {counted(len(first), 'image')}"]


def _of_a_sample(source: Source, train: np.ndarray) -> list[str]:
    """Open a few files again for what the cache does not hold."""
    pictures = [source.picture(i, shrink=1) for i in subsets.evenly(train, _SAMPLE).tolist()]
    dark = [] if source.pixel_format.range else _dark(pictures)
    return warnings_of_pages([picture.first for picture in pictures]) + dark


def _dark(pictures: Sequence[DecodedImage]) -> list[str]:
    """Warn of 16-bit values far below the maximum, such as 12 bits of a microscope."""
    ranges = [
        picture.value_range for picture in pictures if picture.value_range is not None and is_16_bit(picture.mode)
    ]
    if len(ranges) < len(pictures):
        return []
    largest = max((high for _, high in ranges), default=0.0)
    bits = int(largest).bit_length()
    if not 0 < bits <= _DARK:
        return []
    return [
        f"values of 16 bits reach {largest:g} in {counted(len(pictures), 'image')}, of which the whole range leaves "
        f'{levels_left(largest)}; --images.range "[0, {2**bits - 1}]" spreads them over all 256'
    ]


def _repeated(cached: DecodedCache, train: np.ndarray, other: np.ndarray | None) -> list[tuple[int, int]]:
    """Pairs of a training image and another image that are the same, pixel by pixel."""
    if other is None:
        return []
    marks = cached.digests.view("V16").ravel()
    seen = {marks[place].tobytes(): i for place, i in zip(np.searchsorted(cached.rows, train), train, strict=True)}
    places = zip(np.searchsorted(cached.rows, other), other, strict=True)
    return [(seen[mark], i) for place, i in places if (mark := marks[place].tobytes()) in seen]
