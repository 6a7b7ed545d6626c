# SPDX-License-Identifier: Apache-2.0
"""Folders of images, on disk or inside a zip.

    train/CLASS/file  val|valid|validation/CLASS/file  test/CLASS/file      splits and classes (also train_set, ...)
    CLASS/file                                                              classes
    file                                                                    neither: images without labels

A class may hold folders of its own. Folders that merely wrap all the others are passed through. Hidden files, what
systems leave behind (`__MACOSX`, `Thumbs.db`) and files with other endings than those of images are not read.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import UserError
from . import archives, hub, shards
from .files import FileReader, stamp
from .sources import Reader, Source, classify, readable, rows_of, some, split_of

SUFFIXES = frozenset(
    f".{ending}"
    for group in (
        ("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif", "bmp", "dib", "tif", "tiff"),
        ("ppm", "pgm", "pbm", "pnm", "avif", "jp2", "heic", "heif"),
    )
    for ending in group
)
"""Endings of image files; HEIC is none we can read, and is listed as unreadable rather than passed over."""

_LEFT_BEHIND = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini", "$RECYCLE.BIN", "@eaDir"})


class File(NamedTuple):
    """One file below a folder: its path relative to it, with slashes, and what tells whether it changed."""

    path: str
    stamp: str


class Layout(NamedTuple):
    """How paths read as a data set.

    Args:
        kept: positions of the paths that belong to it, sorted by path.
        classes: class names.
        labels: [len(kept)] int64.
        splits: positions in `kept`.
        notes: what a person should know.
    """

    kept: list[int]
    classes: tuple[str, ...]
    labels: np.ndarray
    splits: dict[str, np.ndarray]
    notes: tuple[str, ...]


def open_folder(path: Path) -> Source:
    """Open a folder of images, of WebDataset shards, or one that Hugging Face's `datasets` wrote."""
    files, folders = scan(path)
    images = [file for file in files if is_image(file.path)]
    others = [file.path for file in files if not is_image(file.path)]
    if not images and any(other.endswith(".tar") for other in others):
        return shards.open_shards(path)
    if not images and any(other.endswith((".parquet", ".arrow")) for other in others):
        return hub.open_local(path)
    return _source(path, images, folders, others, lambda kept: FileReader(path, [images[i].path for i in kept]))


def open_zip(path: Path) -> Source:
    """Open a zip of such a folder; it is read in place."""
    spans, folders = archives.zip_spans(path)
    spans = [span for span in spans if _wanted(span.name)]
    kept = [span for span in spans if is_image(span.name)]
    images = [File(span.name, f"{span.name}\0{span.size}\0{span.checksum:08x}") for span in kept]
    others = [span.name for span in spans if not is_image(span.name)]
    folders = [folder for folder in folders if _wanted(folder)]
    return _source(path, images, folders, others, lambda rows: archives.ZipReader(path, [kept[i] for i in rows]))


def is_image(path: str) -> bool:
    """Whether a file's ending is that of an image."""
    return path[path.rfind(".") :].lower() in SUFFIXES


def scan(root: Path) -> tuple[list[File], list[str]]:
    """Every file and every folder below a folder, hidden ones left out; links are followed, once each."""
    files: list[File] = []
    folders: list[str] = []
    seen = {_place(root.stat())}
    waiting = [("", str(root.resolve()))]
    while waiting:
        relative, path = waiting.pop()
        for entry in _entries(path):
            below = f"{relative}{entry.name}"
            if entry.is_dir():
                if entry.is_symlink():
                    if (place := _place(entry.stat())) in seen:
                        continue
                    seen.add(place)
                folders.append(below)
                waiting.append((f"{below}/", entry.path))
            else:
                files.append(File(below, stamp(entry.path, entry.stat) if is_image(below) else ""))
    return files, folders


def arrange(paths: Sequence[str], folders: Sequence[str]) -> Layout:
    """Read splits and classes off the paths of images.

    Args:
        paths: of images, relative, with slashes.
        folders: every folder, so that a class without any image is seen.

    Raises: UserError if two folders mean the same split.
    """
    order = sorted(range(len(paths)), key=paths.__getitem__)
    files = [paths[i].split("/") for i in order]
    places = {*map(tuple, (folder.split("/") for folder in folders)), *(tuple(file[:-1]) for file in files)}
    places |= {place[:depth] for place in places for depth in range(1, len(place))}
    places.discard(())
    depth = _depth(files, places)
    notes: list[str] = []

    tops = {place[depth] for place in places if len(place) > depth}
    parts = {top: kind for top in tops if (kind := split_of(top)) is not None}
    has_classes = any(len(place) > depth + 1 and parts.get(place[depth]) == "train" for place in places)
    split = bool(parts) and (len(parts) == len(tops) or has_classes)
    if split:
        for kind in set(parts.values()):
            same = sorted(top for top in parts if parts[top] == kind)
            if len(same) > 1:
                raise UserError(f"folders {' and '.join(same)} both mean the {kind} split; keep one of them")
        depth += 1

    kept, labels, kinds, loose, beside = [], [], [], 0, 0
    with_classes = {place[depth - 1] if split else "" for place in places if len(place) > depth}
    for i, file in zip(order, files, strict=True):
        top = file[depth - 1] if split else ""
        if split and (top not in parts or len(file) <= depth):
            beside += 1
        elif len(file) == depth + 1 and top in with_classes:
            loose += 1
        else:
            kept.append(i)
            labels.append(file[depth] if len(file) > depth + 1 else None)
            kinds.append(parts[top] if split else "train")
    if beside:
        others = sorted(readable(top) for top in tops - parts.keys())
        notes.append(
            f"{beside} images beside the split folders were not read (in {some(others, 5) or 'the top folder'})"
        )
    if loose:
        notes.append(f"{loose} images beside the class folders were not read")
    inside = {place[depth] for place in places if len(place) > depth and (not split or place[depth - 1] in parts)}
    classes, numbers = classify(labels, also=inside)
    return Layout(kept, tuple(map(readable, classes)), numbers, rows_of(kinds), tuple(notes))


def _depth(files: Sequence[Sequence[str]], places: set[tuple[str, ...]]) -> int:
    """How many folders merely wrap all the others."""
    depth = 0
    while True:
        tops = {place[depth] for place in places if len(place) > depth}
        inner = any(len(place) > depth + 1 for place in places)
        loose = any(len(file) == depth + 1 for file in files)
        if len(tops) != 1 or not inner or loose or split_of(tops.pop()):
            return depth
        depth += 1


def _source(
    path: Path, images: list[File], folders: list[str], others: list[str], reader: Callable[[list[int]], Reader]
) -> Source:
    layout = arrange([image.path for image in images], folders)
    return Source(
        name=readable(path.name or str(path.resolve().name)),
        classes=layout.classes,
        labels=layout.labels,
        names=[readable(images[i].path) for i in layout.kept],
        splits=layout.splits,
        stamps=[images[i].stamp for i in layout.kept],
        reader=reader(layout.kept),
        ignored=tuple(sorted(map(readable, others))),
        notes=layout.notes,
    )


def _wanted(path: str) -> bool:
    return not any(part.startswith(".") or part in _LEFT_BEHIND for part in path.split("/"))


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from (entry for entry in entries if entry.name[0] != "." and entry.name not in _LEFT_BEHIND)
    except OSError as error:
        raise UserError(f"cannot read the folder {path}: {error.strerror}") from error
