# SPDX-License-Identifier: Apache-2.0
"""What the published lists of data sets have in common: they say of every image where it is, what it shows and in which
split it stands (cub.py, path_lists.py, inaturalist.py)."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError, counted, shortened, some
from ...text import readable
from .files import MISSING, FileReader, file_fingerprint
from .labels import classify, rows_of
from .source import Source


class Listed(NamedTuple):
    """One image of a list.

    Args:
        path: relative to the list's folder, with slashes.
        label: name of its class; None without one.
        split: train, val or test.
    """

    path: str
    label: str | None
    split: str


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Number, from 1, and words of each line that is not empty. Raises: UserError for what is no text."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no list: it is not UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def from_list(name: str, root: Path, images: Sequence[Listed], notes: Sequence[str] = ()) -> Source:
    """A source of listed images.

    Args:
        name: what to call it.
        root: folder that the paths are relative to.
        images: in the lists' order.
        notes: what a person should know.

    Raises: UserError for an image that is listed twice or does not exist.
    """
    seen: set[str] = set()
    for image in images:
        if image.path in seen:
            raise UserError(f"{name} lists {shortened(image.path)} twice; an image has one label and one split")
        seen.add(image.path)
    fingerprints = [file_fingerprint((root / image.path).stat) for image in images]
    missing = [shortened(image.path) for image, mark in zip(images, fingerprints, strict=True) if mark == MISSING]
    if missing:
        raise UserError(
            f"{name} lists {counted(len(missing), 'file')} that {root} does not hold: {some(missing, 3)}; its paths "
            "are relative to that folder"
        )
    classes, labels = classify([image.label for image in images])
    return Source(
        name=readable(name),
        classes=classes,
        labels=labels,
        names=[readable(image.path) for image in images],
        splits=rows_of([image.split for image in images]),
        fingerprints=fingerprints,
        reader=FileReader(root, [image.path for image in images]),
        notes=tuple(notes),
        root=str(root.resolve()),
    )
