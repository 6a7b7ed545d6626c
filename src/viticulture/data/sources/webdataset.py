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
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ...cache import cache_folder, digest, publish, refusals
from ...disk import is_system_file, matching
from ...errors import UserError, counted, shortened, some
from ...text import readable
from .archives import Archive, Span, TarReader, tar_spans
from .files import file_fingerprint, is_image
from .labels import classify, rows_of, split_of, without_label
from .several import cell_word
from .source import Source

_FIRST = ("jpg", "jpeg", "png", "webp")
"""Which image of a sample is read before any other."""
_VERSION = "6"
_MOST_SHARDS = 100_000
"""That a pattern may stand for."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")

Arrange = Callable[[Sequence[str], Sequence[str]], Any]
"""Reads classes and splits off the paths of images and folders: `folders.arrange`."""


class _Tars(NamedTuple):
    """Tars that were opened.

    Args:
        name: what to call the data.
        root: the folder that holds them.
        paths: of the tars.
        shown: the same relative to the root.
        kinds: the split of each.
        marks: their fingerprints.
        indexes: what `_index` says of each.
    """

    name: str
    root: Path
    paths: list[Path]
    shown: list[str]
    kinds: list[str]
    marks: list[str]
    indexes: list[Any]


def open_shards(data: str | Path, arrange: Arrange) -> Source:
    """Open shards: a file, a folder, or a pattern of file names.

    Args:
        data: names them.
        arrange: returns classes and splits of a folder's images by their paths.

    Raises: UserError if there are none, one is damaged or holds a name twice, or only some of them name their split.
    """
    paths = _paths(data)
    if not paths:
        raise UserError(f"no shards match {str(data)!r}")
    places = [path.absolute() for path in paths]
    root = Path(data if Path(data).is_dir() else os.path.commonpath([place.parent for place in places])).absolute()
    shown = [place.relative_to(root).as_posix() for place in places]
    kinds = _kinds(shown)
    marks = [file_fingerprint(path.stat) for path in paths]
    states = [f"{path.resolve()}\0{mark}" for path, mark in zip(paths, marks, strict=True)]

    def make(folder: Path) -> None:
        (folder / "index.json").write_text(json.dumps([_index(path) for path in paths]), "utf-8")

    folder = cache_folder() / "indexes" / digest([_VERSION, *states])
    with refusals(folder):
        publish(folder, make, holds=["index.json"])
        index = json.loads((folder / "index.json").read_text("utf-8"))
    name = readable(root.name if len(paths) > 1 else paths[0].name)
    tars = _Tars(name, root, paths, shown, kinds, marks, index)
    return _of_folders(tars, arrange) or _of_samples(tars)


def _of_samples(tars: _Tars) -> Source:
    """The samples of shards."""
    samples = [(number, *sample) for number, (samples_of, *_) in enumerate(tars.indexes) for sample in samples_of]
    unread = [
        readable(f"{tars.shown[number]}/{image}") for number, each in enumerate(tars.indexes) for image in each[1]
    ]
    passed = f"{counted(len(unread), 'image')} ({some(unread, 3)})"
    warning = f"not read: {passed}; of each sample one is, called NAME.jpg without a dot in NAME"
    if unread and not samples:
        raise UserError(f"no images in {tars.name}; {warning}")
    words = [sample[4] for sample in samples]
    classes, labels = classify(words)
    return Source(
        name=tars.name,
        classes=classes,
        labels=labels,
        names=[readable(f"{tars.shown[number]}/{name}") for number, name, *_ in samples],
        splits=rows_of([tars.kinds[sample[0]] for sample in samples]),
        fingerprints=[tars.marks[sample[0]] for sample in samples],
        reader=TarReader(
            tars.paths, [(number, Span(name, offset, size, size)) for number, name, offset, size, _ in samples]
        ),
        warnings=(warning,) if unread else (),
        root=str(tars.root.resolve()),
        unlabeled=without_label(words),
    )


def _of_folders(tars: _Tars, arrange: Arrange) -> Source | None:
    """Images whose folders within tars are their classes; None where these are shards of samples, or have no classes.

    Raises: UserError where a tar's name says another split than a folder in it.
    """
    if any(images is None for _, _, images, _ in tars.indexes):
        return None
    images = [
        (number, PurePosixPath(name).as_posix(), offset, size)  # without ./ at its begin
        for number, (_, _, images_of, _) in enumerate(tars.indexes)
        for name, offset, size in images_of
    ]
    folders = {PurePosixPath(name).as_posix() for *_, folders_of in tars.indexes for name in folders_of} - {"."}
    layout = arrange([name for _, name, *_ in images], sorted(folders))
    if not layout.classes:
        return None
    kept = [images[row] for row in layout.kept]
    splits = layout.splits
    if set(tars.kinds) != {"train"}:
        of_tars = rows_of([tars.kinds[number] for number, *_ in kept])
        drawn, said = ({kind: rows.tolist() for kind, rows in each.items()} for each in (splits, of_tars))
        if set(drawn) != {"train"} and drawn != said:
            raise UserError(f"{tars.name}: names of tars say other splits than folders in them; unpack them")
        splits = of_tars
    return Source(
        name=tars.name,
        classes=layout.classes,
        labels=layout.labels,
        names=[readable(f"{tars.shown[number]}/{name}") for number, name, *_ in kept],
        splits=splits,
        fingerprints=[tars.marks[number] for number, *_ in kept],
        reader=TarReader(tars.paths, [(number, Span(name, offset, size, size)) for number, name, offset, size in kept]),
        warnings=(f"classes are the folders within {counted(len(tars.paths), 'tar')}", *layout.warnings),
        root=str(tars.root.resolve()),
    )


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
            if _stands_for(data) > _MOST_SHARDS:
                raise UserError(
                    f"the pattern {data!r} stands for more than {_MOST_SHARDS:,} shards; correct its ranges"
                )
            patterns = expand_urls(data)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"the pattern {data!r} is none: {error}") from error
    paths = [path for pattern in patterns for path in _matched(Path(pattern).expanduser())]
    missing = [pattern for pattern in patterns if len(patterns) > 1 and not Path(pattern).expanduser().exists()]
    if missing:
        raise UserError(f"{len(missing)} of {len(patterns)} shards do not exist, such as {missing[0]}")
    return paths


def _matched(pattern: Path) -> list[Path]:
    """Files that a pattern means, sorted.

    Brackets in the name of a folder that is there are no pattern; a `*` means neither hidden files nor what systems
    leave behind.
    """

    def meant(path: Path) -> bool:
        return not any(map(is_system_file, {part for part in path.parts if part[0] != "."} - {*pattern.parts}))

    folder = glob.escape(str(pattern.parent)) if pattern.parent.is_dir() else str(pattern.parent)
    return sorted(filter(meant, map(Path, glob.glob(f"{folder}/{pattern.name}"))))  # noqa: PTH207


def _stands_for(pattern: str) -> int:
    """How many names a pattern with braces stands for, at most: each multiplies them."""
    count = 1
    while braces := re.search(r"\{([^{}]*)\}", pattern):
        numbers = _RANGE.fullmatch(braces[1])
        if numbers:
            count *= abs(int(numbers[2]) - int(numbers[1])) // max(int(numbers[3] or 1), 1) + 1
        else:
            count *= 52 if ".." in braces[1] else braces[1].count(",") + 1  # of letters; of words
        pattern = f"{pattern[: braces.start()]} {pattern[braces.end() :]}"
    return count


def _kinds(names: Sequence[str]) -> list[str]:
    """The split that each shard's own name mentions, else that of its folders."""
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
    offset and size of every image, or None where any has a label in a file of its own; names of folders.

    The grouping is WebDataset's: up to the first dot. Raises: UserError for a name that stands twice.
    """
    samples: dict[str, dict[str, Span]] = {}
    images_alone, folders = list[Any](), list[str]()
    for span in (span for span in tar_spans(path) if not is_system_file(span.name)):
        folder, _, file = span.name.rpartition("/")
        key, dot, ending = file.partition(".")
        if not file:
            folders.append(span.name)
        if is_image(file):
            images_alone.append((span.name, span.offset, span.size))
        if key and dot:
            parts = samples.setdefault(f"{folder}/{key}" if folder else key, {})
            if ending.lower() in parts:
                raise UserError(f"{path} holds {readable(span.name)} twice; a sample has one file of each ending")
            parts[ending.lower()] = span
    archive = Archive(path)
    listed, unread, alone = [], list[str](), True
    for parts in samples.values():
        images = {ending: span for ending, span in parts.items() if is_image(f".{ending}")}
        image = next((images[ending] for ending in (*_FIRST, *images) if ending in images and "." not in ending), None)
        unread += [span.name for span in images.values() if span is not image]
        alone = alone and not (images and {"cls", "json"} & parts.keys())
        if image is not None:
            listed.append((image.name, image.offset, image.size, _label(path, archive, parts)))
    return listed, unread, images_alone if alone else None, folders


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
