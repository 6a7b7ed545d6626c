# SPDX-License-Identifier: Apache-2.0
"""Folders of images, on disk or inside a zip.

    train/CLASS/file  val|valid|validation/CLASS/file  test/CLASS/file      splits and classes (also train_set, ...)
    CLASS/file                                                              classes
    file                                                                    neither: images without labels

A folder without pictures may hold arrays instead, .npy files of numbers [H, W] or [H, W, C]. A class may have
subfolders. Folders that only wrap all the others are passed through, and so is a folder `images` that holds all classes
of a split. Hidden files, system files (`disk.is_system_file`), files with other endings than those of images, and runs
and studies of this package, which lie there if it is trained from within the folder, are not read.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from ...disk import is_system_file
from ...errors import UserError, counted, some
from ...text import readable
from . import archives
from . import hugging_face as hub
from . import webdataset as shards
from .files import FileReader, file_fingerprint, is_image, with_links
from .labels import classify, rows_of, split_of
from .source import Reader, Source

ARRAYS = ".npy"  # ending of arrays: images where there are no pictures; next to pictures they are features or masks

LIST = re.compile(r"(.*[_-])?(train|val|valid|validation|test)([_-].*)?[.](csv|tsv|txt)", re.IGNORECASE)
"""Names of files that may list the images of a split."""

OURS = (frozenset({"run.lock"}), frozenset({"run.json", "recipe.yaml"}), frozenset({"study.json", "study.yaml"}))
"""Files that together mark a folder as a run or a study."""
MAX_WAYS = 10_000
"""Ways by which a linked folder may be reached; links among folders multiply, two in each of 40 make 10^12."""
Place = tuple[str, ...]  # a folder, by the names on its way


class File(NamedTuple):
    """A file below a folder: its path relative to that, with slashes, and its fingerprint; empty if it is no image."""

    path: str
    fingerprint: str


class FolderLayout(NamedTuple):
    """Paths read as a data set: positions of those that belong to it, sorted by path; classes; labels and splits of
    them; and warnings."""

    kept: list[int]
    classes: tuple[str, ...]
    labels: np.ndarray
    splits: dict[str, np.ndarray]
    warnings: tuple[str, ...]


def open_folder(path: Path, deeper: int | None = 0) -> Source:
    """Open a folder of images, of WebDataset shards, or one that Hugging Face's `datasets` wrote; classes lie `deeper`
    levels below the folders that would be classes. With None every image is read, and none has a class."""
    files, folders, ours = scan(path)
    images = images_among(files)
    names = {image.path for image in images}
    others = [file.path for file in files if file.path not in names]
    if not images and any(other.endswith(".tar") for other in others):
        return open_tars(path)
    if not images and any(other.endswith((".parquet", ".arrow")) for other in others):
        return hub.open_local(path)

    def reader(rows: list[int]) -> Reader:
        return FileReader(path, [images[i].path for i in rows])

    source = _source(path, images, folders, others, reader, str(path.resolve()), deeper)
    warning = f"not read: runs and studies of viticulture ({some(sorted(map(readable, ours)), 3)})"
    return replace(source, warnings=(*source.warnings, warning)) if ours else source


def open_zip(path: Path) -> Source:
    """Open a zip of such a folder; it is read in place."""
    spans, folders = archives.zip_spans(path)
    outside = [readable(span.name) for span in spans if ".." in span.name.split("/") and holds_image(span.name)]
    spans = [span for span in spans if not is_system_file(span.name)]
    paths_of_images = {file.path for file in images_among([File(span.name, "") for span in spans])}
    selected = [span for span in spans if span.name in paths_of_images]
    images = [File(span.name, f"{span.size} {span.checksum:08x}") for span in selected]
    others = [span.name for span in spans if span.name not in paths_of_images]
    folders = [folder for folder in folders if not is_system_file(folder)]
    source = _source(path, images, folders, others, lambda rows: archives.ZipReader(path, [selected[i] for i in rows]))
    warning = f"not read: {counted(len(outside), 'image')} whose names lead out of the zip: {some(outside, 3)}"
    return replace(source, warnings=(*source.warnings, warning)) if outside else source


def open_tars(data: str | Path) -> Source:
    """Open WebDataset shards, or tars of such a folder: a file, a folder of them, or a pattern of file names."""
    return shards.open_shards(data, arrange)


def images_among(files: Sequence[File]) -> list[File]:
    """Return the pictures among files; where there are none, the arrays."""
    return [f for f in files if is_image(f.path)] or [f for f in files if f.path.lower().endswith(ARRAYS)]


def scan(root: Path) -> tuple[list[File], list[str], list[str]]:
    """Return every file and every folder below a folder, except hidden ones, and separately the folders of runs and
    studies, of which nothing is listed, nor a folder that holds nothing else. Links are followed, except to a folder
    that they lie in.

    Raises: UserError for a folder that cannot be read, or links whose ways multiply without end.
    """
    files: list[File] = []
    folders: list[str] = []
    ours: list[str] = []
    ways = Counter[tuple[int, int]]()  # to a folder, by links in folders that are linked themselves
    waiting = [("", str(root.resolve()), frozenset({_place(root.stat())}), False)]
    while waiting:
        relative, path, around, linked = waiting.pop()
        entries = list(_entries(path))
        if relative and _is_ours(entries):
            ours.append(relative.rstrip("/"))
            continue
        folders += [relative.rstrip("/")] if relative else []
        for entry in entries:
            below = f"{relative}{entry.name}"
            if _is_folder(entry):
                place, link = _place(entry.stat()), entry.is_symlink()
                if place in around:
                    continue
                ways[place] += link and linked
                if ways[place] > MAX_WAYS:
                    raise UserError(f"links lead to {entry.path} in more than {MAX_WAYS:,} ways; remove some")
                waiting.append((f"{below}/", entry.path, around | {place}, link or linked))
            else:
                files.append(File(below, file_fingerprint(entry.stat) if holds_image(below) else ""))
    holders = {str(parent) for folder in ours for parent in PurePosixPath(folder).parents}
    if holders:
        others = [file.path for file in files if file.fingerprint] + [name for name in folders if name not in holders]
        emptied = {name for name in holders if not any(other.startswith(f"{name}/") for other in others)}
        folders = [name for name in folders if name not in emptied]
    return files, folders, ours


def arrange(paths: Sequence[str], folders: Sequence[str], deeper: int = 0) -> FolderLayout:
    """Read splits and classes off the paths of images.

    Args:
        paths: of images, relative, with slashes.
        folders: every folder, also those of classes without images.
        deeper: levels that classes lie below the folders that would be classes; such a class has its path as name.

    Raises: UserError if two folders mean the same split, or folders that would be classes hide their split's word.
    """
    order = sorted(range(len(paths)), key=paths.__getitem__)
    # An image's part in the data set follows from its folder: there are a thousand times fewer of those.
    number: dict[str, int] = {}
    inside = np.array([number.setdefault(path[: max(path.rfind("/"), 0)], len(number)) for path in paths], dtype=int)
    inside, counts = inside[order], np.bincount(inside, minlength=len(number))
    holders = [tuple(folder.split("/")) if folder else () for folder in number]
    places = {*map(tuple, (folder.split("/") for folder in folders)), *holders}
    places |= {place[:depth] for place in places for depth in range(1, len(place))}
    places.discard(())
    depth = _depth(holders, places)
    warnings: list[str] = []

    tops = {place[depth] for place in places if len(place) > depth}
    parts = {top: kind for top in tops if (kind := split_of(top)) is not None}
    has_classes = any(len(place) > depth + 1 and parts.get(place[depth]) == "train" for place in places)
    split = bool(parts) and (len(parts) == len(tops) or has_classes)
    if not split and all(len(holder) > depth + 1 for holder in holders):
        _check_words(tops)
    if split:
        for kind in set(parts.values()):
            same = sorted(top for top in parts if parts[top] == kind)
            if len(same) > 1:
                raise UserError(f"folders {' and '.join(same)} both mean the {kind} split; keep one of them")
        depth += 1
        if not deeper:
            wraps = _wraps(holders, places, depth)
            holders, places = (
                [_within(holder, wraps) for holder in holders],
                {_within(place, wraps) for place in places},
            )

    with_classes = {place[depth - 1] if split else "" for place in places if len(place) > depth}
    kinds: list[str | None] = []  # of each holder: the split of its images; None where they are not read
    loose = outside = 0
    for holder, count in zip(holders, counts.tolist(), strict=True):
        top = holder[depth - 1] if split and len(holder) >= depth else ""
        if split and top not in parts:
            outside, kind = outside + count, None
        elif len(holder) == depth and top in with_classes:
            loose, kind = loose + count, None
        else:
            kind = parts[top] if split else "train"
        kinds.append(kind)
    if outside:
        others = some(sorted(readable(top) for top in tops - parts.keys()), 5) or "the top folder"
        warnings.append(f"not read: {counted(outside, 'image')} outside the split folders (in {others})")
    if loose:
        warnings.append(f"not read: {counted(loose, 'image')} outside the class folders")
    end = depth + 1 + deeper

    def name_of(place: Place) -> str:
        return "/".join(place[depth:end])

    also = {name_of(place) for place in places if len(place) >= end and (not split or place[depth - 1] in parts)}
    labels = [
        name_of(holder) if kind and len(holder) >= end else None for holder, kind in zip(holders, kinds, strict=True)
    ]
    classes, codes = classify(labels, also)
    of_classes = [holder for holder, label in zip(holders, labels, strict=True) if label is not None]
    if of_classes and len(also) > 1 and all(len(holder) > end for holder in of_classes):
        inner = {holder[depth : end + 1] for holder in of_classes}
        warnings.append(
            f"no class folder holds images itself, only its {len(inner)} inner folders do; to train on those as "
            "classes, write /* behind the data's folder, or name one folder, such as "
            f"{'/'.join(of_classes[0][depth:end])}"
        )
    read = np.array([kind is not None for kind in kinds], dtype=bool)[inside]
    kept = np.array(order, dtype=int)[read].tolist()
    return FolderLayout(
        kept, classes, codes[inside[read]], rows_of(np.array(kinds, dtype=object)[inside[read]]), tuple(warnings)
    )


def _unarranged(paths: Sequence[str]) -> FolderLayout:
    """Return all images, in the order of their paths, without classes."""
    kept, rows = sorted(range(len(paths)), key=paths.__getitem__), np.arange(len(paths))
    return FolderLayout(kept, (), np.full(len(paths), -1, dtype=np.int64), {"train": rows}, ())


def _check_words(tops: set[str]) -> None:
    """Raises: UserError for folders of folders whose names resemble splits: they would be classes."""
    words = [re.search("train|val|test", top.lower()) for top in tops]
    if len({word[0] for word in words if word} | {"train"}) > 1 and all(words):
        raise UserError(
            f"folders {' and '.join(sorted(tops))} look like splits that are not known here; call them train, val and "
            "test"
        )


def _depth(holders: Sequence[Place], places: set[Place]) -> int:
    """Return how many folders only wrap all the others, from `holders`, which hold images, and all folders."""
    depth = 0
    while True:
        tops = {place[depth] for place in places if len(place) > depth}
        inner = any(len(place) > depth + 1 for place in places)
        loose = any(len(holder) == depth for holder in holders)
        if len(tops) != 1 or not inner or loose or split_of(tops.pop()):
            return depth
        depth += 1


def _wraps(holders: Sequence[Place], places: set[Place], depth: int) -> set[Place]:
    """Return the folders `images` that hold all folders of a split, which lie at `depth`, and no image themselves."""
    below: dict[Place, set[Place]] = {}
    for place in places:
        if len(place) > depth:
            below.setdefault(place[:depth], set()).add(place[: depth + 1])
    only = {wrap for inner in below.values() for wrap in inner if len(inner) == 1 and wrap[depth].lower() == "images"}
    return {place[: depth + 1] for place in places if len(place) > depth + 1} & (only - {*holders})


def _within(place: Place, wraps: set[Place]) -> Place:
    """Return a folder's place without the one among these that holds it."""
    wrap = next((wrap for wrap in wraps if place[: len(wrap)] == wrap), ())
    return (*wrap[:-1], *place[len(wrap) :])


