# SPDX-License-Identifier: Apache-2.0
"""From what a person names (a folder, a file, a data set) to one kind of object: labelled images that can be read.

    digits                          scikit-learn's 1,797 small digits, bundled
    cifar100, flowers102, ...       torchvision's sets by name (named.py)
    a folder, or a zip of one       train/ val/ test/ CLASS/file, or CLASS/file, or just images (folders.py)
    a CSV                           path,label[,split] (listing.py)
    hf:owner/name, *.parquet        Hugging Face data sets (hub.py)
    *.tar                           WebDataset shards (shards.py)

A name of a set wins over a folder of that name; write ./digits for the folder.
"""

import hashlib
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from ..errors import UserError, unknown
from . import decode

_SPLIT = re.compile(r"(train|val|test)(ing|id|idation)?([ _-]?(set|data|images))?", flags=re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\ud800-\udfff]|\\u[0-9a-f]{4}")
_LONG = 100


class Reader(ABC):
    """Where a source's images are. Picklable, and safe to use from several threads at once."""

    @abstractmethod
    def open(self, i: int) -> BinaryIO | np.ndarray:
        """Image i as an open file at its start, or decoded: [H, W] or [H, W, 3] uint8."""


@dataclass(frozen=True, eq=False)
class Source:
    """Images, what they show, and how to read them; the same object whatever they come from.

    Args:
        name: what to call the data.
        classes: class names in the order of the labels.
        labels: [N] int64, position of the class in `classes`; -1 without a label.
        names: N different names that a person recognises and that can be printed: paths relative to the data.
        splits: "train", "val", "test" -> int64 positions, disjoint: what the data itself declares. Data without splits
            has all its images under "train".
        stamps: N marks that change when the image of that name may have changed: size and time of a file, checksum of
            a zip's member, digest of pixels in memory.
        reader: reads image i.
        ignored: files among the images that are none.
        notes: what a person should know about how the data was read.
        place: where names and stamps hold, an absolute path; empty where stamps tell contents. Two folders unpacked
            from archives may agree in names, sizes and times, and yet not in pixels.
    """

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray
    names: list[str]
    splits: dict[str, np.ndarray]
    stamps: list[str]
    reader: Reader
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    place: str = ""

    def __post_init__(self) -> None:
        if not self.names:
            raise UserError(f"no images in {self.name}{_without_images(self.ignored)}")
        assert len(self.names) == len(self.labels) == len(self.stamps)
        assert len(set(self.names)) == len(self.names), "names must differ"

    def __len__(self) -> int:
        return len(self.names)

    def read(self, i: int) -> Image.Image:
        """Image i, upright RGB, in full size.

        Raises: Unreadable.
        """
        return self.picture(i).image

    def picture(self, i: int, shrink: int | None = None) -> decode.Picture:
        """Image i with the size and colour mode of its file; `shrink` as in `decode.decode`.

        Raises: Unreadable.
        """
        with self._opened(i) as file:
            return decode.decode(file, self.names[i], shrink)

    def measure(self, i: int) -> tuple[int, int]:
        """Height and width of image i, upright, pixels; reads no more than its header where that suffices.

        Raises: Unreadable.
        """
        with self._opened(i) as file:
            return decode.measure(file, self.names[i])

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with anything of the source: files, labels, classes, splits."""
        splits = [f"{key}={digest(map(str, rows.tolist()))}" for key, rows in sorted(self.splits.items())]
        parts = (self.classes, map(str, self.labels.tolist()), (self.place,), self.names, self.stamps, splits)
        return digest(digest(part) for part in parts)

    @contextmanager
    def _opened(self, i: int) -> Iterator[BinaryIO | np.ndarray]:
        try:
            file = self.reader.open(i)
        except OSError as error:
            raise decode.Unreadable(self.names[i], decode.reason(error)) from error
        try:
            yield file
        finally:
            if not isinstance(file, np.ndarray):
                file.close()


def open_source(data: str | Path) -> Source:
    """Find out what is meant by `data` and open it; nothing is decoded yet.

    Raises: UserError where there is no such data or it holds no images.
    """
    from . import folders, hub, listing, named, shards

    text = str(data)
    if not text.strip():
        raise UserError(f"data must be the name of a set, a file or a folder, got {text!r}; write . for {Path.cwd()}")
    if isinstance(data, str):
        if text.lower() in named.NAMES:
            return named.open_named(text.lower())
        if text.startswith("hf:"):
            return hub.open_hub(text.removeprefix("hf:"))
        if ".tar" in text and re.search(r"[{*?\[]", text):
            return shards.open_shards(text)
    path = Path(data)
    try:
        path = path.expanduser()
        folder, file, there = path.is_dir(), path.is_file(), path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long a word, a NUL in it, an unknown ~user
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"no such file or folder: {shortened(text)!r} ({why})") from error
    if folder:
        return folders.open_folder(path)
    if there and not file:
        raise UserError(f"{path} is no data: neither a file nor a folder, but a pipe or a device")
    if file:
        openers: dict[str, Callable[[Path], Source]] = {
            ".zip": folders.open_zip,
            ".csv": listing.open_csv,
            ".tsv": listing.open_csv,
            ".tar": shards.open_shards,
            ".parquet": hub.open_local,
        }
        if path.suffix.lower() in openers:
            return openers[path.suffix.lower()](path)
        raise UserError(f"{path} is no data: expected a folder, {', '.join(openers)}, or the name of a data set")
    if "/" in text or "\\" in text or path.suffix or text.startswith(("~", ".")) or isinstance(data, Path):
        hint = f"; Hugging Face sets are named hf:{text}" if re.fullmatch(r"[\w-]+/[\w.-]+", text) else ""
        raise UserError(f"no such file or folder: {shortened(text)!r} (looked in {Path.cwd()}){hint}")
    raise UserError(
        f"{unknown('data set', shortened(text), named.NAMES)} (and no file or folder of that name in {Path.cwd()})"
    )


def split_of(name: str) -> str | None:
    """The split that a folder or a word names: "train", "val", "test"; None where it names none."""
    found = _SPLIT.fullmatch(name.strip())
    return found[1].lower() if found else None


def rows_of(kinds: Sequence[str | None] | np.ndarray) -> dict[str, np.ndarray]:
    """The positions of each split that occurs, from the split of every image."""
    array = np.array(kinds, dtype=object)
    return {kind: np.flatnonzero(array == kind) for kind in ("train", "val", "test") if kind in kinds}


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key under which class 2 comes before class 10, whatever the case of letters."""
    parts = re.split(r"(\d+)", name)
    digits = [part.lstrip("0") for part in parts[1::2]]
    words = [(0, part.casefold()) for part in parts[::2]]
    numbers = [(len(part), part) for part in digits]
    return [pair for pairs in zip(words, [*numbers, (0, "")], strict=True) for pair in pairs], name


