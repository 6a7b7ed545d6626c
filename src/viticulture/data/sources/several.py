# SPDX-License-Identifier: Apache-2.0
"""Several labels an image: names joined by a bar, such as `cat|dog`, or a table's columns of 1 and 0, a label each.

Every source reads such labels as it reads any others, as names of classes, and `separated` takes the names apart.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import some
from .labels import natural
from .source import Source

JOINT = "|"
LISTS = list, tuple, set, frozenset, np.ndarray
"""What holds several names."""
YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")


def joined(value: Any) -> str:
    """A cell as text: a list's names joined, anything else as it is written."""
    names = value if isinstance(value, LISTS) else [value]
    return JOINT.join(str(name).strip() for name in names)


def is_joined(source: Source) -> bool:
    """Whether names of classes are joined labels."""
    return source.labels.ndim == 1 and any(JOINT in name for name in source.classes)


def separated(source: Source) -> Source:
    """The same images with labels [N, C] float32, 1 where an image shows the class; one without a label shows none."""
    if source.labels.ndim == 2:
        return source
    parts = [{part.strip() for part in name.split(JOINT)} - {""} for name in source.classes]
    classes = tuple(sorted(set().union(*parts), key=natural))
    position = {name: i for i, name in enumerate(classes)}
    shown = np.zeros((len(parts) + 1, len(classes)), np.float32)  # the last row is for "no label", -1
    for row, names in enumerate(parts):
        shown[row, [position[name] for name in names]] = 1
    return dataclasses.replace(source, classes=classes, labels=shown[source.labels])


def several_words(labels: np.ndarray) -> str:
    """How many labels images have, in words; labels as `separated` gives them."""
    none = int((labels.sum(1) == 0).sum())
    return f"{labels.sum(1).mean():.2g} on average, {none:,} of {len(labels):,} images have none"


def marked(columns: Mapping[str, Sequence[str | None]]) -> tuple[list[str | None], tuple[str, ...]]:
    """Joined labels of the rows of a table that has no column `label`, and a note that says which columns they are.

    A column is a label where all its cells are 1 or 0 (or true, false); others are passed over. Without any there are
    no rows to label, which the caller tells.

    Args:
        columns: by name, as they are written, without those of paths and splits.
    """
    cells = {name: [(value or "").lower() for value in column] for name, column in columns.items()}
    labels = {name: column for name, column in cells.items() if column and set(column) <= {*YES, *NO}}
    rows = [
        [name for name, value in zip(labels, row, strict=True) if value in YES]
        for row in zip(*labels.values(), strict=True)
    ]
    note = f"labels are the columns {some(list(labels), 8)} (1 or 0)" if labels else ""
    return [JOINT.join(names) or None for names in rows], ((note,) if note else ())
