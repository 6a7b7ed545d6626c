# SPDX-License-Identifier: Apache-2.0
"""Tables of images: a CSV, a Parquet file, or data frames of pandas or polars, by the names of their columns.

    path,label[,split][,group]      an empty label means none, cat|dog means both (several.py); a missing one among
                                    lists, which a CSV does not hold, means that the image is unlabeled
    path,CAT,DOG                    of 1 and 0, a column per label

Splits are train, val (or valid, validation) and test, for every row or for none. Images of one group, such as a
patient's, are never divided between splits that are drawn; an image with an empty group belongs to none. The header of
a CSV is required; columns may come in any order. Paths are relative to the file, or to the working folder.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ...errors import UserError, received, shortened, some
from . import hugging_face as hub
from .labels import split_of
from .listed import Listed, from_list
from .several import cell_word, cell_words, marked
from .source import Source
from .written import csv_rows

Word = TypeVar("Word", str, str | None)
COLUMNS = ("path", "label", "split", "group")  # columns that are known by their names


def open_csv(path: Path) -> Source:
    """Open a CSV of images.

    Raises: UserError for missing columns, files or values, and for a path that is listed with two labels.
    """
    header, rows, _ = csv_rows(path)
    names = [name.lower() if name.lower() in COLUMNS else name for name in header]
    if twice := [name for name, often in Counter(names).items() if often > 1]:
        raise UserError(f"{path} has two columns {twice[0]}; keep one of them")
    columns = {name: [cells[place] for _, cells in rows] for place, name in enumerate(names)}
    source = from_table(str(path), path.parent, columns, [f"line {line}" for line, _ in rows])
    if source is None:
        raise UserError(
            f"{path} needs a header with the columns path,label[,split], or a column of 1 and 0 for every label, got "
            f"{shortened(','.join(header))!r}"
        )
    return source


def open_parquet(path: Path) -> Source:
    """Open a Parquet file: a table as a CSV would be, or images as Hugging Face keeps them.

    Raises: UserError for what is no Parquet, or where neither pyarrow nor Hugging Face's library is installed.
    """
    if find_spec("pyarrow") is None:
        raise UserError(f"{path} needs pyarrow: pip install 'viticulture[hf]', or pyarrow alone for path and label")
    import pyarrow
    from pyarrow import parquet

    try:
        names = parquet.read_schema(path).names
        if "path" not in names:
            return hub.open_local(path)
        columns = _needed(names)
        table = parquet.read_table(path, columns=columns).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    words = {name: cell_words(table[name]) for name in columns}
    rows = [f"row {number}" for number in range(len(words["path"]))]
    return from_table(str(path), path.parent, words, rows, names) or hub.open_local(path)


def is_frame(data: Any) -> bool:
    """Return whether an object is a data frame of pandas or polars, or of a subclass."""
    modules = {base.__module__.partition(".")[0] for base in type(data).__mro__}
    return not modules.isdisjoint(("pandas", "polars")) and hasattr(data, "columns")


def from_frames(frames: Mapping[str, Any]) -> Source:
    """Return the images that data frames list, by split; a lone one, under "", may have a column `split`."""
    columns: dict[str, list[Any]] = {}
    rows: list[str] = []
    for split, frame in frames.items():
        held = _columns(frame)
        if columns and held.keys() | {"split"} != columns.keys():
            raise UserError(f"data frames of splits need the same columns, got {some([*held])} in {split}")
        if split and "split" in held:
            raise UserError(f"a data frame of one split, {split}, has no column split; leave that out")
        for name, cells in {**held, **({"split": [split] * len(frame)} if split else {})}.items():
            columns.setdefault(name, []).extend(cells)
        rows += [f"{split} row {number}".strip() for number in range(len(frame))]
    for row, cell in zip(rows, columns.get("path", ()), strict=False):
        if not isinstance(cell, str | PathLike) and cell_word(cell) is not None:
            raise UserError(
                f"the column path holds paths, got {received(cell)} in {row}; give images as a pair of them and labels"
            )
    words = {name: cell_words(columns[name]) for name in _needed(columns)}
    source = from_table("data frame", Path.cwd(), words, rows, [*columns])
    if source is None:
        raise UserError(
            "a data frame needs the columns path, label (or a column of 1 and 0 for every label) and, if you like, "
            f"split; {'label' if 'path' in words else 'path'} is not there; its columns are "
            f"{some([*columns]) or 'none'}"
        )
    return source


def column_of(frame: Any, name: str) -> Sequence[Any]:
    """Return the cells of a data frame's column. Raises: UserError if it has none of that name, or several."""
    columns = _columns(frame)
    if name not in columns:
        raise UserError(f"a data frame needs the column {name}, and its columns are {some([*columns]) or 'none'}")
    return columns[name]


