# SPDX-License-Identifier: Apache-2.0
"""The contract of a source: images and their targets, in one form for every format."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np
from PIL import Image

from ...cache import digest
from ...errors import UserError, some
from ..images import decode
from ..images.fit import Fit
from ..images.format import RGB, PixelFormat

if TYPE_CHECKING:
    from ..targets.objects import MaskFiles, Objects

HERE = "\0"
"""Separates the part of a fingerprint that a faithful copy of the file shares from the part that holds on one
machine."""

Contents = Literal["classes", "labels", "numbers", "objects", "pixels"]
"""Type of a source's targets: a class, several labels, a number, or objects per image; a class per pixel."""
RECIPES: dict[Contents, str] = {
    "labels": "multilabel/photos",
    "numbers": "regression/photos",
    "objects": "detection/photos",
    "pixels": "segmentation/photos",
}
"""The default recipe of other targets than classes."""


UNLABELED = "unlabeled"  # the split of images that a training sees without labels (data.unlabeled)


def portable(fingerprint: str) -> str:
    """Return the part of a fingerprint that a faithful copy of the file has as well."""
    return fingerprint.partition(HERE)[0]


class Reader(ABC):
    """Reads a source's images. Picklable, and safe to use from several threads at once."""

    @abstractmethod
    def open(self, i: int) -> BinaryIO | decode.Decoded:
        """Return image i as an open file at its start, or decoded: an array [H, W] or [H, W, C], or a Pillow image."""


