# SPDX-License-Identifier: Apache-2.0
"""Read lists of images as programs write them: lines, JSON, rows of a CSV, numbers and names. Paths are for
`places`."""

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from ...disk import MAX_LIST, decoded, is_system_file, read_text
from ...errors import UserError, shortened

_BEFORE = re.compile(
    r"""(?: (?:[ \t]* (?:\#(?![ \t]*path[ \t]*[,;\t])[^\r\n]*)? | "?sep=(?P<sep>.)"?[^\r\n]*) (?:\r\n?|\n) )*""",
    re.IGNORECASE | re.VERBOSE,
)
"""Lines before the header of a CSV: empty ones, comments, and Excel's, which names the separator."""


class Rows(NamedTuple):
    """A CSV: names of its columns; number of each row's line and its cells; separator of cells."""

    header: list[str]
    rows: list[tuple[int, list[str]]]
    separator: str


def files_of(folder: Path, *endings: str) -> list[Path]:
    """Return the files right below a folder with these endings, in whatever case, sorted, without system files."""
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208  (a third of the time)
    return [folder / name for name in sorted(names) if name.lower().endswith(endings) and not is_system_file(name)]


def subfolder(root: Path, name: str) -> Path | None:
    """Return the folder of that name, in whatever case, right below another one."""
    spellings = name, name.lower(), name.capitalize(), name.upper()
    return next((folder for folder in map(root.joinpath, spellings) if folder.is_dir()), None)


def text_of(path: Path) -> str:
    """Read the text of a list. Raises: UserError for a file that is no text."""
    return read_text(path, "list", MAX_LIST)


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Return number, from 1, and text of each line that is neither empty nor a comment."""
    lines = ((i, line.strip()) for i, line in enumerate(io.StringIO(text_of(path), newline=None), 1))
    return [(i, line) for i, line in lines if line and not is_comment(line)]


def is_comment(line: str) -> bool:
    """Return whether a line is a comment: # and a space. Without the space it may be a name, such as #1.png."""
    return line.startswith("# ")


def json_of(path: Path, names: bool = False) -> Any:
    """Read a JSON file; if it names classes (`names`), numbers stay as they are written and no key may stand twice.

    Raises: UserError for a file that is no JSON.
    """
    ways: dict[str, Any] = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), str) if names else {}
    try:
        return json.loads(text_of(path), object_pairs_hook=_once if names else None, **ways)
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path} as JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(content := dict(pairs)) < len(pairs):
        twice = next(key for key in content if sum(key == each for each, _ in pairs) > 1)
        raise ValueError(f"{shortened(twice)!r} appears twice")
    return content


def csv_rows(path: Path, padded: bool = False) -> Rows:
    """Read a CSV, separated by commas, semicolons, tabs, or what a first line `sep=` names.

    Raises: UserError for a row that has more cells than the header, or fewer unless they are to be `padded`.
    """
    text = text_of(path)
    start, separator = _start(text)
    stream = io.StringIO(text[start:], newline="")
    before = len(text[:start].splitlines())
    # A quote after a space counts as one: spaces around a value are not part of it.
    reader = csv.reader(stream, delimiter=separator, skipinitialspace=separator != " ", strict=True)
    rows = []
    try:
        header = [name.strip().lstrip("# ") for name in next(reader, [])]
        for cells in reader:
            line = before + reader.line_num
            if not any(map(str.strip, cells)) or is_comment(cells[0]):
                continue
            while len(cells) > len(header) and not cells[-1].strip():
                cells.pop()
            cells += [""] * (len(header) - len(cells)) * padded
            if len(cells) != len(header):
                raise UserError(
                    f"{path}, line {line}: {len(cells)} values for {len(header)} columns; quote values that hold "
                    f"{separator!r}"
                )
            rows.append((line, [cell.strip() for cell in cells]))
    except csv.Error as error:
        raise UserError(f"{path}, line {before + reader.line_num}: {error}") from error
    return Rows(header, rows, separator)


def header_of(path: Path) -> set[str]:
    """Return the names in a CSV's first line, in lower case, without reading the rest; none of a file that is no
    text."""
    with path.open("rb") as file:
        text = decoded(file.read(4096), "replace")
    start, separator = _start(text)
    return {word.strip().strip('"').strip().lower() for word in re.split(r"[\r\n]", text[start:])[0].split(separator)}


def _start(text: str) -> tuple[int, str]:
    """Return where the header of a CSV begins, and its separator."""
    match = _BEFORE.match(text)
    start = match.end() if match else 0
    line = re.split(r"[\r\n]", text[start : start + 2**20], maxsplit=1)[0]
    return start, (match and match["sep"]) or max(",;\t", key=line.count)


def number(word: Any) -> float:
    """Return a number, however it is written: 3, 3.0, " .5 ", 0,5. Raises: ValueError."""
    text = str(word).strip()
    return float(text.replace(",", ".", 1) if "." not in text else text)


def whole(word: Any) -> int:
    """Return a whole number, which may have a point: 3.0. Raises: ValueError for any other."""
    value = number(word)
    if not value.is_integer():
        raise ValueError(f"{shortened(str(word))!r} is no whole number")
    return int(value)


def name_of(value: Any) -> str:
    """Return a name in JSON: text, or a whole number, which has one spelling there. Raises: TypeError for another
    value, whose text would be one of Python's (True, None, 1.1 for 1.10)."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"a name is text, got {shortened(json.dumps(value))}; write it in quotes")
    return str(value).strip()
