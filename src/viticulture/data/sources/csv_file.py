# SPDX-License-Identifier: Apache-2.0
"""A CSV that lists images by the columns of table.py; paths are relative to the CSV.

The header is required; columns may come in any order, others are passed over. Comma, semicolon and tab are understood.
"""

import csv
import io
from pathlib import Path

from ...errors import UserError
from .listed import text_of
from .source import Source
from .table import OWN, from_table


def open_csv(path: Path) -> Source:
    """Open a CSV of images.

    Raises: UserError for missing columns, files or values, and for a path that is listed twice.
    """
    header, lines = _read(path)
    names = [name.lower() if name.lower() in OWN else name for name in header]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{path} has two columns {twice[0]}; keep one of them")
    columns = {name: [values[place] for _, values in lines] for place, name in enumerate(names)}
    source = from_table(str(path), path.parent, columns, [f"line {number}" for number, _ in lines])
    if source is None:
        raise UserError(
            f"{path} needs a header with the columns path,label[,split], or a column of 1 and 0 for every label, got "
            f"{','.join(header)!r}"
        )
    return source


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a CSV, and each line's number and values."""
    text = text_of(path)
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    # A quote behind a space is one, too: spaces around a value are none of it.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
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
