# SPDX-License-Identifier: Apache-2.0
"""metrics.csv: one line a measurement, appended as it is taken, cut back to the checkpoint when a run resumes.

What training batches measure stands there twice: `train/loss` is a single batch, `train/loss_epoch` the mean over all
batches of an epoch, as the student saw them: augmented, each before its step.
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
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if file.tell() == 0:  # new, or a kill came before its first line
                    writer.writerow(COLUMNS)
                writer.writerows((step or 0, epoch, name, repr(float(value))) for name, value in values.items())
        except OSError as error:
            raise unwritable(self.path, error) from error


class EpochMeans(Callback):
    """Writes the means over an epoch of what its batches logged; they go on where a resumed run stopped, those of every
    process by themselves."""

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.batches = Counter[str]()
        self.written: dict[str, float] = {}

    @property
    def means(self) -> dict[str, float]:
        """Of the epoch so far; of the last one, where the next has not begun. Waits for the device."""
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
            own = (total / self.batches[name]).to(pl_module.device)  # a checkpoint's sums are on the CPU
            mean = trainer.strategy.reduce(own, reduce_op="mean")
            self.written[name] = float(mean)
        values = {f"train/{name}_epoch": self.written[name] for name in self.sums}
        self.sums, self.batches = {}, Counter()
        for logger in trainer.loggers:
            logger.log_metrics({**values, "epoch": trainer.current_epoch}, trainer.global_step - 1)

    def state_dict(self) -> dict[str, Any]:
        sums = {name: total.cpu() for name, total in self.sums.items()}
        return {"processes": of_every({"sums": sums, "batches": dict(self.batches)})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        every = state_dict.get("processes", [state_dict])  # earlier runs kept the first process's alone
        own = every[rank() % len(every)]
        self.sums, self.batches = own["sums"], Counter(own["batches"])


def cut(path: Path, step: int) -> None:
    """Drop what was measured after a step (a killed run's last, unfinished stretch) and any torn last line.

    Raises: UserError if the file cannot be read as text.
    """
    if not path.exists():
        return
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == len(COLUMNS)]
        kept = [row for row in rows if row[0] == "step" or (row[0].isdigit() and int(row[0]) < step)]
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(path, error) from error
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(kept)


def read_history(path: Path) -> list[dict[str, float]]:
    """A row an epoch, counted from 1, with the last value in it of everything that was logged; none without a file.

    Raises: UserError if the file holds no such table.
    """
    epochs: dict[int, dict[str, float]] = {}
    if not path.exists():  # a run's on the Hub stays where it was trained
        return []
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
