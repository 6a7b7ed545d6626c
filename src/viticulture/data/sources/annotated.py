# SPDX-License-Identifier: Apache-2.0
"""The contract of a source of images with objects, or with a class for every pixel."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import numpy as np
import torch

from ...errors import UserError, counted, some
from ...text import readable
from ..targets.objects import Objects, Shape
from .labels import split_of
from .listed import Listed, from_list
from .source import Source


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

    @property
    def kind(self) -> str:
        """Kind of the annotations, "objects" or "pixels"."""
        return "pixels" if self.objects is None else "objects"


def images_of(root: Path, paths: Sequence[str], splits: Sequence[str], what: Path, outside: bool = False) -> Source:
    """Image files below a folder, as a source without labels.

    Args:
        root: the folder.
        paths: relative to it.
        splits: train, val or test, of each.
        what: who lists them, for an error.
        outside: read paths that lead out of that folder, too.

    Raises: UserError as `from_list`.
    """
    images = [Listed(path, None, split) for path, split in zip(paths, splits, strict=True)]
    return from_list(str(what), root, images, name=root.resolve().name, outside=outside)


def check_names(names: Sequence[str], what: Path) -> tuple[str, ...]:
    """Names of classes that can be printed. Raises: UserError where there are none, or two of one name."""
    classes = tuple(readable(name) for name in names)
    if not all(classes):
        raise UserError(f"{what} has a class without a name, number {classes.index('')} of those in order; name it")
    if not classes:
        raise UserError(f"{what} names no classes")
    name, often = Counter(classes).most_common(1)[0]
    if often > 1:
        raise UserError(f"{what} names the class {name!r} twice")
    return classes


def without_copies(source: DenseSource) -> DenseSource:
    """A source of objects without those that repeat another one of their image in class, box and outline: they would
    count as often as they stand in the list."""
    objects, fewer, copies = list[Objects](), list[str](), 0
    for name, held in zip(source.images.names, source.objects or (), strict=True):
        outlines = map(repr, held.shapes) if held.shapes else repeat("")
        marks = zip(map(tuple, held.boxes.tolist()), held.labels.tolist(), held.crowd.tolist(), outlines, strict=False)
        first = {mark: row for row, mark in reversed([*enumerate(marks)])}
        if len(first) < len(held):
            copies += len(held) - len(first)
            fewer.append(name)
            held = held.part(torch.tensor(sorted(first.values())))
        objects.append(held)
    note = f"left out {counted(copies, 'object')} that repeat another one of their image: {some(fewer, 3)}"
    return replace(source, objects=objects, notes=(*source.notes, note)) if copies else source


def folders_of(path: str) -> list[str]:
    """The folders on a path, from the outermost, in lower case."""
    return path.lower().split("/")[:-1]


def beside(path: str, folder: str) -> str:
    """The path without ending of what lies beside an image: below `folder` in place of the innermost folder images."""
    parts, folders = path.rpartition(".")[0].split("/"), folders_of(path)
    place = len(folders) - 1 - folders[::-1].index("images")
    return "/".join([*parts[:place], folder, *parts[place + 1 :]])


def comparison_of(paths: Sequence[str]) -> Callable[[str], str]:
    """How paths are compared: without case, as Windows does, unless two of them differ in nothing else."""
    return str.lower if len({path.lower() for path in paths}) == len(paths) else str


def split_by_folder(path: str) -> str:
    """The split that a folder on a path names; train where none does."""
    return next((kind for part in folders_of(path) if (kind := split_of(part)) is not None), "train")


def objects_of(
    boxes: Iterable[Sequence[float]],
    labels: Sequence[int],
    shapes: tuple[Shape, ...] | None = None,
    size: tuple[int, int] | None = None,
) -> Objects:
    """Objects of one image from numbers, none of them a crowd; the parameters are those of `Objects`."""
    corners = torch.tensor([list(box) for box in boxes], dtype=torch.float32).reshape(-1, 4)
    crowd = torch.zeros(len(labels), dtype=torch.bool)
    return Objects(corners, torch.tensor(labels, dtype=torch.int64), crowd, shapes, size)
