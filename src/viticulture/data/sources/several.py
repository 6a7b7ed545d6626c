# SPDX-License-Identifier: Apache-2.0
"""Several labels an image: names joined by a bar, such as `cat|dog`, or a table's columns of 1 and 0, a label each.

Every source reads such labels as it reads any others, as names of classes, and `separated` takes the names apart.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import UserError, shortened, some
from .labels import natural
from .source import Source

JOINT = "|"
LISTS = list, tuple, set, frozenset, np.ndarray
"""What holds several names."""
YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")


def joined(value: Any) -> str:
    """A cell as text: a list's names joined, anything else as it is written."""
    names = value if isinstance(value, LISTS) else [value]
    if isinstance(value, (set, frozenset)):
        names = sorted(value, key=str)  # its own order is another one in every process
    return JOINT.join(str(name).strip() for name in names)


def check_classes(label: Iterable[Any]) -> None:
    """Raises: UserError for a list that cannot be classes: a 1 or a 0 for each of them would be the classes 1 and 0."""
    values = list(label)
    numbers = all(isinstance(each, int | float | np.number) for each in values)
    if len(values) > 2 and numbers and {*values} <= {0, 1}:
        marks = shortened(f"[{', '.join(map(str, values))}]")
        raise UserError(f"a label is {marks}, a 1 or a 0 for each class; list the classes that the image shows")


def is_joined(source: Source) -> bool:
    """Whether names of classes are joined labels."""
    return source.labels.ndim == 1 and any(JOINT in name for name in source.classes)


def separated(source: Source) -> Source:
    """The same images with labels [N, C] float32, 1 where an image shows the class; one without a label shows none, or
    is -1 throughout where nobody labeled it."""
    if source.labels.ndim == 2:
        return source
    parts = [{part.strip() for part in name.split(JOINT)} - {""} for name in source.classes]
    classes = tuple(sorted(set().union(*parts), key=natural))
    position = {name: i for i, name in enumerate(classes)}
    shown = np.zeros((len(parts) + 1, len(classes)), np.float32)  # the last row is for "no label", -1
    for row, names in enumerate(parts):
        shown[row, [position[name] for name in names]] = 1
    labels = shown[source.labels]
    if source.unlabeled is not None:
        labels[source.unlabeled] = -1
    return dataclasses.replace(source, classes=classes, labels=labels)


def several_words(labels: np.ndarray) -> str:
    """How many labels images have, in words; labels as `separated` gives them, of images that somebody labeled."""
    none = int((labels.sum(1) == 0).sum())
    return f"{labels.sum(1).mean():.2g} on average, {none:,} of {len(labels):,} images have none"


def marked(
    what: str, columns: Mapping[str, Sequence[str | None]], rows: Sequence[str]
) -> tuple[list[str | None], tuple[str, ...]]:
    """Joined labels of the rows of a table that has no column `label`, and notes that say which columns they are.

    A column is a label where all its cells are 1 or 0 (or true, false); others are passed over, and told where most of
    their cells are. Without any there are no rows to label, which the caller tells.

    Args:
        what: to call the table.
        columns: by name, as they are written, without those of paths and splits.
        rows: what to call each row.

    Raises: UserError for a gap in a column that else holds 1 and 0: whether the image shows the label is unknown.
    """
    cells = {name: [(value or "").lower() for value in column] for name, column in columns.items()}
    labels: dict[str, list[str]] = {}
    others = []
    for name, column in cells.items():
        strange = [i for i, cell in enumerate(column) if cell not in (*YES, *NO)]
        if not strange and column:
            labels[name] = column
        elif len(strange) < len(column) and not any(column[i] for i in strange):
            raise UserError(
                f"{what}, {rows[strange[0]]}: {name} is empty, and its other cells are 1 or 0; fill the column, or "
                "leave it out"
            )
        elif 2 * len(strange) < len(column):
            others.append(f"{name} ({rows[strange[0]]}: {columns[name][strange[0]]!r})")
    marks = [
        [name for name, value in zip(labels, row, strict=True) if value in YES]
        for row in zip(*labels.values(), strict=True)
    ]
    shown = {name: None for name, column in labels.items() if set(column) & {*YES}}
    unseen = [name for name in labels if name not in shown]
    notes = [f"labels are the columns {some([*shown], 8)} (1 or 0)"] if shown else []
    notes += [f"no class, since no image shows it: {some(unseen, 8)}"] if unseen else []
    notes += [f"no labels, since not all cells are 1 or 0: {some(others, 8)}"] if labels and others else []
    return [JOINT.join(names) for names in marks], tuple(notes)
