# SPDX-License-Identifier: Apache-2.0
"""WebDataset shards on this machine: tars whose members NAME.jpg and NAME.cls belong together.

    a .tar file        a folder of them        train-*.tar        train-{0000..0012}.tar (extra: webdataset)

The image is NAME.jpg, or of another ending of images; the label NAME.cls (a number) or NAME.json ({"label": number or
name, or a list of these}); a number below 0 is none. A shard belongs to the split that its name mentions, or else a
folder between it and the one that holds all shards; without such names all are for training. The tars are indexed once,
the index is cached, and images are then read in place in any order.

Where no image has NAME.cls or NAME.json, a tar may as well be one of a folder of images (folders.py): folders within it
are then classes and splits.
"""

import glob
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ...cache import cache_folder, digest, publish, refusals
from ...disk import is_system_file, matching
from ...errors import UserError, counted, shortened, some
from ...text import readable
from .archives import Archive, Span, TarReader, tar_spans
from .files import file_fingerprint, is_image
from .labels import classify, rows_of, split_of, without_label
from .several import cell_word
from .source import Source

_FIRST = ("jpg", "jpeg", "png", "webp")  # endings of the image of a sample that is read before any other
_VERSION = "6"
_MAX_SHARDS = 100_000  # shards that a pattern may stand for
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")

Arrange = Callable[[Sequence[str], Sequence[str]], Any]
"""`folders.arrange`: reads classes and splits off the paths of images and folders."""


def open_shards(data: str | Path, arrange: Arrange) -> Source:
    """Open shards: a file, a folder, or a pattern of file names.

    Raises: UserError if there are none, one is damaged or holds a name twice, or only some of them name their split.
    """
    paths = _paths(data)
    if not paths:
        raise UserError(f"no shards match {str(data)!r}")
    places = [path.absolute() for path in paths]
    root = Path(data if Path(data).is_dir() else os.path.commonpath([place.parent for place in places])).absolute()
    shards = [place.relative_to(root).as_posix() for place in places]
    kinds = _kinds(shards)
    marks = [file_fingerprint(path.stat) for path in paths]

    def make(folder: Path) -> None:
        (folder / "index.json").write_text(json.dumps([_index(path) for path in paths]), "utf-8")

    states = [f"{path.resolve()}\0{mark}" for path, mark in zip(paths, marks, strict=True)]
    folder = cache_folder() / "indexes" / digest([_VERSION, *states])
    with refusals(folder):
        publish(folder, make, holds=["index.json"])
        indexes = json.loads((folder / "index.json").read_text("utf-8"))
    name = readable(root.name if len(paths) > 1 else paths[0].name)

    def source(rows: Sequence[tuple[int, str, int, int]], **fields: Any) -> Source:
        """Make a source of images: the number of the tar, and name, offset and size within it."""
        return Source(
            name=name,
            names=[readable(f"{shards[number]}/{PurePosixPath(image)}") for number, image, *_ in rows],
            splits=rows_of([kinds[number] for number, *_ in rows]),
            fingerprints=[marks[number] for number, *_ in rows],
            reader=TarReader(paths, [(number, Span(image, place, size, size)) for number, image, place, size in rows]),
            root=str(root.resolve()),
            **fields,
        )

    images = [(number, *image) for number, (_, _, each, _) in enumerate(indexes) for image in each or ()]
    if all(each is not None for _, _, each, _ in indexes):
        folders = {PurePosixPath(folder).as_posix() for *_, each in indexes for folder in each} - {"."}
        layout = arrange([PurePosixPath(image).as_posix() for _, image, *_ in images], sorted(folders))
        if layout.classes:
            warnings = (f"classes are the folders within {counted(len(paths), 'tar')}", *layout.warnings)
            members = [images[row] for row in layout.kept]
            by_tar = source(members, classes=layout.classes, labels=layout.labels, warnings=warnings)
            by_folder, by_name = (
                {kind: rows.tolist() for kind, rows in each.items()} for each in (layout.splits, by_tar.splits)
            )
            if {*kinds} != {"train"}:
                if {*by_folder} != {"train"} and by_folder != by_name:
                    raise UserError(f"{name}: names of tars say other splits than folders in them; unpack them")
                return by_tar
            return replace(by_tar, splits=layout.splits)
    samples = [(number, *sample) for number, (each, *_) in enumerate(indexes) for sample in each]
    unread = [readable(f"{shards[number]}/{image}") for number, (_, each, *_) in enumerate(indexes) for image in each]
    passed = f"{counted(len(unread), 'image')} ({some(unread, 3)})"
    warning = f"not read: {passed}; of each sample one is, called NAME.jpg without a dot in NAME"
    if unread and not samples:
        raise UserError(f"no images in {name}; {warning}")
    words = [sample[4] for sample in samples]
    classes, labels = classify(words)
    warnings = (warning,) if unread else ()
    unlabeled = without_label(words)
    rows = [sample[:4] for sample in samples]
    return source(rows, classes=classes, labels=labels, warnings=warnings, unlabeled=unlabeled)


