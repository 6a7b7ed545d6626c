# SPDX-License-Identifier: Apache-2.0
"""metrics.csv: one row a metric, appended as it is logged, cut back to the checkpoint when a run resumes.

Training metrics have two names: `train/loss` is of a single batch, `train/loss_epoch` the mean over all batches of an
epoch as the student processed them: augmented, each before its step.
"""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from ..disk import replacing, unwritable
from ..errors import UserError
from .module import TrainingModule
from .processes import of_every, rank

COLUMNS = ("step", "epoch", "name", "value")


class MetricsFile(Logger):
    """Lightning's metrics as rows `step, epoch, name, value` of a file, which is continued where it exists."""

    name, version = "metrics", ""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: settings are in recipe.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        values = dict(metrics)
        epoch = int(values.pop("epoch", 0))
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if file.tell() == 0:  # new, or killed before its first row
                    writer.writerow(COLUMNS)
                writer.writerows((step or 0, epoch, name, repr(float(value))) for name, value in values.items())
        except OSError as error:
            raise unwritable(self.path, error) from error


class EpochMeans(Callback):
    """Logs means over an epoch of what its batches logged; each process continues its sums when a run resumes."""

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.batches = Counter[str]()
        self.written: dict[str, float] = {}

    @property
    def means(self) -> dict[str, float]:
        """Means of the epoch so far; of the last one before the next begins. Waits for the device."""
        return {name: float(total) / self.batches[name] for name, total in self.sums.items()} or self.written

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        for name, value in pl_module.method.logs.items():
            self.sums[name] = self.sums[name] + value.float() if name in self.sums else value.float()
            self.batches[name] += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, total in self.sums.items():
            mean = (total / self.batches[name]).to(pl_module.device)  # a checkpoint's sums are on the CPU
            self.written[name] = float(trainer.strategy.reduce(mean, reduce_op="mean"))
        values = {f"train/{name}_epoch": self.written[name] for name in self.sums}
        self.sums, self.batches = {}, Counter()
        for logger in trainer.loggers:
            logger.log_metrics({**values, "epoch": trainer.current_epoch}, trainer.global_step - 1)

    def state_dict(self) -> dict[str, Any]:
        sums = {name: total.cpu() for name, total in self.sums.items()}
        return {"processes": of_every({"sums": sums, "batches": dict(self.batches)})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        every = state_dict["processes"]
        ours = every[rank() % len(every)]
        self.sums, self.batches = ours["sums"], Counter(ours["batches"])


def cut(path: Path, step: int) -> None:
    """Drop metrics after a step (a killed run's last, unfinished stretch) and any torn last row.

    Raises: UserError if the file cannot be read as text.
    """
    if not path.exists():
        return
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == len(COLUMNS)]
        kept = [row for row in rows if row[0] == "step" or (row[0].isdigit() and int(row[0]) < step)]
    except (OSError, ValueError, csv.Error) as error:
        raise _damaged(path, error) from error
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(kept)


def read_history(path: Path) -> list[dict[str, float]]:
    """Return a row an epoch, counted from 1, with the last value in it of every metric.

    Raises: UserError if the file holds no such table.
    """
    epochs: dict[int, dict[str, float]] = {}
    for _, epoch, name, value in _read(path):
        epochs.setdefault(epoch + 1, {})[name] = value
    return [{"epoch": epoch, **values} for epoch, values in sorted(epochs.items())]


def read_curves(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Return name -> (epochs done, value) for every metric, in the order of the file; values may be NaN or infinite.

        epochs done = (step + 1) / steps an epoch;  steps an epoch = max over rows of (step + 1) / (epoch + 1)

    A row written at the end of an epoch attains the maximum. Where a resumed run repeats steps, the later row counts.

    Raises: UserError if the file holds no such table.
    """
    rows = _read(path)
    try:
        steps = max(((step + 1) / (epoch + 1) for step, epoch, _, _ in rows), default=1.0)
        curves: dict[str, dict[float, float]] = {}
        for step, _, name, value in rows:
            curves.setdefault(name, {})[(step + 1) / steps] = value
    except ArithmeticError as error:
        raise _damaged(path, error) from error
    return {name: sorted(points.items()) for name, points in curves.items()}


def _read(path: Path) -> list[tuple[int, int, str, float]]:
    """Return the rows of the file, without a torn last one; none without a file, as of a run on the Hub."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = [row for row in csv.reader(file) if row] or [list(COLUMNS)]
        if tuple(head) != COLUMNS:
            raise LookupError(f"its columns must be {', '.join(COLUMNS)}, got {', '.join(head)}")
        whole = (row for row in rows if len(row) == len(COLUMNS))
        return [(int(step), int(epoch), name, float(value)) for step, epoch, name, value in whole]
    except (OSError, ValueError, LookupError, csv.Error) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged ({error}); remove it: the run goes on without its curves so far")
