# SPDX-License-Identifier: Apache-2.0
"""Make a source of the images that a list or table names; the readers of lists and of annotated images end here."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError, counted, shortened, some
from ...text import on_disk, readable
from .files import MISSING, FileReader, file_fingerprint, with_links
from .labels import alike, classify, rows_of, without_label
from .places import Places, is_inside
from .source import Source


class Listed(NamedTuple):
    """One image of a list."""

    path: str
    label: str | None  # name of its class; empty for none, None for unlabeled
    split: str
    group: str = ""  # images of one are not divided between splits that are drawn; empty for none
    where: str = ""  # place in the list, such as "line 3", for errors


def from_list(
    what: str,
    root: Path,
    images: Sequence[Listed],
    warnings: Sequence[str] = (),
    name: str | None = None,
    outside: bool = False,
) -> Source:
    """Make a source of listed images.

    Args:
        root: folder that the paths are relative to.
        name: of the data; by default that of the list, without its folder.

    Raises: UserError for an invalid path, and for an image that is listed with two labels or does not exist.
    """
    places = Places(root, what)
    images, fingerprints = _located(places, [_checked(what, image) for image in images], outside)
    missing = [
        shortened(image.path) + (f" ({image.where})" if image.where else "")
        for image, mark in zip(images, fingerprints, strict=True)
        if mark == MISSING
    ]
    if missing:
        raise UserError(
            f"{what} lists {counted(len(missing), 'file')} that {root} does not hold: {some(missing)}; its paths are "
            "relative to that folder"
        )
    unique = _distinct(what, root, images)
    warnings = [*warnings, *places.warnings()]
    if copies := len(images) - len(unique):
        warnings.append(f"left out {counted(copies, 'row')} of the list that repeat another one")
        images, fingerprints = [images[i] for i in unique], [fingerprints[i] for i in unique]
    classes, labels = classify([image.label for image in images])
    named, groups = classify([image.group or None for image in images])
    if named:
        warning = f"{counted(len(named), 'group')} (column group), which no split that is drawn divides"
        warnings += [warning, *alike(named, "groups")]
    source = Source(
        name=readable(Path(what).name if name is None else name),
        classes=classes,
        labels=labels,
        names=[readable(image.path) for image in images],
        splits=rows_of([image.split for image in images]),
        fingerprints=fingerprints,
        reader=FileReader(root, [image.path for image in images]),
        warnings=tuple(warnings),
        root=str(root.resolve()),
        groups=groups if named else None,
        unlabeled=without_label([image.label for image in images]),
    )
    return with_links(source)


def _checked(what: str, image: Listed) -> Listed:
    place = f"{what}, {image.where}" if image.where else what
    if not image.path:
        raise UserError(f"{place}: the path is empty")
    if "\0" in image.path:
        raise UserError(f"{place}: the path holds a NUL, which no file's name does")
    return image._replace(path=on_disk(image.path))


def _located(places: Places, images: Sequence[Listed], outside: bool) -> tuple[list[Listed], list[str]]:
    """Return images with the paths where they are, and their fingerprints."""
    located, fingerprints = [], []
    for image in images:
        mark = file_fingerprint((places.root / image.path).stat) if outside or is_inside(image.path) else MISSING
        if mark == MISSING and (path := places.find(image.path)):
            image, mark = image._replace(path=path), file_fingerprint((places.root / path).stat)
        located.append(image)
        fingerprints.append(mark)
    return located, fingerprints


def _distinct(what: str, root: Path, images: Sequence[Listed]) -> list[int]:
    """Return the positions of the images, without rows that repeat an earlier one."""
    if not images:
        raise UserError(f"{what} lists no images")
    first: dict[str, Listed] = {}
    unique = []
    whole = cache(os.path.realpath)  # each folder is looked up once; an absolute path may lead into the root
    base = whole(root)
    for i, image in enumerate(images):
        path = os.path.normpath(image.path)  # ./a.png is a.png
        folder, _, name = path.rpartition("/")
        file = f"{whole(folder or '/')}/{name}" if path.startswith("/") else os.path.normpath(f"{base}/{path}")
        before = first.setdefault(file, image)
        if before is image:
            unique.append(i)
        elif not image.where or before[1:4] != image[1:4]:
            times = f"in {before.where} and {image.where}" if image.where else "twice"
            raise UserError(f"{what} lists {shortened(image.path)} {times}; an image has one label and is in one split")
    return unique