def _paths(data: str | Path) -> list[Path]:
    if isinstance(data, Path):
        return matching(data, "**/*.tar") if data.is_dir() else [data]
    patterns = [data]
    if "{" in data:
        try:
            from webdataset.shardlists import expand_urls
        except ImportError:
            raise UserError(f"the pattern {data!r} needs WebDataset: pip install 'viticulture[webdataset]'") from None
        try:
            too_many = _stands_for(data) > _MAX_SHARDS
            patterns = [] if too_many else expand_urls(data)
        except ValueError as error:
            raise UserError(f"the pattern {data!r} is none: {error}") from error
        if too_many:
            raise UserError(f"the pattern {data!r} stands for more than {_MAX_SHARDS:,} shards; correct its ranges")
    missing = [pattern for pattern in patterns if len(patterns) > 1 and not Path(pattern).expanduser().exists()]
    if missing:
        raise UserError(f"{len(missing)} of {len(patterns)} shards do not exist, such as {missing[0]}")
    return [path for pattern in patterns for path in _matched(Path(pattern).expanduser())]


def _matched(pattern: Path) -> list[Path]:
    """Return the files that match a pattern, sorted. Brackets in the name of an existing folder are no pattern; a `*`
    matches neither hidden files nor those of systems."""

    def matches(path: Path) -> bool:
        return not any(map(is_system_file, {part for part in path.parts if part[0] != "."} - {*pattern.parts}))

    folder = glob.escape(str(pattern.parent)) if pattern.parent.is_dir() else str(pattern.parent)
    return sorted(filter(matches, map(Path, glob.glob(f"{folder}/{pattern.name}"))))  # noqa: PTH207


def _stands_for(pattern: str) -> int:
    """Return how many names a pattern with braces stands for, at most: each multiplies them."""
    count = 1
    while braces := re.search(r"\{([^{}]*)\}", pattern):
        if numbers := _RANGE.fullmatch(braces[1]):
            count *= abs(int(numbers[2]) - int(numbers[1])) // max(int(numbers[3] or 1), 1) + 1
        else:
            count *= 52 if ".." in braces[1] else braces[1].count(",") + 1  # of letters; of words
        pattern = f"{pattern[: braces.start()]} {pattern[braces.end() :]}"
    return count


def _kinds(names: Sequence[str]) -> list[str]:
    """Return the split that each shard's name mentions, else that of its folders."""
    parts = [name.rpartition("/") for name in names]
    words = [[split_of(word) for word in re.split(r"[^A-Za-z]+", f"{file}/{folder}")] for folder, _, file in parts]
    kinds = [next((word for word in each if word), None) for each in words]
    if not any(kinds):
        return ["train"] * len(names)
    if unclear := [name for name, kind in zip(names, kinds, strict=True) if kind is None]:
        raise UserError(f"some shards name their split (train, val, test) and others do not, such as {unclear[0]}")
    return [kind for kind in kinds if kind is not None]


def _index(path: Path) -> tuple[list[Any], list[str], list[Any] | None, list[str]]:
    """Index a tar: name, offset, size and label of every sample's image; names of images that are not read; name,
    offset and size of every image, or None where any has a label in a separate file; names of folders.

    Samples are grouped as WebDataset does: up to the first dot. Raises: UserError for a name that stands twice.
    """
    samples: dict[str, dict[str, Span]] = {}
    every, folders = list[Any](), list[str]()
    for span in (span for span in tar_spans(path) if not is_system_file(span.name)):
        folder, _, file = span.name.rpartition("/")
        key, dot, ending = file.partition(".")
        folders += [] if file else [span.name]
        if is_image(file):
            every.append((span.name, span.offset, span.size))
        if key and dot:
            parts = samples.setdefault(f"{folder}/{key}", {})
            if ending.lower() in parts:
                raise UserError(f"{path} holds {readable(span.name)} twice; a sample has one file of each ending")
            parts[ending.lower()] = span
    archive = Archive(path)
    listed, unread, unlabeled = [], list[str](), True
    for parts in samples.values():
        images = {ending: span for ending, span in parts.items() if is_image(f".{ending}")}
        image = next((images[ending] for ending in (*_FIRST, *images) if ending in images and "." not in ending), None)
        unread += [span.name for span in images.values() if span is not image]
        unlabeled = unlabeled and not (images and {"cls", "json"} & parts.keys())
        if image is not None:
            listed.append((image.name, image.offset, image.size, _label(path, archive, parts)))
    return listed, unread, every if unlabeled else None, folders


def _label(path: Path, archive: Archive, parts: dict[str, Span]) -> str | None:
    try:
        if "cls" in parts:
            text = archive.read(parts["cls"].offset, parts["cls"].size).decode("utf-8-sig", "replace").strip()
            if not re.fullmatch(r"[+-]?\d+(\.0*)?", text):
                raise ValueError(
                    f'NAME.cls holds a number, got {shortened(text)!r}; NAME.json may hold {{"label": name}}'
                )
            return str(number) if (number := int(text.partition(".")[0])) >= 0 else None
        if "json" in parts:
            label = json.loads(archive.read(parts["json"].offset, parts["json"].size)).get("label")
            return None if isinstance(label, int | float) and label < 0 else cell_word(label)
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: the label of {next(iter(parts.values())).name} cannot be read: {error}") from error
    return None
