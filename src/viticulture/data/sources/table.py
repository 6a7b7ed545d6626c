# SPDX-License-Identifier: Apache-2.0
"""A table of images, whatever holds it (csv_file.py, parquet.py, a data frame in frames.py), by its columns:

    path,label[,split][,group]      an empty label means none, cat|dog means both (several.py); a missing one among
                                    lists, which only other files than a CSV hold, that nobody said which
    path,CAT,DOG                    of 1 and 0, a column a label

Splits are train, val (or valid, validation) and test, for every row or for none. Images of one group, such as a
patient's, are never divided between splits that are drawn; an empty group is an image by itself.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...errors import UserError, shortened, some
from .labels import split_of
from .listed import Listed, from_list
from .several import LISTS, check_classes, joined, marked
from .source import Source

Word = TypeVar("Word", str, str | None)
OWN = ("path", "label", "split", "group")
"""Columns that are known by their names."""
NUMBERED = ("label", "group")
"""Those of which numbers may be the names."""


def from_table(
    what: str,
    root: Path,
    columns: Mapping[str, Sequence[str | None]],
    rows: Sequence[str],
    named: Sequence[str] = (),
) -> Source | None:
    """The images that a table lists; None where it has no column of paths, or none of labels.

    Args:
        what: to call the table.
        root: folder that paths are relative to.
        columns: its cells by their column's name, as `cell_words` gives them.
        rows: what to call each row.
        named: all its columns, also those whose cells are not here.

    Raises: UserError as `from_list`, for a split that is none, and for a gap in a column of 1 and 0.
    """
    columns = {name: whole_numbers(column) if name in NUMBERED else column for name, column in columns.items()}
    others = {name: column for name, column in columns.items() if name not in OWN}
    labels, notes = (columns["label"], ()) if "label" in columns else marked(what, others, rows)
    if "path" not in columns or ("label" not in columns and not notes):
        return None
    splits, groups = columns.get("split", ["train"] * len(rows)), columns.get("group", [None] * len(rows))
    images = []
    for row, path, label, split, group in zip(rows, columns["path"], labels, splits, groups, strict=True):
        images.append(Listed(path or "", label, split_in(split, f"{what}, {row}"), group or "", row))
    unread = [name for name in named or columns if name not in OWN and name and not name.startswith("Unnamed:")]
    if unread and "label" in columns:  # a group by another name would fall apart in silence
        notes = (f"columns that are not read: {some(unread)}; read are {', '.join(OWN)}",)
    return from_list(what, root, images, notes, outside=True)


def split_in(cell: str | None, where: str) -> str:
    """The split that a cell of the column `split` names. Raises: UserError where it names none or is empty."""
    kind = split_of(cell or "")
    if kind is None:
        got = repr(cell) if cell else "an empty cell; fill the column, or leave it out"
        raise UserError(f"{where}: split must be train, val or test, got {got}")
    return kind


def whole_numbers(column: Sequence[Word]) -> Sequence[Word]:
    """A column of whole numbers without the point that pandas writes where some are missing (1.0); others stay."""
    if not all(re.fullmatch(r"-?\d+(\.0)?", cell) for cell in column if cell):
        return column
    return [cell.removesuffix(".0") if cell else cell for cell in column]


def cell_words(values: Sequence[Any]) -> list[str | None]:
    """A column of Python's as a CSV would hold it, empty cells as "" or, among lists, which may be empty, as None."""
    words = [cell_word(value) for value in values]
    return words if any(isinstance(value, LISTS) for value in values) else [word or "" for word in words]


def cell_word(value: Any) -> str | None:
    """A cell of Python's as a CSV would hold it, a list's words joined; None where there is none.

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
        return joined({*words} if isinstance(value, (set, frozenset)) else words)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # a number of torch's or NumPy's
    if value is None or (isinstance(value, float) and np.isnan(value)) or joined(value) in ("", "<NA>"):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes a column of numbers with a gap one of floats
    return joined(value)
