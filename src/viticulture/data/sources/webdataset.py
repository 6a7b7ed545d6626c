# SPDX-License-Identifier: Apache-2.0
"""WebDataset shards on this machine: tars whose members NAME.jpg and NAME.cls belong together.

    a .tar file        a folder of them        train-*.tar        train-{0000..0012}.tar (extra: webdataset)

The image is NAME.jpg, or of another ending of images; the label NAME.cls (a number) or NAME.json ({"label": number or
name, or a list of these}); a number below 0 is none. A shard belongs to the split that its name mentions, or else a
folder between it and the one that holds all shards; without such names all are for training. The tars are indexed once,
the index is cached, and images are then read in place in any order.
"""

import glob
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...cache import cache_folder, digest, publish
from ...errors import UserError, counted, shortened, some
from ...text import readable
from .archives import Archive, Span, TarReader, tar_spans
from .files import file_fingerprint, is_image
from .labels import classify, rows_of, split_of, without_label
from .source import Source
from .table import cell_word

_FIRST = ("jpg", "jpeg", "png", "webp")
"""Which image of a sample is read before any other."""
_VERSION = "5"


def open_shards(data: str | Path) -> Source:
    """Open shards: a file, a folder, or a pattern of file names.

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

    folder = publish(cache_folder() / "indexes" / digest([_VERSION, *states]), make)
    index = json.loads((folder / "index.json").read_text("utf-8"))
    samples = [(number, *sample) for number, (samples_of, _) in enumerate(index) for sample in samples_of]
    name = readable(root.name if len(paths) > 1 else paths[0].name)
    unread = [readable(f"{shown[number]}/{image}") for number, (_, others) in enumerate(index) for image in others]
    passed = f"{counted(len(unread), 'image')} ({some(unread, 3)})"
    note = f"not read: {passed}; of each sample one is, called NAME.jpg without a dot in NAME"
    if unread and not samples:
        raise UserError(f"no images in {name}; {note}")
    words = [sample[4] for sample in samples]
    classes, labels = classify(words)
    return Source(
        name=name,
        classes=classes,
        labels=labels,
        names=[readable(f"{shown[number]}/{name}") for number, name, *_ in samples],
        splits=rows_of([kinds[sample[0]] for sample in samples]),
        fingerprints=[marks[sample[0]] for sample in samples],
        reader=TarReader(
            paths, [(number, Span(name, offset, size, size)) for number, name, offset, size, _ in samples]
        ),
        notes=(note,) if unread else (),
        root=str(root.resolve()),
        unlabeled=without_label(words),
    )


def _paths(data: str | Path) -> list[Path]:
    if isinstance(data, Path):
        return sorted(data.rglob("*.tar")) if data.is_dir() else [data]
    patterns = [data]
    if "{" in data:
        try:
            from webdataset.shardlists import expand_urls
        except ImportError:
            raise UserError(f"the pattern {data!r} needs WebDataset: pip install 'viticulture[webdataset]'") from None
        patterns = expand_urls(data)
    paths = [path for pattern in patterns for path in _matching(Path(pattern).expanduser())]
    missing = [pattern for pattern in patterns if len(patterns) > 1 and not Path(pattern).expanduser().exists()]
    if missing:
        raise UserError(f"{len(missing)} of {len(patterns)} shards do not exist, such as {missing[0]}")
    return paths


def _matching(pattern: Path) -> list[Path]:
    """Files that a pattern means, sorted; brackets in the name of a folder that is there are no pattern."""
    folder = glob.escape(str(pattern.parent)) if pattern.parent.is_dir() else str(pattern.parent)
    return sorted(map(Path, glob.glob(f"{folder}/{pattern.name}")))  # noqa: PTH207


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


def _index(path: Path) -> tuple[list[tuple[str, int, int, str | None]], list[str]]:
    """Name, offset, size and label of every sample's image, and the names of images that are not read.

    The grouping is WebDataset's: up to the first dot. Raises: UserError for a name that stands twice.
    """
    samples: dict[str, dict[str, Span]] = {}
    for span in tar_spans(path):
        folder, _, file = span.name.rpartition("/")
        key, dot, ending = file.partition(".")
        if key and dot:
            parts = samples.setdefault(f"{folder}/{key}" if folder else key, {})
            if ending.lower() in parts:
                raise UserError(f"{path} holds {readable(span.name)} twice; a sample has one file of each ending")
            parts[ending.lower()] = span
    archive = Archive(path)
    listed, unread = [], []
    for parts in samples.values():
        images = {ending: span for ending, span in parts.items() if is_image(f".{ending}")}
        image = next((images[ending] for ending in (*_FIRST, *images) if ending in images and "." not in ending), None)
        unread += [span.name for span in images.values() if span is not image]
        if image is not None:
            listed.append((image.name, image.offset, image.size, _label(path, archive, parts)))
    return listed, unread


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
