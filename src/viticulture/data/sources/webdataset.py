# SPDX-License-Identifier: Apache-2.0
"""WebDataset shards on this machine: tars whose members NAME.jpg and NAME.cls belong together.

    a .tar file        a folder of them        train-*.tar        train-{0000..0012}.tar (extra: webdataset)

The image is NAME.jpg, .jpeg, .png or .webp; the label NAME.cls (a number) or NAME.json ({"label": number or name}).
A shard belongs to the split that its name mentions; without such names all are for training. The tars are indexed once,
the index is cached, and images are then read in place in any order.
"""

import glob
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...cache import cache_folder, digest, publish
from ...errors import UserError
from ...text import readable
from .archives import Archive, Span, TarReader, tar_spans
from .files import file_fingerprint
from .labels import classify, rows_of, split_of
from .source import Source

_IMAGES = ("jpg", "jpeg", "png", "webp")
_VERSION = "1"


def open_shards(data: str | Path) -> Source:
    """Open shards: a file, a folder, or a pattern of file names.

    Raises: UserError if there are none, one is damaged, or only some of them name their split.
    """
    paths = _paths(data)
    if not paths:
        raise UserError(f"no shards match {str(data)!r}")
    root = Path(data) if Path(data).is_dir() else paths[0].parent
    shown = [path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path) for path in paths]
    kinds = _kinds(shown)
    marks = [file_fingerprint(path.stat) for path in paths]
    places = [f"{path.resolve()}\0{mark}" for path, mark in zip(paths, marks, strict=True)]

    def make(folder: Path) -> None:
        (folder / "index.json").write_text(json.dumps([_index(path) for path in paths]), "utf-8")

    folder = publish(cache_folder() / "indexes" / digest([_VERSION, *places]), make)
    index = json.loads((folder / "index.json").read_text("utf-8"))
    samples = [(number, *sample) for number, shard in enumerate(index) for sample in shard]
    classes, labels = classify([sample[4] for sample in samples])
    return Source(
        name=readable(root.name if len(paths) > 1 else paths[0].name),
        classes=classes,
        labels=labels,
        names=[readable(f"{shown[number]}/{name}") for number, name, *_ in samples],
        splits=rows_of([kinds[sample[0]] for sample in samples]),
        fingerprints=[marks[sample[0]] for sample in samples],
        reader=TarReader(
            paths, [(number, Span(name, offset, size, size)) for number, name, offset, size, _ in samples]
        ),
        root=str(root.resolve()),
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
    found = [path for pattern in patterns for path in sorted(glob.glob(str(Path(pattern).expanduser())))]  # noqa: PTH207
    missing = [pattern for pattern in patterns if len(patterns) > 1 and not Path(pattern).expanduser().exists()]
    if missing:
        raise UserError(f"{len(missing)} of {len(patterns)} shards do not exist, such as {missing[0]}")
    return [Path(path) for path in found]


def _kinds(names: Sequence[str]) -> list[str]:
    """The split that each shard's name mentions."""
    words = [[split_of(word) for word in re.split(r"[^A-Za-z]+", name)] for name in names]
    kinds = [next((word for word in found if word), None) for found in words]
    if not any(kinds):
        return ["train"] * len(names)
    if unclear := [name for name, kind in zip(names, kinds, strict=True) if kind is None]:
        raise UserError(f"some shards name their split (train, val, test) and others do not, such as {unclear[0]}")
    return [kind for kind in kinds if kind is not None]


def _index(path: Path) -> list[tuple[str, int, int, str | None]]:
    """Name, offset, size and label of every image of a shard; the grouping is WebDataset's: up to the first dot."""
    samples: dict[str, dict[str, Span]] = {}
    for span in tar_spans(path):
        folder, _, file = span.name.rpartition("/")
        key, dot, ending = file.partition(".")
        if key and dot:
            samples.setdefault(f"{folder}/{key}" if folder else key, {})[ending.lower()] = span
    archive = Archive(path)
    found = []
    for parts in samples.values():
        image = next((parts[ending] for ending in _IMAGES if ending in parts), None)
        if image is not None:
            found.append((image.name, image.offset, image.size, _label(path, archive, parts)))
    return found


def _label(path: Path, archive: Archive, parts: dict[str, Span]) -> str | None:
    try:
        if "cls" in parts:
            return str(int(archive.read(parts["cls"].offset, parts["cls"].size)))
        if "json" in parts:
            value: Any = json.loads(archive.read(parts["json"].offset, parts["json"].size)).get("label")
            return None if value is None else str(value)
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: the label of {next(iter(parts.values())).name} cannot be read: {error}") from error
    return None
