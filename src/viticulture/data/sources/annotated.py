# SPDX-License-Identifier: Apache-2.0
"""Sources of images with objects or with a class for every pixel: what their formats share."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ...errors import UserError, counted, some
from ...text import readable
from ..targets.objects import MaskFiles, Objects
from .labels import split_of
from .listed import Listed, from_list
from .source import Source


def annotated(
    what: Path,
    root: Path,
    paths: Sequence[str],
    splits: Sequence[str],
    classes: tuple[str, ...],
    targets: list[Objects] | MaskFiles,
    warnings: Sequence[str] = (),
) -> Source:
    """Make a source of image files with objects or masks.

    Args:
        root: folder that the paths are relative to; those of a list in a table may lead out of it.
        targets: in the order of the images; objects that repeat another one of their image are left out.

    Raises: UserError as `from_list`, and where all boxes of a split lie in the images' first pixel.
    """
    images = [Listed(path, None, split) for path, split in zip(paths, splits, strict=True)]
    name = what.name if what.suffix.lower() in (".csv", ".tsv") else root.resolve().name
    source = from_list(str(what), root, images, name=name, outside=name == what.name and what.is_file())
    warnings = [*warnings]
    if isinstance(targets, list):
        _check_in_pixels(source, targets)
        distinct = [objects.without_duplicates() for objects in targets]
        if copies := sum(map(len, targets)) - sum(map(len, distinct)):
            rows = zip(source.names, targets, distinct, strict=True)
            fewer = some([image for image, before, after in rows if after is not before], 3)
            warnings.append(f"left out {counted(copies, 'object')} that repeat another one of their image: {fewer}")
        targets = distinct
    return replace(source, classes=classes, targets=targets, warnings=(*warnings, *source.warnings))


def _check_in_pixels(source: Source, targets: Sequence[Objects]) -> None:
    for split, rows in source.splits.items():
        boxes = torch.cat([targets[row].boxes for row in rows])
        if len(boxes) and float(boxes.max()) <= 1:
            raise UserError(
                f"boxes of {source.name} must be pixels, and all {len(boxes)} of the {split} images lie within 0 to 1, "
                "as shares of an image's sides do; multiply them by these"
            )


def check_names(names: Sequence[str], what: Path) -> tuple[str, ...]:
    """Return printable names of classes. Raises: UserError where there are none, or two of one name."""
    classes = tuple(readable(name) for name in names)
    if not all(classes):
        raise UserError(f"{what} has a class without a name, number {classes.index('')} of those in order; name it")
    if not classes:
        raise UserError(f"{what} names no classes")
    name, often = Counter(classes).most_common(1)[0]
    if often > 1:
        raise UserError(f"{what} names the class {name!r} twice")
    return classes


def folders_of(path: str) -> list[str]:
    """Return the folders on a path, from the outermost, in lower case."""
    return path.lower().split("/")[:-1]


def in_folder(path: str, folder: str) -> str:
    """Return the path, without ending, of the file in `folder` that belongs to an image in a folder `images`."""
    parts, folders = path.rpartition(".")[0].split("/"), folders_of(path)
    place = len(folders) - 1 - folders[::-1].index("images")
    return "/".join([*parts[:place], folder, *parts[place + 1 :]])


def comparison_of(paths: Sequence[str]) -> Callable[[str], str]:
    """Return how to compare paths: without case, as Windows does, unless two of them differ in case alone."""
    return str.lower if len({path.lower() for path in paths}) == len(paths) else str


def split_by_folder(path: str) -> str:
    """Return the split that a folder on a path names; train where none does."""
    return next((kind for part in folders_of(path) if (kind := split_of(part)) is not None), "train")
