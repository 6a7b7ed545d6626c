# SPDX-License-Identifier: Apache-2.0
"""What a data set holds, before anything is trained on it: every image is read once, nothing is stored."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .decode import Unreadable
from .open import open_source
from .sources.source import Source
from .store import Progress, in_parallel, pixel_digest


@dataclass(frozen=True)
class SizeRange:
    """Least, median and greatest of a number of pixels."""

    least: int
    median: float
    greatest: int


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

    def look(i: int) -> tuple[int, int, str, bytes] | str:
        try:
            picture = source.picture(i)
        except Unreadable as error:
            return error.reason
        return picture.height, picture.width, picture.mode, pixel_digest(np.array(picture.image))

    seen = list(in_parallel(look, range(len(source)), progress))
    read = {i: found for i, found in enumerate(seen) if not isinstance(found, str)}
    same: dict[bytes, list[int]] = {}
    for i, (_, _, _, mark) in read.items():
        same.setdefault(mark, []).append(i)
    groups = [group for group in same.values() if len(group) > 1]
    split = {int(i): kind for kind, rows in source.splits.items() for i in rows}
    return Inspection(
        name=source.name,
        classes=source.classes,
        images=len(source),
        unlabeled=int((source.labels < 0).sum()),
        counts={kind: _counts(source, rows) for kind, rows in source.splits.items()},
        height=_spread([found[0] for found in read.values()]),
        width=_spread([found[1] for found in read.values()]),
        modes=dict(Counter(found[2] for found in read.values()).most_common()),
        unreadable={source.names[i]: found for i, found in enumerate(seen) if isinstance(found, str)},
        ignored=source.ignored,
        across=_named(source, [group for group in groups if len({split[i] for i in group}) > 1]),
        contradicting=_named(source, [group for group in groups if len(set(source.labels[group].tolist())) > 1]),
        repeated=sum(len(group) - 1 for group in groups),
        notes=source.notes,
    )


def _counts(source: Source, rows: np.ndarray) -> tuple[int, ...]:
    labels = source.labels[rows]
    return tuple(np.bincount(labels[labels >= 0], minlength=len(source.classes)).tolist())


def _spread(values: Sequence[int]) -> SizeRange | None:
    return SizeRange(min(values), float(np.median(values)), max(values)) if values else None


def _named(source: Source, groups: list[list[int]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(source.names[i] for i in group) for group in groups)
