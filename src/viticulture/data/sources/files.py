# SPDX-License-Identifier: Apache-2.0
"""Images that are files. A file may have several names, by links: each name counts, and a leak is reported."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ...errors import UserError
from .source import HERE, Reader, Source

SUFFIXES = frozenset(
    f".{ending}"
    for group in (
        ("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif", "bmp", "dib", "tif", "tiff"),
        ("ppm", "pgm", "pbm", "pnm", "avif", "jp2", "heic", "heif"),
    )
    for ending in group
)
"""Endings of image files; HEIC, which needs an extra, is listed as unreadable without it, not passed over."""

MISSING = "missing"  # the fingerprint of a file that does not exist

_LEAKS = (("test", "train"), ("val", "train"), ("test", "val"))  # a split, and one whose images it must not hold

Pairs = list[tuple[int, int]]  # rows of images that are one file


class FileReader(Reader):
    """Reads image files below a folder."""

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self.root, self.paths = str(root), paths

    def open(self, i: int) -> BinaryIO:
        return open_file(os.path.join(self.root, self.paths[i]))  # noqa: PTH118  (a third of the time)


def is_image(path: str) -> bool:
    """Return whether a file's ending is that of an image."""
    return path[path.rfind(".") :].lower() in SUFFIXES


def open_file(path: str | Path) -> BinaryIO:
    """Open a file to read. Raises: OSError for a pipe or a device, whose reader would wait forever."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("no regular file, but a pipe or a device")
    return file


def file_fingerprint(status: Callable[[], os.stat_result]) -> str:
    """Return a string that changes when a file may have changed: its size in bytes and the time of its last change,
    which a copy may keep; then its inode and the time when that changed last, which no program can set, so that files
    that exchange their names, or are rewritten and dated back, differ as well. Times in nanoseconds."""
    try:
        found = status()
    except (OSError, ValueError):  # a dangling link, or no name of a file; reading it will say so
        return MISSING
    return f"{found.st_size} {found.st_mtime_ns}{HERE}{found.st_ino} {found.st_ctime_ns}"


def with_links(source: Source) -> Source:
    """Add warnings about images that are one file.

    Raises: UserError where all images of a held-out split are training images, or a folder is that of two classes.
    """
    reader = source.reader
    files = _linked(source, reader) if isinstance(reader, FileReader) else []
    if not files:
        return source
    assert isinstance(reader, FileReader)
    kinds = {int(row): kind for kind, part in source.splits.items() for row in part}
    labels = source.labels.tolist()
    _check_folders(source, reader, files, labels)
    warnings = [*source.warnings]

    def name(pairs: Pairs) -> str:
        return " and ".join(source.names[row] for row in pairs[0])

    def warn(pairs: Pairs, what: str) -> None:
        if pairs:
            warnings.append(f"{len(pairs):,} {what}, by links to the same files: {name(pairs)}")

    for held, other in _LEAKS:
        pairs: Pairs = []
        for rows in files:
            if twin := next((row + 1 for row in rows if kinds.get(row) == other), 0):
                pairs += [(row, twin - 1) for row in rows if kinds.get(row) == held]
        if pairs and other == "train" and len(pairs) == len(source.splits[held]):
            raise UserError(
                f"every {held} image of {source.name} is a training image, by links to the same files or folders "
                f"({name(pairs)}); remove the links of one split"
            )
        warn(pairs, f"of {len(source.splits.get(held, ())):,} {held} images are {other} images")
    unlike: Pairs = []
    alike: Pairs = []
    for rows in files:
        first: dict[tuple[str | None, object], int] = {}
        for row in rows:
            before = first.setdefault((kinds.get(row), labels[row]), row)
            alike += [(before, row)] if before != row else []
        unlike += [(rows[0], row) for row in rows if labels[row] != labels[rows[0]]]
    warn(unlike, "images are images of another class")
    warn(alike, "images repeat another one of their class and split")
    return replace(source, warnings=tuple(warnings))


def _linked(source: Source, reader: FileReader) -> list[list[int]]:
    """Return the rows of each file that has several names."""
    marks = source.fingerprints
    often, rows = Counter(marks), dict[str, list[int]]()
    for row, mark in enumerate(marks if len(often) < len(marks) else ()):
        if often[mark] > 1 and HERE in mark:
            rows.setdefault(mark, []).append(row)
    files = list(rows.values())
    paths = [Path(reader.root, reader.paths[row]) for row in files[0][:2]] if files else []
    # Files of two disk images may agree in all that a fingerprint holds.
    return files if files and paths[0].samefile(paths[1]) else []


def _check_folders(source: Source, reader: FileReader, files: list[list[int]], labels: list[object]) -> None:
    """Raises: UserError where a file has two classes because its folder has two names."""
    whole = cache(lambda folder: os.path.realpath(os.path.join(reader.root, folder)))  # noqa: PTH118
    for rows in files:
        first: dict[tuple[str, str], int] = {}
        for row in rows:
            folder, _, name = reader.paths[row].rpartition("/")
            before = first.setdefault((whole(folder), name), row)
            if labels[before] != labels[row]:
                raise UserError(
                    f"a folder of {source.name} is that of two classes, by links to it: {source.names[before]} and "
                    f"{source.names[row]} are the same file; remove one of the folder's names"
                )