def _columns(frame: Any) -> dict[str, list[Any]]:
    """Return name -> cells of a data frame's columns, without the cells of columns that are not needed. Names may be
    numbers, and stand twice.

    Raises: UserError for a frame that is not in memory yet, and for a needed name that stands twice.
    """
    if not hasattr(frame, "__len__"):
        raise UserError(f"a {type(frame).__name__} holds no rows yet; give its collect()")
    names = [str(name) for name in frame.columns]
    needed = _needed(names)
    if twice := [name for name in needed if names.count(name) > 1]:
        raise UserError(f"two columns of the data frame are called {twice[0]}; rename one or leave it out")
    held = {name: list[Any]() for name in names}
    for name in needed:
        place = names.index(name)
        held[name] = list(frame.iloc[:, place] if hasattr(frame, "iloc") else frame.to_series(place))
    return held


def _needed(names: Collection[str]) -> list[str]:
    """Return the columns to read; without a column label, each one may be a label."""
    return [name for name in dict.fromkeys(names) if name in COLUMNS or "label" not in names]


def from_table(
    what: str, root: Path, columns: Mapping[str, Sequence[str | None]], rows: Sequence[str], named: Sequence[str] = ()
) -> Source | None:
    """Return the images that a table lists; None where it has no column of paths, or none of labels."""
    columns = {
        name: whole_numbers(column) if name in ("label", "group") else column for name, column in columns.items()
    }
    others = {name: column for name, column in columns.items() if name not in COLUMNS}
    labels, warnings = (columns["label"], ()) if "label" in columns else marked(what, others, rows)
    if "path" not in columns or ("label" not in columns and not warnings):
        return None
    splits, groups = columns.get("split", ["train"] * len(rows)), columns.get("group", [None] * len(rows))
    images = [
        Listed(path or "", label, split_in(split, f"{what}, {row}"), group or "", row)
        for row, path, label, split, group in zip(rows, columns["path"], labels, splits, groups, strict=True)
    ]
    unread = [name for name in named or columns if name not in COLUMNS and name and not name.startswith("Unnamed:")]
    if unread and "label" in columns:  # a group by another name would fall apart in silence
        warnings = (f"columns that are not read: {some(unread)}; read are {', '.join(COLUMNS)}",)
    return from_list(what, root, images, warnings, outside=True)


def split_in(cell: str | None, where: str) -> str:
    """Return the split that a cell of the column `split` names. Raises: UserError where it names none or is empty."""
    kind = split_of(cell or "")
    if kind is None:
        got = repr(cell) if cell else "an empty cell; fill the column, or leave it out"
        raise UserError(f"{where}: split must be train, val or test, got {got}")
    return kind


def whole_numbers(column: Sequence[Word]) -> Sequence[Word]:
    """Remove the point that pandas writes into a column of whole numbers with gaps (1.0); other columns stay."""
    if not all(re.fullmatch(r"-?\d+(\.0)?", cell) for cell in column if cell):
        return column
    return [cell.removesuffix(".0") if cell else cell for cell in column]
