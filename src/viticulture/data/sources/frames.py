# SPDX-License-Identifier: Apache-2.0
"""Data frames of pandas' or polars', alone or by split; columns as in table.py."""

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ...errors import UserError, received, some
from .source import Source
from .table import OWN, cell_word, cell_words, from_table


def is_frame(data: Any) -> bool:
    """Return whether an object is a data frame of pandas' or polars', or of a subclass."""
    modules = {base.__module__.partition(".")[0] for base in type(data).__mro__}
    return not modules.isdisjoint(("pandas", "polars")) and hasattr(data, "columns")


def from_frames(frames: Mapping[str, Any]) -> Source:
    """The images that data frames list, by split; a lone one, under "", may say the splits itself."""
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
    words = {name: cell_words(columns[name]) for name in _read(columns)}
    source = from_table("data frame", Path.cwd(), words, rows, [*columns])
    if source is None:
        raise UserError(
            "a data frame needs the columns path, label (or a column of 1 and 0 for every label) and, if you like, "
            f"split; {'label' if 'path' in words else 'path'} is not there; its columns are "
            f"{some([*columns]) or 'none'}"
        )
    return source


def column_of(frame: Any, name: str) -> Sequence[Any]:
    """The cells of a data frame's column. Raises: UserError if it has none of that name, or several."""
    columns = _columns(frame)
    if name not in columns:
        raise UserError(f"a data frame needs the column {name}, and its columns are {some([*columns]) or 'none'}")
    return columns[name]


def _columns(frame: Any) -> dict[str, list[Any]]:
    """Name -> cells of a data frame's columns, by their places: names may be numbers, and stand twice. Those of columns
    that are not read are left out.

    Raises: UserError for one that is not in memory yet, and for a name that stands twice where cells are read.
    """
    if not hasattr(frame, "__len__"):
        raise UserError(f"a {type(frame).__name__} holds no rows yet; give its collect()")
    names = [str(name) for name in frame.columns]
    needed = _read(names)
    if twice := [name for name in needed if names.count(name) > 1]:
        raise UserError(f"two columns of the data frame are called {twice[0]}; rename one or leave it out")
    held = {name: list[Any]() for name in names}
    for name in needed:
        place = names.index(name)
        held[name] = list(frame.iloc[:, place] if hasattr(frame, "iloc") else frame.to_series(place))
    return held


def _read(names: Collection[str]) -> list[str]:
    """Columns that are read: without labels, a column a label."""
    return [name for name in dict.fromkeys(names) if name in OWN or "label" not in names]