@dataclass(frozen=True, eq=False)
class Source:
    """Images, their targets, and how to read them; the same object for every format.

    Args:
        labels: target of each image: [N] int64, position of the class in `classes`, -1 without one; [N, C] float32 for
            several labels per image, 1 where an image has the label, -1 throughout where it is unlabeled (several.py);
            or [N] float32 numbers, NaN without one.
        names: N different printable names: paths relative to the data.
        splits: "train", "val", "test" -> int64 positions, disjoint: the splits that the data declares. Data without
            splits has all its images under "train".
        fingerprints: N strings that change when the image of that name may have changed: `file_fingerprint` of a file,
            checksum of a zip's member, digest of pixels in memory. The part behind `HERE` holds on this machine alone.
        root: absolute path in which names and fingerprints hold; empty where fingerprints identify contents. Two
            folders unpacked from archives may agree in names, sizes and times, but not in pixels.
        groups: [N] int64; images of one number (of one patient, say) are not divided between splits; -1 for an image
            without a group. None where there are no groups.
        damaged: position of an image whose label could not be read because the image is damaged -> reason.
        fit: makes non-square images square where they are not cropped; None leaves them as they are.
        unlabeled: [N] bool, images without any label; of several labels per image, other images with no label have
            none of the labels. None where no image is unlabeled.
        targets: objects of each image, or masks whose pixels are classes; `labels` are -1 then. None for other data.
    """

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray
    names: list[str]
    splits: dict[str, np.ndarray]
    fingerprints: list[str]
    reader: Reader
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    root: str = ""
    groups: np.ndarray | None = None
    damaged: Mapping[int, str] = field(default_factory=dict)
    fit: Fit | None = None
    pixel_format: PixelFormat = RGB
    unlabeled: np.ndarray | None = None
    targets: "list[Objects] | MaskFiles | None" = None
    lists: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names:
            others = f" (only other files: {some(self.ignored, 3)})" if self.ignored else ""
            raise UserError(f"no images in {self.name}{others}")
        assert len(self.names) == len(self.labels) == len(self.fingerprints), (
            "an image has a name, a label and a fingerprint"
        )
        assert len(set(self.names)) == len(self.names), "names must differ"

    def __len__(self) -> int:
        return len(self.names)

    @property
    def contents(self) -> Contents:
        """Type of the targets; "classes" also for images without any."""
        if self.targets is not None:
            return "objects" if isinstance(self.targets, list) else "pixels"
        if self.labels.ndim == 2:
            return "labels"
        return "numbers" if self.labels.dtype.kind == "f" else "classes"

    @property
    def has_labels(self) -> bool:
        """Images have classes, labels or numbers, or their objects or pixels have."""
        return bool(self.classes) or self.contents == "numbers"

    @property
    def objects(self) -> "list[Objects]":
        """Objects of each image of a source that has them."""
        assert isinstance(self.targets, list)
        return self.targets

    @property
    def masks(self) -> "MaskFiles":
        """Masks of a source whose pixels have classes."""
        assert self.targets is not None
        assert not isinstance(self.targets, list)
        return self.targets

    @property
    def images_alone(self) -> "Source":
        """The images without their objects or masks; a source with classes, labels or numbers as it is."""
        return self if self.targets is None else replace(self, classes=(), targets=None, warnings=())

    def read(self, i: int) -> Image.Image:
        """Return image i upright, in RGB and in full size."""
        return self.picture(i).image

    def picture(self, i: int, shrink: int | None = None) -> decode.DecodedImage:
        """Decode image i, with the size and color mode of its file; `shrink` as in `decode.decode`.

        Raises: Unreadable.
        """
        with self._opened(i) as file:
            decoded = decode.decode(file, self.names[i], shrink, self.pixel_format)
        return decoded if self.fit is None else self.fit(decoded, self.names[i])

    def size_of(self, i: int) -> tuple[int, int]:
        """Return height and width of image i, upright, in pixels; reads its header alone where that suffices.

        Raises: Unreadable.
        """
        with self._opened(i) as file:
            height, width = decode.image_size(file, self.names[i])
        return (height, width) if self.fit is None else self.fit.size(height, width)

    def orientation(self, i: int) -> int:
        """Return the EXIF orientation of image i."""
        with self._opened(i) as file:
            return (
                1 if isinstance(file, decode.DECODED) else decode.orientation_of(file, self.names[i], self.pixel_format)
            )

    def copies(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """[n] whether an image of `rows` is stored in the same bytes as one of `others`. Reads files of equal size."""

        def marks(numbers: Iterable[int], sizes: bool = False) -> dict[int, bytes]:
            made = {}
            for i in numbers:
                with suppress(decode.Unreadable), self._opened(i) as file:
                    if isinstance(file, decode.DECODED):
                        pixels = np.asarray(file)
                        made[i] = repr(pixels.shape).encode() if sizes else blake2b(pixels.tobytes()).digest()
                    else:
                        made[i] = b"%d" % file.seek(0, os.SEEK_END) if sizes else blake2b(file.read()).digest()
            return made

        ours, theirs = marks(rows.tolist(), sizes=True), marks(others.tolist(), sizes=True)
        shared = {*ours.values()} & {*theirs.values()}
        ours, theirs = (marks(i for i, size in each.items() if size in shared) for each in (ours, theirs))
        return np.isin(rows, [i for i, mark in ours.items() if mark in {*theirs.values()}])

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with anything of the source: files, targets, classes, splits. Faithful
        copies of the files leave them as they are."""
        marks = map(portable, self.fingerprints)
        splits = [f"{key}={digest(map(str, rows.tolist()))}" for key, rows in sorted(self.splits.items())]
        parts = (self.classes, map(str, self.labels.tolist()), (self.root,), self.names, marks, splits)
        groups = [] if self.groups is None else [map(str, self.groups.tolist())]
        from ..targets.objects import digest_of  # imports torch

        targets = [] if self.targets is None else [[digest_of(self.targets)]]
        return digest(digest(part) for part in (*parts, *groups, *targets))

    def with_unlabeled(self, more: "Source") -> "Source":
        """Add another source's images, without their labels, as the split UNLABELED.

        Raises: UserError for images with objects or masks, and for one of these images whose name begins like theirs.
        """
        if self.targets is not None:
            raise UserError(
                f"data.unlabeled adds images to classes, and {self.name} has objects or masks; leave it out"
            )
        if own := next((name for name in self.names if name.startswith(f"{UNLABELED}/")), None):
            raise UserError(
                f"images of data.unlabeled are called {UNLABELED}/..., as {own} of {self.name} is; rename that folder, "
                "or move it out of the data"
            )
        count, shape, none = len(self), (len(more), *self.labels.shape[1:]), np.arange(len(more))
        flags = np.zeros(count, bool) if self.unlabeled is None else self.unlabeled
        return replace(
            self,
            labels=np.concatenate([self.labels, np.full(shape, np.nan if self.contents == "numbers" else -1)]).astype(
                self.labels.dtype
            ),
            names=[*self.names, *(f"{UNLABELED}/{name}" for name in more.names)],
            splits={**self.splits, UNLABELED: count + none},
            fingerprints=[*self.fingerprints, *(f"{mark}{HERE}{more.root}" for mark in more.fingerprints)],
            reader=_Both(self.reader, more.reader, count),
            groups=None if self.groups is None else np.concatenate([self.groups, np.full(len(more), -1)]),
            damaged={**self.damaged, **{count + i: reason for i, reason in more.damaged.items()}},
            unlabeled=np.concatenate([flags, np.ones(len(more), bool)]),
            warnings=(*self.warnings, *(f"data.unlabeled: {warning}" for warning in more.warnings)),
        )

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


class _Both(Reader):
    """Reads the images of one reader, and behind its `count` images those of another."""

    def __init__(self, first: Reader, second: Reader, count: int) -> None:
        self.first, self.second, self.count = first, second, count

    def open(self, i: int) -> BinaryIO | decode.Decoded:
        return self.first.open(i) if i < self.count else self.second.open(i - self.count)
