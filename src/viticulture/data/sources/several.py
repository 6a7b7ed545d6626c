# SPDX-License-Identifier: Apache-2.0
"""Labels out of cells and class names: several labels per image, and numbers.

Several labels are names joined by a bar, such as `cat|dog`, or a table's columns of 1 and 0, a column per label. Every
source reads such labels, and numbers, as it reads any others, as class names; `separated` and `as_numbers` convert
them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import UserError, shortened, some
from .labels import natural
from .source import Source
from .written import number

JOINT = "|"
LISTS = list, tuple, set, frozenset, np.ndarray  # types that hold several names
YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")


def cell_words(values: Sequence[Any]) -> list[str | None]:
    """Write a column of Python values as a CSV would, empty cells as "" or, among lists, which may be empty, as
    None."""
    words = [cell_word(value) for value in values]
    return words if any(isinstance(value, LISTS) for value in values) else [word or "" for word in words]


def cell_word(value: Any) -> str | None:
    """Write a Python value as a CSV would, a list's words joined; None where there is none.

    Raises: UserError for a mapping, whose text would be a class, and as `check_classes`.
    """
    if isinstance(value, Mapping):
        keys = shortened(some([str(key) for key in value]))
        raise UserError(
            f"a label is a number, a name or a list of these, got a mapping of {keys}; keep the one that counts"
        )
    if isinstance(value, LISTS):
        check_classes(value)
        words = [word for each in value if (word := cell_word(each))]
        return JOINT.join(sorted({*words}) if isinstance(value, (set, frozenset)) else words)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # a number of torch's or NumPy's
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes a column of numbers with a gap one of floats
    word = str(value).strip()
    return None if value is None or word in ("", "<NA>") or (isinstance(value, float) and np.isnan(value)) else word


def check_classes(label: Iterable[Any]) -> None:
    """Raises: UserError for a list that cannot be classes: a 1 or a 0 for each of them would be the classes 1 and 0."""
    values = list(label)
    numbers = all(isinstance(each, int | float | np.number) for each in values)
    if len(values) > 2 and numbers and {*values} <= {0, 1}:
        marks = shortened(f"[{', '.join(map(str, values))}]")
        raise UserError(f"a label is {marks}, a 1 or a 0 for each class; list the classes of the image")


def is_joined(source: Source) -> bool:
    """Return whether names of classes are joined labels."""
    return source.labels.ndim == 1 and any(JOINT in name for name in source.classes)


def separated(source: Source) -> Source:
    """Convert joined labels to [N, C] float32, 1 where an image has the label; an image without a label has none, or is
    -1 throughout where it is unlabeled."""
    if source.labels.ndim == 2:
        return source
    parts = [{part.strip() for part in name.split(JOINT)} - {""} for name in source.classes]
    classes = tuple(sorted(set().union(*parts), key=natural))
    position = {name: i for i, name in enumerate(classes)}
    rows = np.zeros((len(parts) + 1, len(classes)), np.float32)  # the last row is for "no label", -1
    for row, names in enumerate(parts):
        rows[row, [position[name] for name in names]] = 1
    labels = rows[source.labels]
    if source.unlabeled is not None:
        labels[source.unlabeled] = -1
    return replace(source, classes=classes, labels=labels)


def as_numbers(source: Source) -> Source:
    """Convert labels to numbers [N] float32, NaN for an image without a label.

    Raises: UserError for several labels per image, and for a label that is no finite number.
    """
    if source.contents == "numbers":
        return source
    if source.contents != "classes":
        raise UserError(
            f"{source.name} has {source.contents}, and not a number per image; train on them by their recipe"
        )
    values = np.full(len(source.classes) + 1, np.nan, np.float32)  # the last one is for "no label", -1
    for i, name in enumerate(source.classes):
        try:
            values[i] = number(name)
        except ValueError:
            values[i] = np.nan
        if not np.isfinite(values[i]):
            raise UserError(
                f"labels of {source.name} must be numbers, got {shortened(name)!r}; leave missing ones empty"
            )
    return replace(source, classes=(), labels=values[source.labels], unlabeled=None)


def are_numbers(source: Source) -> bool:
    """Return whether labels are numbers rather than classes: with decimals, and most of them different."""
    if source.contents != "classes" or 2 * len(source.classes) <= len(source):
        return False
    try:
        values = np.array([number(name) for name in source.classes])
    except ValueError:
        return False
    return bool(np.isfinite(values).all() and (values % 1).any())


def several_words(labels: np.ndarray) -> str:
    """Say how many labels labeled images have; labels as `separated` returns them."""
    none = int((labels.sum(1) == 0).sum())
    return f"{labels.sum(1).mean():.2g} on average, {none:,} of {len(labels):,} images have none"


def marked(
    what: str, columns: Mapping[str, Sequence[str | None]], rows: Sequence[str]
) -> tuple[list[str | None], tuple[str, ...]]:
    """Return joined labels of the rows of a table that has no column `label`, and warnings that name their columns.

    A column is a label where all its cells are 1 or 0 (or true, false); others are passed over, with a warning where
    most of their cells are. Without such a column there are no rows to label, and the caller refuses the table.

    Raises: UserError for a gap in a column that else holds 1 and 0: whether the image has the label is unknown.
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
    used = [name for name, column in labels.items() if set(column) & {*YES}]
    unused = [name for name in labels if name not in used]
    warnings = [f"labels are the columns {some(used, 8)} (1 or 0)"] if used else []
    warnings += [f"no class, since no image shows it: {some(unused, 8)}"] if unused else []
    warnings += [f"no labels, since not all cells are 1 or 0: {some(others, 8)}"] if labels and others else []
    return [JOINT.join(names) for names in marks], tuple(warnings)
