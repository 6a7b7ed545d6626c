# SPDX-License-Identifier: Apache-2.0
"""Images that are files of their own."""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from .source import HERE, Reader

SUFFIXES = frozenset(
    f".{ending}"
    for group in (
        ("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif", "bmp", "dib", "tif", "tiff"),
        ("ppm", "pgm", "pbm", "pnm", "avif", "jp2", "heic", "heif"),
    )
    for ending in group
)
"""Endings of image files; HEIC, which asks for an extra, is listed as unreadable without it, not passed over."""

MISSING = "missing"
"""The fingerprint of what is not there."""


class FileReader(Reader):
    """Images that are files below a folder."""

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self.root, self.paths = str(root), paths

    def open(self, i: int) -> BinaryIO:
        return open_file(os.path.join(self.root, self.paths[i]))  # noqa: PTH118  (a third of the time)


def is_image(path: str) -> bool:
    """Whether a file's ending is that of an image."""
    return path[path.rfind(".") :].lower() in SUFFIXES


def open_file(path: str | Path) -> BinaryIO:
    """Open a file to be read. Raises: OSError for what is none: a pipe would have its reader wait for ever."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("no regular file, but a pipe or a device")
    return file


def file_fingerprint(status: Callable[[], os.stat_result]) -> str:
    """Return what changes when a file may have changed: its size in bytes and the time of its last change, which a copy
    may keep; then its inode and the time when that changed last, which nothing can set, so that files which exchange
    their names, or are written anew and dated back, differ as well. Times in nanoseconds."""
    try:
        facts = status()
    except (OSError, ValueError):  # a dangling link, or no name of a file; reading it will say so
        return MISSING
    return f"{facts.st_size} {facts.st_mtime_ns}{HERE}{facts.st_ino} {facts.st_ctime_ns}"
