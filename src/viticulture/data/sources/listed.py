# SPDX-License-Identifier: Apache-2.0
"""Images that a list or a table names: where each is, what it shows and in which split it stands; the readers of lists
(table.py, json_lists.py, path_lists.py, cub.py, inaturalist.py and those of data/dense) end here."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError, counted, shortened, some
from ...text import readable
from .files import MISSING, FileReader, file_fingerprint
from .labels import alike, classify, rows_of, without_label
from .links import with_links
from .source import Source


class Listed(NamedTuple):
    """One image of a list.

    Args:
        path: relative to the list's folder, with slashes.
        label: name of its class; empty where it shows none, None where nobody said what it shows.
        split: train, val or test.
        group: images of one are not divided between splits that are drawn; empty for an image by itself.
        where: the list names it, such as "line 3"; empty where that is not told.
    """

    path: str
    label: str | None
    split: str
    group: str = ""
    where: str = ""


def text_of(path: Path) -> str:
    """The text of a list. Raises: UserError for what is none."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Number, from 1, and words of each line that is not empty. Raises: UserError for what is no text."""
    return [(number, line.strip()) for number, line in enumerate(text_of(path).splitlines(), 1) if line.strip()]


def from_list(
    what: str, root: Path, images: Sequence[Listed], notes: Sequence[str] = (), name: str | None = None
) -> Source:
    """A source of listed images.

    Args:
        what: lists them, for errors: a path, or a word.
        root: folder that the paths are relative to.
        images: in the list's order.
        notes: what a person should know.
        name: what to call the data; as the list is called, without its folder, by default.

    Raises: UserError for a path that is none, and for an image that is listed twice or does not exist.
    """
    _check(what, root, images)
    fingerprints = [file_fingerprint((root / image.path).stat) for image in images]
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
    classes, labels = classify([image.label for image in images])
    named, groups = classify([image.group or None for image in images])
    if named:
        note = f"{counted(len(named), 'group')} (column group), which no split that is drawn divides"
        notes = (*notes, note, *alike(named, "groups"))
    source = Source(
        name=readable(Path(what).name if name is None else name),
        classes=classes,
        labels=labels,
        names=[readable(image.path) for image in images],
        splits=rows_of([image.split for image in images]),
        fingerprints=fingerprints,
        reader=FileReader(root, [image.path for image in images]),
        notes=tuple(notes),
        root=str(root.resolve()),
        groups=groups if named else None,
        unlabeled=without_label([image.label for image in images]),
    )
    return with_links(source)


def _check(what: str, root: Path, images: Sequence[Listed]) -> None:
    if not images:
        raise UserError(f"{what} lists no images")
    first: dict[str, Listed] = {}
    whole = cache(os.path.realpath)  # each folder is looked up once; an absolute path may lead into the root
    base = whole(root)
    for image in images:
        place = f"{what}, {image.where}" if image.where else what
        if not image.path:
            raise UserError(f"{place}: the path is empty")
        if "\0" in image.path:
            raise UserError(f"{place}: the path holds a NUL, which no file's name does")
        path = os.path.normpath(image.path)  # ./a.png is a.png
        folder, _, name = path.rpartition("/")
        file = f"{whole(folder or '/')}/{name}" if path.startswith("/") else os.path.normpath(f"{base}/{path}")
        before = first.setdefault(file, image)
        if before is not image:
            times = f"in {before.where} and {image.where}" if image.where else "twice"
            raise UserError(
                f"{what} lists {shortened(image.path)} {times}; an image has one label and stands in one split"
            )
