# SPDX-License-Identifier: Apache-2.0
"""What a person should know of a data set before a training: what was passed over, is rare, uneven or repeated."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import counted, some
from . import decoded_cache, subsets
from .balance import is_uneven, mends
from .images.decode import DecodedImage, is_16_bit
from .images.format import levels_left
from .near_duplicates import MAX_IMAGES, TOO_MANY
from .sources.source import Source
from .splits import Selection, Splits

_TINY = 5
_LOOKED_AT = 8  # images, whose files are opened once more
_DARK = 14  # bits, of 16, that leave 64 levels of 256
_DOCUMENT = re.compile(r"(^|/)(readme|licen[cs]e|copying|citation|authors|changelog)[^/]*$|\.md$", re.IGNORECASE)


def warnings_of(
    source: Source,
    splits: Splits,
    held: decoded_cache.DecodedCache | None,
    selection: Selection,
    skipped: Mapping[str, str],
    labeled: bool,
    near: Mapping[str, Sequence[str]] | None,
) -> list[str]:
    """What a person should know, a sentence each.

    Args:
        source: the images.
        splits: those of each split that can be read.
        held: their pixels; None where they are streamed.
        selection: which images are used, and how.
        skipped: names of images that cannot be read, and why.
        labeled: whether labels are learnt from.
        near: val, test -> names of images that have near-duplicates among the training images;
            None where they were not looked for.
    """
    sentences = []
    if skipped:
        sentences.append(f"skipped {counted(len(skipped), 'image')} that could not be read: {some(list(skipped), 5)}")
    if ignored := [name for name in source.ignored if not _DOCUMENT.search(name)]:
        sentences.append(f"ignored what is no image: {counted(len(ignored), 'file')}, {some(ignored, 5)}")
    if held is not None:
        sentences += _looked_at(source, splits["train"])
    for kind in ("test", "val"):
        same = [] if held is None else _repeated(held, splits["train"], splits.get(kind))
        if same:
            first, second = (source.names[i] for i in same[0])
            images = counted(len(same), f"{kind} image")
            sentences.append(f"{images}, pixel by pixel the same as training images: such as {second} and {first}")
        if len(names := (near or {}).get(kind, ())) > len(same):
            sentences.append(
                f"{len(names):,} of {counted(len(splits[kind]), f'{kind} image')} have near-duplicates among the "
                f"training images, such as {names[0]}; --data.near_duplicates leave_out trains without these"
            )
    if near is None and selection.near_duplicates != "ignore" and len(splits) > 1:
        why = "near-duplicates are not looked for among streamed images" if len(source) <= MAX_IMAGES else TOO_MANY
        sentences.append(f"{why}: held-out images may have some among the training images")
    counts = subsets.count_by_class(source.labels[splits["train"]], len(source.classes))
    if is_uneven(counts):
        most, least = (f"{source.classes[i]} has {counts[i]}" for i in (counts.argmax(), counts.argmin()))
        mended = selection.sampling == "balanced" or selection.class_weights is not None or not labeled
        sentences.append(
            f"classes are uneven: {most} training images, {least}" + ("" if mended else f"; {mends(source.labels)}")
        )
    tiny = [name for name, count in zip(source.classes, counts, strict=True) if count < _TINY]
    if tiny and selection.per_class is None:
        sentences.append(f"fewer than {_TINY} training images in {counted(len(tiny), 'class')}: {some(tiny, 5)}")
    return sentences


def firsts(first: Sequence[bool]) -> list[str]:
    """A warning where images that were looked at are the first of several in their files, as `first` says of each."""
    if not any(first):
        return []
    return [f"of several pages or frames in a file the first is read: {sum(first):,} of {counted(len(first), 'image')}"]


def _looked_at(source: Source, train: np.ndarray) -> list[str]:
    """What a few files tell that the store does not."""
    pictures = [source.picture(i, shrink=1) for i in subsets.evenly(train, _LOOKED_AT).tolist()]
    return firsts([picture.first for picture in pictures]) + ([] if source.pixel_format.range else _dark(pictures))


def _dark(pictures: Sequence[DecodedImage]) -> list[str]:
    """Values of 16 bits that end far below the greatest, such as 12 bits of a microscope."""
    spans = [picture.value_range for picture in pictures if picture.value_range is not None and is_16_bit(picture.mode)]
    if len(spans) < len(pictures):
        return []
    greatest = max((span[1] for span in spans), default=0.0)
    bits = int(greatest).bit_length()
    if not 0 < bits <= _DARK:
        return []
    return [
        f"values of 16 bits reach {greatest:g} in {counted(len(pictures), 'image')}, of which the whole range leaves "
        f'{levels_left(greatest)}; --images.range "[0, {2**bits - 1}]" spreads them over all 256'
    ]


def _repeated(held: decoded_cache.DecodedCache, train: np.ndarray, other: np.ndarray | None) -> list[tuple[int, int]]:
    """Training images, and images outside the training set that are the same, pixel by pixel."""
    if other is None:
        return []
    marks = held.digests.view("V16").ravel()
    seen = {marks[place].tobytes(): i for place, i in zip(np.searchsorted(held.rows, train), train, strict=True)}
    places = zip(np.searchsorted(held.rows, other), other, strict=True)
    return [(seen[mark], i) for place, i in places if (mark := marks[place].tobytes()) in seen]
