# SPDX-License-Identifier: Apache-2.0
"""A CSV that lists images: path,label[,split][,group], or path,CAT,DOG of 1 and 0; paths are relative to the CSV.

The header is required; columns may come in any order, others are passed over. Comma, semicolon and tab are understood.
An empty label means none, cat|dog means both (several.py); splits are train, val (or valid, validation) and test, for
every row or for none. Images of one group, such as a patient's, are never divided between splits that are drawn; an
empty group is an image by itself.
"""

import csv
import io
import os
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError, counted, shortened, some
from ...text import readable
from .files import MISSING, FileReader, file_fingerprint
from .labels import classify, rows_of, split_of
from .several import marked
from .source import Source

OWN = ("path", "label", "split", "group")
"""Columns that are known by their names, whatever the case of letters."""


class Row(NamedTuple):
    """One line that names an image."""

    line: int
    path: str
    label: str | None
    split: str | None
    group: str | None = None


def open_csv(path: Path) -> Source:
    """Open a CSV of images.

    Raises: UserError for missing columns, files or values, and for a path that is listed twice.
    """
    rows, notes = _rows(path)
    return from_rows(str(path), "line", path.parent, rows, notes)


def from_rows(table: str, row_word: str, root: Path, rows: list[Row], notes: tuple[str, ...] = ()) -> Source:
    """The images that a table lists.

    Args:
        table: what to call it.
        row_word: what to call a row of it.
        root: folder that paths are relative to.
        rows: its rows.
        notes: what a person should know.

    Raises: UserError as `open_csv`.
    """
    _check(table, row_word, rows)
    classes, labels = classify([row.label for row in rows])
    named, groups = classify([row.group or None for row in rows])
    resolved = root.resolve()
    fingerprints = [file_fingerprint((resolved / row.path).stat) for row in rows]
    missing = [
        f"{shortened(row.path)} ({row_word} {row.line})"
        for row, mark in zip(rows, fingerprints, strict=True)
        if mark == MISSING
    ]
    if missing:
        raise UserError(
            f"{table} lists what does not exist; paths are relative to {'the CSV' if row_word == 'line' else root}:"
            f" {counted(len(missing), 'file')}, {some(missing)}"
        )
    return Source(
        name=readable(Path(table).name),
        classes=classes,
        labels=labels,
        names=[readable(row.path) for row in rows],
        splits=rows_of([split_of(row.split) if row.split else "train" for row in rows]),
        fingerprints=fingerprints,
        reader=FileReader(root, [row.path for row in rows]),
        root=str(resolved),
        notes=(
            *notes,
            *(
                [f"{counted(len(named), 'group')} (column group), which no split that is drawn divides"]
                if named
                else []
            ),
        ),
        groups=groups if named else None,
    )


def _rows(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Lines that name images, and what a person should know of their labels."""
    header, lines = _table(path)
    names = [name.lower() if name.lower() in OWN else name for name in header]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{path} has two columns {twice[0]}; keep one of them")
    columns = {name: [values[place] for _, values in lines] for place, name in enumerate(names)}
    others = {name: column for name, column in columns.items() if name not in OWN}
    labels, notes = (columns["label"], ()) if "label" in columns else marked(others)
    if "path" not in columns or ("label" not in columns and not notes):
        raise UserError(
            f"{path} needs a header with the columns path,label[,split], or a column of 1 and 0 for every label, got "
            f"{','.join(header)!r}"
        )
    splits, groups = (columns.get(name, [None] * len(lines)) for name in ("split", "group"))
    rows = [
        Row(number, file, label or None, *rest)
        for (number, _), file, label, *rest in zip(lines, columns["path"], labels, splits, groups, strict=True)
    ]
    return rows, notes


def _table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a CSV, and each line's number and values."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines = []
    try:
        header = [name.strip() for name in next(reader, [])]
        for values in reader:
            if not any(values):
                continue
            if len(values) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(values)} values for {len(header)} columns;"
                    f" quote values that hold {delimiter!r}"
                )
            lines.append((reader.line_num, [value.strip() for value in values]))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from error
    return header, lines


def _check(table: str, row_word: str, rows: list[Row]) -> None:
    if not rows:
        raise UserError(f"{table} lists no images")
    first: dict[str, int] = {}
    for row in rows:
        if not row.path:
            raise UserError(f"{table}, {row_word} {row.line}: the path is empty")
        if "\0" in row.path:
            raise UserError(f"{table}, {row_word} {row.line}: the path holds a NUL, which no file's name does")
        if row.split is not None and split_of(row.split) is None:
            raise UserError(f"{table}, {row_word} {row.line}: split must be train, val or test, got {row.split!r}")
        root = os.path.normpath(row.path)  # ./a.png is a.png
        if root in first:
            raise UserError(
                f"{table} lists {row.path} in {row_word}s {first[root]} and {row.line}; an image has one label"
            )
        first[root] = row.line