def _source(
    path: Path,
    images: list[File],
    folders: list[str],
    others: list[str],
    reader: Callable[[list[int]], Reader],
    root: str = "",
    deeper: int | None = 0,
) -> Source:
    paths = [image.path for image in images]
    layout = _unarranged(paths) if deeper is None else arrange(paths, folders, deeper)
    if "images" in layout.classes and any(other.endswith("val/val_annotations.txt") for other in others):
        raise UserError(
            f"{path} holds Tiny-ImageNet, whose validation images have their classes in val_annotations.txt; unpack it "
            "and name the folder in which train and val lie"
        )
    lists = sorted(readable(other) for other in others if LIST.fullmatch(other.rpartition("/")[2]))
    warnings = [*layout.warnings]
    if lists and not set(layout.splits) - {"train"}:
        warnings.append(
            f"lists of splits lie next to the images ({some(lists, 3)}); to use them, name one instead of the folder"
        )
    source = Source(
        name=readable(path.name or str(path.resolve().name)),
        classes=layout.classes,
        labels=layout.labels,
        names=[readable(images[i].path) for i in layout.kept],
        splits=layout.splits,
        fingerprints=[images[i].fingerprint for i in layout.kept],
        reader=reader(layout.kept),
        ignored=tuple(sorted(map(readable, others))),
        warnings=tuple(warnings),
        root=root,
    )
    return with_links(source)


def holds_image(path: str) -> bool:
    """Return whether a file's ending is that of an image, or of an array that may be one."""
    return is_image(path) or path.lower().endswith(ARRAYS)


def _is_ours(entries: Sequence[os.DirEntry[str]]) -> bool:
    names = {entry.name for entry in entries}
    return any(marks <= names for marks in OURS)


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reading it will say so
        return False


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from (entry for entry in entries if not is_system_file(entry.name))
    except OSError as error:
        raise UserError(f"cannot read the folder {path}: {error.strerror}") from error
