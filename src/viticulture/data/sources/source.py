# SPDX-License-Identifier: Apache-2.0
"""The contract of a source: labeled images that can be read, whatever they come from."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO

import numpy as np
from PIL import Image

from ...cache import digest
from ...errors import UserError, some
from ..images import decode
from ..images.fit import Fit
from ..images.format import RGB, PixelFormat

HERE = "\0"
"""Separates what a copy of a file keeps of its fingerprint from what it does not."""


def portable(fingerprint: str) -> str:
    """Return the part of a fingerprint that a faithful copy of the file has as well."""
    return fingerprint.partition(HERE)[0]


class Reader(ABC):
    """Where a source's images are. Picklable, and safe to use from several threads at once."""

    @abstractmethod
    def open(self, i: int) -> BinaryIO | decode.Decoded:
        """Image i as an open file at its start, or decoded: numbers [H, W] or [H, W, C], or a picture of Pillow's."""


@dataclass(frozen=True, eq=False)
class Source:
    """Images, what they show, and how to read them; the same object whatever they come from.

    Args:
        name: what to call the data.
        classes: class names in the order of the labels.
        labels: [N] int64, position of the class in `classes`, -1 without a label; or, of several labels an image,
            [N, C] float32, 1 where an image shows a class, -1 where nobody said which (several.py).
        names: N different names that a person recognizes and that can be printed: paths relative to the data.
        splits: "train", "val", "test" -> int64 positions, disjoint: what the data itself declares. Data without splits
            has all its images under "train".
        fingerprints: N marks that change when the image of that name may have changed: what `file_fingerprint` returns
            for a file, checksum of a zip's member, digest of pixels in memory. What is behind `HERE` in one holds on
            this machine alone.
        reader: reads image i.
        ignored: files among the images that are none.
        notes: what a person should know about how the data was read.
        root: where names and fingerprints hold, an absolute path; empty where fingerprints tell contents. Two folders
            unpacked from archives may agree in names, sizes and times, and yet not in pixels.
        groups: [N] int64, images of equal numbers (of one patient, say) are not divided between splits; -1 for an image
            by itself. None where nothing belongs together.
        damaged: position of an image whose label could not be read for damage of the image itself -> what is wrong.
        fit: what makes squares of oblong images that are to be kept whole; None leaves them as they are.
        pixel_format: how many channels of an image are kept, and which of its values become black and white.
        unlabeled: [N] bool, of which images nobody said what they show; of several labels an image, others without a
            label show none. None where that is said of all.
    """

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray
    names: list[str]
    splits: dict[str, np.ndarray]
    fingerprints: list[str]
    reader: Reader
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    root: str = ""
    groups: np.ndarray | None = None
    damaged: Mapping[int, str] = field(default_factory=dict)
    fit: Fit | None = None
    pixel_format: PixelFormat = RGB
    unlabeled: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not self.names:
            raise UserError(f"no images in {self.name}{_without_images(self.ignored)}")
        assert len(self.names) == len(self.labels) == len(self.fingerprints), (
            "an image has a name, a label and a fingerprint"
        )
        assert len(set(self.names)) == len(self.names), "names must differ"

    def __len__(self) -> int:
        return len(self.names)

    def read(self, i: int) -> Image.Image:
        """Image i as a person is shown it, upright RGB, in full size.

        Raises: Unreadable.
        """
        return self.picture(i).image

    def picture(self, i: int, shrink: int | None = None) -> decode.DecodedImage:
        """Image i with the size and color mode of its file; `shrink` as in `decode.decode`.

        Raises: Unreadable.
        """
        with self._opened(i) as file:
            decoded = decode.decode(file, self.names[i], shrink, self.pixel_format)
        return decoded if self.fit is None else self.fit(decoded, self.names[i])

    def size_of(self, i: int) -> tuple[int, int]:
        """Height and width of image i, upright, pixels; reads no more than its header where that suffices.

        Raises: Unreadable.
        """
        with self._opened(i) as file:
            height, width = decode.image_size(file, self.names[i])
        return (height, width) if self.fit is None else self.fit.size(height, width)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with anything of the source: files, labels, classes, splits. Faithful
        copies of the files leave them as they are."""
        marks = map(portable, self.fingerprints)
        splits = [f"{key}={digest(map(str, rows.tolist()))}" for key, rows in sorted(self.splits.items())]
        parts = (self.classes, map(str, self.labels.tolist()), (self.root,), self.names, marks, splits)
        groups = [] if self.groups is None else [map(str, self.groups.tolist())]
        return digest(digest(part) for part in (*parts, *groups))

    @contextmanager
    def _opened(self, i: int) -> Iterator[BinaryIO | decode.Decoded]:
        try:
            file = self.reader.open(i)
        except OSError as error:
            raise decode.Unreadable(self.names[i], decode.reason(error)) from error
        try:
            yield file
        finally:
            if not isinstance(file, decode.DECODED):
                file.close()


def _without_images(ignored: Sequence[str]) -> str:
    return f" (only other files: {some(ignored, 3)})" if ignored else ""