def classify(labels: Sequence[str | None], also: Iterable[str] = ()) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names that can be printed, in natural order, and the [N] int64 labels that point to them; None becomes -1.

    Args:
        labels: the class name of each image.
        also: classes that have no image.
    """
    same = {name: readable(unicodedata.normalize("NFC", name)) for name in {*labels, *also} if name is not None}
    classes = tuple(sorted(set(same.values()), key=natural))
    number = {name: i for i, name in enumerate(classes)}
    code: dict[str | None, int] = {name: number[plain] for name, plain in same.items()}
    return classes, np.array([code.get(name, -1) for name in labels], dtype=np.int64)


def digest(parts: Iterable[str]) -> str:
    """32 hexadecimal digits for a sequence of texts."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        hashed.update(len(raw).to_bytes(8, "little") + raw)
    return hashed.hexdigest()


def readable(name: str) -> str:
    """A name that can be printed and written, also where a file system holds bytes that are no text.

    Such a byte becomes `\\udc` and two hexadecimal digits. In a name with one, or with what looks like one, a backslash
    becomes two: different names stay different.
    """
    if not _UNPRINTABLE.search(name):
        return name
    return name.replace("\\", r"\\").encode("utf-8", "backslashreplace").decode("utf-8")


def shortened(text: str) -> str:
    """A word as it is told in an error: its end gives way where it is very long."""
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def some(names: Sequence[str], most: int = 10) -> str:
    """The first names of a list, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _without_images(ignored: Sequence[str]) -> str:
    return f" (only other files: {some(ignored, 3)})" if ignored else ""
