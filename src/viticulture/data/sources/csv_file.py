# SPDX-License-Identifier: Apache-2.0
"""A CSV that lists images: path,label[,split][,group], with paths relative to the CSV.

The header is required; columns may come in any order, others are passed over. Comma, semicolon and tab are understood.
An empty label means none; splits are train, val (or valid, validation) and test, for every row or for none. Images of
one group, such as a patient's, are never divided between splits that are drawn; an empty group is an image by itself.
"""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError, counted
from .files import MISSING, FileReader, file_fingerprint
from .labels import classify, rows_of, split_of
from .source import Source, readable, shortened, some


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
    return from_rows(str(path), "line", path.parent, list(_rows(path)))


def from_rows(table: str, row_word: str, root: Path, rows: list[Row]) -> Source:
    """The images that a table lists.

    Args:
        table: what to call it.
        row_word: what to call a row of it.
        root: folder that paths are relative to.
        rows: its rows.

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
        notes=(f"{counted(len(named), 'group')} (column group), which no split that is drawn divides",)
        if named
        else (),
        groups=groups if named else None,
    )


def _rows(path: Path) -> Iterator[Row]:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = [name.strip().lower() for name in next(lines, [])]
        if "path" not in columns or "label" not in columns:
            raise UserError(f"{path} needs a header with the columns path,label[,split], got {header.strip()!r}")
        if twice := [name for name in ("path", "label", "split", "group") if columns.count(name) > 1]:
            raise UserError(f"{path} has two columns {twice[0]}; keep one of them")
        for row in lines:
            if not any(row):
                continue
            if len(row) != len(columns):
                raise UserError(
                    f"{path}, line {lines.line_num}: {len(row)} values for {len(columns)} columns;"
                    f" quote values that hold {delimiter!r}"
                )
            value = dict(zip(columns, map(str.strip, row), strict=True))
            yield Row(lines.line_num, value["path"], value["label"] or None, value.get("split"), value.get("group"))
    except csv.Error as error:
        raise UserError(f"{path}, line {lines.line_num}: {error}") from error


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
