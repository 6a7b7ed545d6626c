# SPDX-License-Identifier: Apache-2.0
"""Parquet files: a table of path and labels as a CSV would be, or images themselves as Hugging Face keeps them."""

from importlib.util import find_spec
from pathlib import Path

from ...errors import UserError
from . import hugging_face as hub
from .source import Source
from .table import OWN, cell_words, from_table


def open_parquet(path: Path) -> Source:
    """Open a .parquet file.

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
        columns = [name for name in OWN if name in names] if "label" in names else names
        table = parquet.read_table(path, columns=columns).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    words = {name: cell_words(table[name]) for name in columns}
    rows = [f"row {number}" for number in range(len(words["path"]))]
    return from_table(str(path), path.parent, words, rows, names) or hub.open_local(path)
