# SPDX-License-Identifier: Apache-2.0
"""metrics.csv: one line a measurement, appended as it is taken, cut back to the checkpoint when a run resumes."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from ..disk import replacing, unwritable
from ..errors import UserError

COLUMNS = ("step", "epoch", "name", "value")


class MetricsFile(Logger):
    """Lightning's measurements as rows `step, epoch, name, value`.

    Args:
        path: the file; continued where it exists.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Settings are in recipe.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        values = dict(metrics)
        epoch = int(values.pop("epoch", 0))
        new = not self.path.exists()
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if new:
                    writer.writerow(COLUMNS)
                writer.writerows((step or 0, epoch, name, repr(float(value))) for name, value in values.items())
        except OSError as error:
            raise unwritable(self.path, error) from error


def cut(path: Path, step: int) -> None:
    """Drop what was measured after a step (a killed run's last, unfinished stretch) and any torn last line.

    Raises: UserError if the file cannot be read as text.
    """
    if not path.exists():
        return
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == len(COLUMNS)]
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(path, error) from error
    kept = [row for row in rows if row[0] == "step" or (row[0].isdigit() and int(row[0]) < step)]
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(kept)


def read_history(path: Path) -> list[dict[str, float]]:
    """A row an epoch, counted from 1, with the last value in it of everything that was logged.

    Raises: UserError if the file holds no such table.
    """
    epochs: dict[int, dict[str, float]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                epochs.setdefault(int(row["epoch"]) + 1, {})[row["name"]] = float(row["value"])
    except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
        raise damaged(path, error) from error
    return [{"epoch": epoch, **values} for epoch, values in sorted(epochs.items())]


def damaged(path: Path, error: Exception) -> UserError:
    """What to tell a person whose measurements cannot be read."""
    return UserError(f"{path} is damaged ({error}); take it away: the run goes on without its curves so far")
