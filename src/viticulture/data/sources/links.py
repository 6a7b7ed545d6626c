# SPDX-License-Identifier: Apache-2.0
"""Files that have several names, by links to them or to their folders: each name counts, and a leak is reported."""

import os
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from ...errors import UserError
from .files import FileReader
from .source import HERE, Source

_LEAKS = (("test", "train"), ("val", "train"), ("test", "val"))
"""A split, and one whose images it must not hold."""

Twins = list[tuple[int, int]]
"""Rows of images that are one file."""


def with_links(source: Source) -> Source:
    """Return a source with notes about images that are one file.

    Raises: UserError where all images of a held-out split are training images, or a folder is that of two classes.
    """
    reader = source.reader
    several = _several(source, reader) if isinstance(reader, FileReader) else []
    if not several:
        return source
    assert isinstance(reader, FileReader)
    kinds = {int(row): kind for kind, part in source.splits.items() for row in part}
    labels = source.labels.tolist() if source.labels.ndim == 1 else [label.tobytes() for label in source.labels]
    _check_folders(source, reader, several, labels)
    notes = []
    for held, other in _LEAKS:
        pairs: Twins = []
        for rows in several:
            if twin := next((row + 1 for row in rows if kinds.get(row) == other), 0):
                pairs += [(row, twin - 1) for row in rows if kinds.get(row) == held]
        if pairs and other == "train" and len(pairs) == len(source.splits[held]):
            raise UserError(
                f"every {held} image of {source.name} is a training image, by links to the same files or folders "
                f"({_names(source, pairs)}); remove the links of one split"
            )
        what = f"of {len(source.splits.get(held, ())):,} {held} images are {other} images"
        notes += _note(source, pairs, what)
    unlike: Twins = []
    alike: Twins = []
    for rows in several:
        first: dict[tuple[str | None, object], int] = {}
        for row in rows:
            before = first.setdefault((kinds.get(row), labels[row]), row)
            alike += [(before, row)] if before != row else []
        unlike += [(rows[0], row) for row in rows if labels[row] != labels[rows[0]]]
    notes += _note(source, unlike, "images are images of another class")
    notes += _note(source, alike, "images are others of their own class and split")
    return replace(source, notes=(*source.notes, *notes))


def _note(source: Source, pairs: Twins, what: str) -> list[str]:
    return [f"{len(pairs):,} {what}, by links to the same files: {_names(source, pairs)}"] if pairs else []


def _names(source: Source, pairs: Twins) -> str:
    return " and ".join(source.names[row] for row in pairs[0])


def _several(source: Source, reader: FileReader) -> list[list[int]]:
    """Rows of each file that has several names."""
    marks = source.fingerprints
    if len({*marks}) == len(marks):
        return []
    often, rows = Counter(marks), dict[str, list[int]]()
    for row, mark in enumerate(marks):
        if often[mark] > 1 and HERE in mark:
            rows.setdefault(mark, []).append(row)
    several = list(rows.values())
    paths = [Path(reader.root, reader.paths[row]) for row in several[0][:2]] if several else []
    # Files of two disk images may agree in all that a fingerprint holds.
    return several if several and paths[0].samefile(paths[1]) else []


def _check_folders(source: Source, reader: FileReader, several: list[list[int]], labels: list[object]) -> None:
    """Raises: UserError where a file has two classes because its folder has two names."""
    whole = cache(lambda folder: os.path.realpath(os.path.join(reader.root, folder)))  # noqa: PTH118
    for rows in several:
        first: dict[tuple[str, str], int] = {}
        for row in rows:
            folder, _, name = reader.paths[row].rpartition("/")
            before = first.setdefault((whole(folder), name), row)
            if labels[before] != labels[row]:
                raise UserError(
                    f"a folder of {source.name} is that of two classes, by links to it: "
                    f"{_names(source, [(before, row)])} are the same file; remove one of the folder's names"
                )
