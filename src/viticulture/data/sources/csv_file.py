# SPDX-License-Identifier: Apache-2.0
"""A CSV that lists images by the columns of table.py; paths are relative to the CSV.

The header is required; columns may come in any order, others are passed over.
"""

from collections import Counter
from pathlib import Path

from ...errors import UserError, shortened
from .source import Source
from .table import OWN, from_table
from .written import csv_rows


def open_csv(path: Path) -> Source:
    """Open a CSV of images.

    Raises: UserError for missing columns, files or values, and for a path that is listed with two labels.
    """
    header, rows, _ = csv_rows(path)
    names = [name.lower() if name.lower() in OWN else name for name in header]
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
