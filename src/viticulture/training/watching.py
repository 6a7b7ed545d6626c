# SPDX-License-Identifier: Apache-2.0
"""Validation: when it runs, and which weights are the best."""

from math import isnan
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..errors import UserError, counted
from ..models.weights.files import save
from ..scores.intervals import error_of_recalls, indistinct
from .module import TrainingModule
from .run_folder import RunFolder


class BestCheckpoint(Callback):
    """Saves the best weights by the validation split: of the epochs that are as good as the best one, the last.

    An accuracy is as good as a higher one unless it lies more than the higher one's standard error below it (that of
    the mean recall where classes are balanced). Few images would otherwise select an early epoch by chance. Other
    metrics must be as high.

    Lightning's check before the first step counts as epoch 0: with a probed head it validates the network as it starts,
    which stays where every epoch is worse, by however little.

    Args:
        best_by: the metric; None for the method's.
    """

    def __init__(self, run: RunFolder, metadata: dict[str, Any], images: int, best_by: str | None = None) -> None:
        self.run, self.metadata, self.images, self.best_by = run, metadata, images, best_by
        self.best, self.best_epoch = float("-inf"), -1
        self.start = float("-inf")  # of a network with a probed head
        self.error: float | None = None  # of the best balanced accuracy

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        method = pl_module.method
        metric = self.best_by or method.best_metric
        name, values = f"val/{metric}", trainer.callback_metrics
        if self.best_by and name not in values:
            raise UserError(f"train.best_by: method {type(method).__name__} does not measure {self.best_by}")
        value = float(values[name] if name in values else -values["val/loss"])
        if name in values and isnan(value):  # no image could be evaluated, so that all epochs are alike
            value = 0.0
        if value > self.best:
            self.best = value
            recalls = pl_module.sums.get("recalls")
            self.error = None if recalls is None else error_of_recalls(*recalls)
        level = indistinct(metric if name in values else "loss", self.best, self.images)
        if trainer.sanity_checking:
            self.start = value
        no_worse = trainer.sanity_checking or value >= self.start
        if no_worse and value >= self.best - (level if self.error is None else self.error):
            self.best_epoch = -1 if trainer.sanity_checking else trainer.current_epoch
            if trainer.is_global_zero:
                self.run.check_there()
                metadata = {**self.metadata, "epoch": self.best_epoch + 1}
                save(method.student, self.run.weights("best"), method.data_spec, metadata)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "error": self.error, "start": self.start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_epoch, self.error = state_dict["best"], state_dict["best_epoch"], state_dict["error"]
        self.start = state_dict["start"]


WARN_FROM = 10
"""Perfect validations in a row from which a warning is given, where half of the epochs came after the first of them."""


class Perfect(Callback):
    """Counts perfect validations in a row and ends the training after so many; None never ends it."""

    def __init__(self, stop_after: int | None) -> None:
        self.stop_after, self.count, self.since = stop_after, 0, 0

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        if trainer.sanity_checking:
            return
        value = trainer.callback_metrics.get(f"val/{pl_module.method.best_metric}")
        perfect = value is not None and float(value) >= 1
        self.since = (self.since or trainer.current_epoch + 1) if perfect else 0
        self.count = self.count + 1 if perfect else 0
        if self.stop_after is not None and self.count >= self.stop_after:
            trainer.should_stop = True

    def warning(self, images: int, trained: int, planned: int) -> str:
        """Return a warning after a training; empty where most of it improved on validation images."""
        if self.stop_after is not None and self.count >= self.stop_after and trained < planned:
            return (
                f"ended after epoch {trained} of {planned}: validation, on {counted(images, 'image')}, was perfect "
                f"{self.count} times in a row (train.stop_when_perfect)"
            )
        if self.count < WARN_FROM or 2 * (trained - self.since) < trained:
            return ""
        return (
            f"validation, on {counted(images, 'image')}, was perfect from epoch {self.since} to the last, {trained}, "
            f"so it cannot compare these; --stop-when-perfect {3 * WARN_FROM} ends a training sooner"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "since": self.since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count, self.since = state_dict["count"], state_dict["since"]


class ValidateEvery(Callback):
    """Validates after every n-th epoch and the last one, also one in which an earlier callback ends the training."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        number = trainer.current_epoch + 1
        due = number % self.every == 0 or number == pl_module.method.length.epochs
        trainer.check_val_every_n_epoch = number if due else number + 1  # Lightning validates where this divides

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # which a run resumed inside an epoch does not get

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.should_stop:
            trainer.check_val_every_n_epoch = trainer.current_epoch + 1
