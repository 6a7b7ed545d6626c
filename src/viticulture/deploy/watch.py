# SPDX-License-Identifier: Apache-2.0
"""Predict for images as they appear in a folder, each once; the file of predictions is the record."""

import csv
import io
import os
import time
from pathlib import Path
from typing import Any

from ..data.sources.folders import images_among, scan
from ..disk import decoded, file_lock, unwritable, write_whole
from ..errors import UserError, counted
from ..outputs import check_out, csv_cell
from ..table import Table
from ..tasks.task import Task
from ..text import log, readable

PAUSE = 1.0  # seconds between two scans of the folder
PATIENCE = 10  # scans for which an unreadable image stays unchanged before it is recorded: its writer may be slow


class Watch:
    """A folder whose new images are predicted and appended to a CSV file.

    An image is new if the file does not name it, by its full path, so a replaced image is not predicted again. It is
    read once its size and time have not changed between two scans. Rows of one image are written together; the last
    image of an interrupted watch is predicted again, and its rows replaced, as some of them may be missing.

    Args:
        out: the .csv file; it may hold predictions of an earlier watch.

    Raises: UserError if the folder or the file cannot be used, or the file has other columns.
    """

    def __init__(self, task: Task, folder: Path, out: Path, weights: str = "") -> None:
        if not folder.is_dir():
            raise UserError(f"--watch takes a folder, got {folder}")
        self.folder, self.out, self.task = folder.resolve(), check_out(out, ".csv"), task
        self.predictor = task.predictor(weights)
        self.waiting: dict[str, tuple[tuple[int, int], int]] = {}
        self.heading, self.problem = self._csv([]), ""
        self.recorded = self._recorded()

    def _csv(self, predictions: list[Any]) -> str:
        return self.task.prediction.csv(predictions, self.predictor.data_spec.classes)

    def _recorded(self) -> set[str]:
        """Read the images in the file as its cells name them, without the last one if it is still in the folder."""
        if not self.out.exists() or not self.out.stat().st_size:
            write_whole(self.out, self.heading)
            return set()
        text = decoded(self.out.read_bytes(), "replace")
        whole = text[: text.rfind("\n") + 1]
        if not whole.startswith(self.heading):
            raise UserError(f"{self.out} has other columns than predictions of this run; choose another --out")
        rows = [row for row in csv.reader(io.StringIO(whole)) if row][1:]
        if rows and rows[-1][0] in map(_cell, self._images()):
            last = rows[-1][0]
            while rows and rows[-1][0] == last:
                rows.pop()
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(rows)
        write_whole(self.out, self.heading + file.getvalue())
        return {row[0] for row in rows}

    def _images(self) -> list[str]:
        try:
            return [str(self.folder / file.path) for file in images_among(scan(self.folder)[0])]
        except OSError as error:
            raise UserError(f"cannot read the folder {self.folder}: {error.strerror}; waiting for it") from error

    def poll(self) -> list[Any]:
        """Scan the folder once, and predict for the new images that are complete. Returns: their predictions; none
        while the folder cannot be read, as that of a network drive, which is logged once."""
        try:
            images, self.problem = self._images(), ""
        except UserError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                log(f"note     {error}")
            return []
        before, self.waiting, ready = self.waiting, {}, []
        for name in sorted(name for name in images if _cell(name) not in self.recorded):
            try:
                status = Path(name).stat()
            except OSError:  # removed meanwhile
                continue
            signature = (status.st_size, status.st_mtime_ns)
            last, scans = before.get(name, (signature, -1))
            self.waiting[name] = signature, scans + 1 if last == signature else 0
            if self.waiting[name][1]:
                ready.append(name)
        predictions = []
        for name, (prediction, _) in zip(
            ready, self.predictor.predict([(name, Path(name)) for name in ready]), strict=True
        ):
            if not prediction.error or (self.waiting[name][1] >= PATIENCE and Path(name).exists()):
                self._append(prediction)
                self.recorded.add(_cell(name))
                del self.waiting[name]
                predictions.append(prediction)
        return predictions

    def _append(self, prediction: Any) -> None:
        rows = self._csv([prediction]).removeprefix(self.heading)
        try:
            with self.out.open("a", encoding="utf-8", newline="") as file:
                file.write(rows)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.out, error) from error


def _cell(name: str) -> str:
    return str(csv_cell(readable(name)))


def _line(table: Table) -> str:
    """Return a table's only row as text, with the names of its columns after the first."""
    (row,), (cells,) = table.rows, table.texts()
    named = zip(table.columns, row, cells, strict=True)
    return "  ".join(
        [cells[0], *(f"{column.name} {text}" for column, cell, text in [*named][1:] if cell not in ("", None))]
    )


def watch(task: Task, folder: Path, out: Path, weights: str = "") -> None:
    """Predict for images as they appear in a folder until it is interrupted; log a line an image.

    Raises: UserError as `Watch`, and if another process writes the file.
    """
    check_out(out, ".csv")
    try:
        with file_lock(out.with_name(f".{out.name}.lock"), wait=False, fix="choose another --out"):
            watcher = Watch(task, folder, out, weights)
            log(f"watching {folder}; predictions go to {out} ({counted(len(watcher.recorded), 'image')} so far)")
            while True:
                for prediction in watcher.poll():
                    log(_line(task.prediction.table([prediction])))
                time.sleep(PAUSE)
    except TimeoutError as error:
        raise UserError(f"another process writes {out}; stop it, or choose another --out") from error
