# SPDX-License-Identifier: Apache-2.0
"""metrics.csv: one row a metric, appended as it is logged, cut back to the checkpoint when a run resumes.

Training metrics have two names: `train/loss` is of a single batch, `train/loss_epoch` the mean over all batches of an
epoch as the student processed them: augmented, each before its step.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch.nn.utils import get_total_norm

from ..disk import replacing, unwritable
from ..errors import UserError
from .module import module_of
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


ADVICE = "try a lower --lr, a longer --schedule.warmup_epochs, --train.clip_norm 1 or --engine.precision 32"


class StepMetrics(Callback):
    """Logs metrics of training steps and their means over an epoch, and stops at the first loss or weights that are not
    finite, before the weights are saved or evaluated.

    A step only keeps its scalars. All that were kept are read together, which waits for the device once. Each process
    continues its sums when a run resumes.

    Args:
        every_steps: between two reads. The step that an error names is exact all the same.
    """

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self.kept: list[tuple[int, tuple[str, ...], dict[str, torch.Tensor]]] = []
        """Step, names of its loss terms, its scalars."""
        self.sums: dict[str, float] = {}
        self.batches = Counter[str]()
        self.written: dict[str, float] = {}

    @property
    def means(self) -> dict[str, float]:
        """Means of the epoch so far; of the last one before the next begins. Waits for the device."""
        self.read()
        return {name: float(total) / max(self.batches[name], 1) for name, total in self.sums.items()} or self.written

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module, done = module_of(pl_module), batch_idx + 1
        self.kept.append((trainer.global_step, module.terms, module.method.logs))
        if batch_idx % self.every_steps == 0 or done == trainer.num_training_batches:
            self.read()
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if done % trainer.accumulate_grad_batches == 0 and trainer.global_step % every == 0:
            logs = {**module.method.logs, **module.guide_logs}
            values = dict(zip((f"train/{name}" for name in logs), scalars(logs.values()), strict=True))
            _log(trainer, {**values, "lr": module.rate})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        means = torch.tensor(list(self.means.values()), dtype=torch.float64).float().to(pl_module.device)
        reduced = trainer.strategy.reduce(means, reduce_op="mean").tolist()
        self.written = dict(zip(self.sums, reduced, strict=True))
        self.sums, self.batches = {}, Counter()
        _log(trainer, {f"train/{name}_epoch": value for name, value in self.written.items()})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.read()
        trained = [weight for weight in pl_module.parameters() if weight.requires_grad]
        if trained and not get_total_norm(trained, math.inf).isfinite():
            raise UserError(f"weights are no finite numbers after step {trainer.global_step}; {ADVICE}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.on_validation_start(trainer, pl_module)  # between two reads, too, nothing broken is saved

    def read(self) -> None:
        """Read the scalars that are kept and add them to the means. Raises: UserError for a loss that is not finite."""
        kept, self.kept = self.kept, []
        values = iter(scalars([value for _, _, logs in kept for value in logs.values()]))
        for step, terms, logs in kept:
            found = {name: next(values) for name in logs}
            if not all(map(math.isfinite, (found[name] for name in terms))):
                listed = ", ".join(f"{name} {found[name]:.4g}" for name in terms)
                raise UserError(f"the loss is no finite number at step {step} ({listed}); {ADVICE}")
            for name, value in found.items():
                counts = not math.isnan(value)  # a batch may have nothing to measure, such as no label
                self.sums[name] = self.sums.get(name, 0.0) + (value if counts else 0.0)
                self.batches[name] += counts

    def state_dict(self) -> dict[str, Any]:
        self.read()
        return {"processes": of_every({"sums": self.sums, "batches": dict(self.batches)})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        every = state_dict["processes"]
        ours = every[rank() % len(every)]
        self.sums, self.batches = {name: float(total) for name, total in ours["sums"].items()}, Counter(ours["batches"])


def scalars(values: Iterable[torch.Tensor]) -> list[float]:
    """Return scalars as numbers; those of a device are read at once, as one tensor."""
    listed = list(values)
    there = [value.float() for value in listed if not value.is_cpu]
    read = iter(torch.stack(there).tolist() if there else ())
    return [value.item() if value.is_cpu else next(read) for value in listed]


def _log(trainer: Trainer, values: dict[str, float]) -> None:
    """Send numbers to all loggers as those of the step that has just ended."""
    measured = {name: value for name, value in values.items() if not math.isnan(value)}
    for logger in trainer.loggers:
        logger.log_metrics({**measured, "epoch": trainer.current_epoch}, trainer.global_step - 1)


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
    """Return a row an epoch, counted from 1, with the last value in it of every metric."""
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
