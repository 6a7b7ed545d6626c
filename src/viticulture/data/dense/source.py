# SPDX-License-Identifier: Apache-2.0
"""The contract of a source of images with objects, or with a class for every pixel."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...text import readable
from ..annotations import Objects
from ..sources.listed import Listed, from_list
from ..sources.source import Source


@dataclass(frozen=True, eq=False)
class DenseSource:
    """Images, and what is to be found in them.

    Args:
        images: their names and splits, and how to read them; none of them has a label.
        classes: names in the order of the labels.
        objects: one entry an image; None where pixels have classes.
        masks: one file an image, whose pixels are classes; None where there are objects.
        values: for a mask's pixel value 0 to 255 the class, 255 for none, 254 for a value that means nothing; None
            where there are objects.
        notes: what a person should know.
        lists: files whose names say of which split their images are.
    """

    images: Source
    classes: tuple[str, ...]
    objects: list[Objects] | None = None
    masks: list[Path] | None = None
    values: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


def images_of(root: Path, paths: Sequence[str], splits: Sequence[str], what: Path) -> Source:
    """Image files below a folder, as a source without labels.

    Args:
        root: the folder.
        paths: relative to it.
        splits: train, val or test, of each.
        what: who lists them, for an error.

    Raises: UserError as `from_list`.
    """
    images = [Listed(path, None, split) for path, split in zip(paths, splits, strict=True)]
    return from_list(str(what), root, images, name=root.resolve().name)


def check_names(names: Sequence[str], what: Path) -> tuple[str, ...]:
    """Names of classes that can be printed. Raises: UserError where there are none, or two of one name."""
    classes = tuple(readable(str(name)) for name in names)
    if not classes:
        raise UserError(f"{what} names no classes")
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise UserError(f"{what} names the class {twice!r} twice")
    return classes
