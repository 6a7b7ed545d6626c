# SPDX-License-Identifier: Apache-2.0
"""Files that a person asks for: checked before the work that fills them, and safe to open in a spreadsheet."""

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

FORMULA = ("=", "+", "-", "@")  # how text begins that a spreadsheet would compute

MARKS = ("run.json", "budget.json", "study.json", "model.safetensors")
"""Files by which a folder is that of a run, of one within a budget, of a study, or of weights."""
KEPT = {
    *MARKS,
    *("recipe.yaml", "split.json", "metrics.csv", "evaluation.json", "multilabel.json"),
    *("dense.json", "found.json", "references.json", "explain.json", "robustness.json"),
    *("robustness.csv", "localization.json", "agreement.json", "probe.json", "report.html"),
    *("config.json", "study.yaml", "splits.json", "contents.json", "table.csv", "summary.csv"),
}
"""Files of these folders, in formats that a user may name."""


def check_out(out: str | Path, *endings: str, size: int = 1) -> Path:
    """The file to write.

    Args:
        out: where a person wants it.
        endings: that it may have, such as ".csv".
        size: bytes that it will take at least.

    Raises: UserError if it has another ending, lies where it cannot be written, or is a file of a run's own.
    """
    path = Path(out)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file: {path / ('NAME' + endings[0])}")
    if path.suffix.lower() not in endings:
        raise UserError(f"this is written as {' or '.join(endings)}, got {path}")
    place = path.resolve()
    if place.name.lower() in KEPT and any((place.parent / mark).exists() for mark in MARKS):
        raise UserError(f"{path} is a file of the run, the study or the weights in that folder; choose another name")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: {folder} is no folder that may be written; choose another place")
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(
            f"cannot write {path}: it takes {size:,} bytes and {free:,} are free; "
            "free some space or choose another place"
        )
    return path


def write_out(out: str | Path, content: str | dict[str, Any]) -> Path:
    """Write a text or JSON file that `out` names, and say so. Raises: as `write_whole`."""
    path = write_whole(Path(out), content)
    log(f"written  {path}")
    return path


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV whose text stays text: numbers are written as they are, None as nothing.

    Names come from strangers' files. Text that begins as a formula does is led by ', the spreadsheets' own mark of
    text; characters that steer a terminal, and bytes that are no text, are written as Python escapes.
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    shown = "".join(
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") else letter
        for letter in value
    )
    begins = unicodedata.normalize("NFKC", shown.lstrip()[:1])  # wide letters of East Asia count too
    return f"'{shown}" if begins in FORMULA else shown
