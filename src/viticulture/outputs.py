# SPDX-License-Identifier: Apache-2.0
"""Output files: checked before the work starts, and safe to open in a spreadsheet."""

import csv
import io
import os
import shutil
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .disk import write_whole
from .errors import UserError
from .text import log

FORMULA = ("=", "+", "-", "@")  # beginnings of text that a spreadsheet would evaluate

MARKS = ("run.json", "budget.json", "study.json", "model.safetensors")
"""Files that mark the folder of a run, a budget's run, a study, or weights."""
RESERVED = {
    *MARKS,
    *("recipe.yaml", "split.json", "metrics.csv", "evaluation.json", "references.json"),
    *("explain.json", "robustness.json"),
    *("robustness.csv", "localization.json", "agreement.json", "probe.json", "report.html"),
    *("config.json", "study.yaml", "splits.json", "contents.json", "table.csv", "summary.csv"),
}
"""Files of these folders in formats that a user may name."""


def check_out(out: str | Path, *endings: str, size: int = 1) -> Path:
    """Check an output file before the work starts.

    Raises: UserError for another ending, a place that cannot be written, or a file of a run's folder.
    """
    path = Path(out)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file: {path / ('NAME' + endings[0])}")
    if path.suffix.lower() not in endings:
        raise UserError(f"the file must end in {' or '.join(endings)}, got {path}")
    place = path.resolve()
    if place.name.lower() in RESERVED and any((place.parent / mark).exists() for mark in MARKS):
        raise UserError(f"{path} is a file of the run, the study or the weights in that folder; choose another name")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: {folder} is not a writable folder; choose another place")
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(
            f"cannot write {path}: it needs {size:,} bytes and {free:,} are free; "
            "free some space or choose another place"
        )
    return path


def write_out(out: str | Path, content: str | dict[str, Any]) -> Path:
    """Write a text or JSON file and log its path."""
    path = write_whole(Path(out), content)
    log(f"written  {path}")
    return path


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Format rows as CSV that is safe to open in a spreadsheet; None is an empty cell. Text that begins like a formula
    gets the spreadsheets' text mark '; control characters and undecodable bytes are written as Python escapes.
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([csv_cell(value) for value in row] for row in rows)
    return file.getvalue()


def csv_cell(value: object) -> object:
    """Return a value as `csv_text` writes it."""
    if not isinstance(value, str):
        return value
    escaped = "".join(
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") else letter
        for letter in value
    )
    begins = unicodedata.normalize("NFKC", escaped.lstrip()[:1])  # full-width characters, too
    return f"'{escaped}" if begins in FORMULA else escaped
