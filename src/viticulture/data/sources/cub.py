# SPDX-License-Identifier: Apache-2.0
"""Caltech-UCSD Birds-200-2011 as it is unpacked: three lists by number, and the images.

    images.txt                ID PATH          relative to images/
    image_class_labels.txt    ID CLASS         classes are numbered from 1
    train_test_split.txt      ID IS_TRAIN      1 or 0
    classes.txt               CLASS NAME       optional: without it classes are called by their numbers

Source: Wah et al., "The Caltech-UCSD Birds-200-2011 Dataset", CNS-TR-2011-001.
"""

from pathlib import Path

from ...errors import UserError
from .listed import Listed, from_list
from .source import Source
from .written import lines_of

LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt")


def is_cub(folder: Path) -> bool:
    """Whether a folder holds the three lists."""
    return all((folder / name).is_file() for name in LISTS)


def open_cub(folder: Path) -> Source:
    """Open the folder. Raises: UserError where the lists do not name the same images."""
    paths, labels, trains = (by_number(folder / name) for name in LISTS)
    for name, column in zip(LISTS[1:], (labels, trains), strict=True):
        if other := sorted(paths.keys() ^ column.keys(), key=len):
            raise UserError(f"{folder / name} and {LISTS[0]} do not list the same images: {other[0]} is in one alone")
    names = by_number(folder / "classes.txt") if (folder / "classes.txt").is_file() else {}
    for number, word in trains.items():
        if word not in ("0", "1"):
            raise UserError(f"{folder / LISTS[2]} must say 1 (train) or 0 (test) of image {number}, got {word!r}")
    images = [
        Listed(f"images/{path}", names.get(labels[i], labels[i]), "train" if trains[i] == "1" else "test")
        for i, path in paths.items()
    ]
    return from_list(folder.name or "CUB-200-2011", folder, images)


def by_number(path: Path) -> dict[str, str]:
    """ID -> what stands behind it on its line."""
    column: dict[str, str] = {}
    for number, line in lines_of(path):
        words = line.split(maxsplit=1)
        if len(words) != 2:
            raise UserError(f"{path}, line {number}: expected a number and a value, got {line!r}")
        if words[0] in column:
            raise UserError(f"{path}, line {number}: {words[0]} stands there twice")
        column[words[0]] = words[1]
    return column
