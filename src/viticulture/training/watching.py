# SPDX-License-Identifier: Apache-2.0
"""What happens at a validation: when it is due, and whose weights are kept as the best."""

from math import isnan
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..errors import UserError, counted
from ..models.weights.files import save
from ..scores.intervals import error_of_recalls, indistinct
from .module import TrainingModule
from .run_folder import RunFolder


class BestCheckpoint(Callback):
    """Keeps the weights that are best by the validation split: of the epochs that it cannot tell from the best one, the
    last.

    An accuracy is told from a higher one where it is more than the higher one's standard error below it, which is that
    of the mean of recalls where classes are balanced: few images would else choose an early epoch by chance, from a
    training whose rate had not fallen yet. Other measures must be as high.

    Args:
        run: the run's folder.
        facts: for the weights' config.json.
        images: of the split.
        best_by: the measure; None for the method's own.
    """

    def __init__(self, run: RunFolder, facts: dict[str, Any], images: int, best_by: str | None = None) -> None:
        self.run, self.facts, self.images, self.best_by = run, facts, images, best_by
        self.best, self.best_epoch = float("-inf"), -1
        self.error: float | None = None  # of a balanced accuracy that is best

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        measure = self.best_by or pl_module.method.best_metric
        best = f"val/{measure}"
        metrics = trainer.callback_metrics
        if self.best_by and best not in metrics:
            raise UserError(f"train.best_by: method {type(pl_module.method).__name__} does not measure {self.best_by}")
        value = float(metrics[best] if best in metrics else -metrics["val/loss"])
        if best in metrics and isnan(value):  # no image could be judged, so that all epochs are alike
            value = 0.0
        if value > self.best:
            self.best = value
            counts = pl_module.sums.get("recalls")  # of all images: every process measures the whole split
            self.error = None if counts is None else error_of_recalls(*counts)
        level = indistinct(measure if best in metrics else "loss", self.best, self.images)
        if value >= self.best - (level if self.error is None else self.error):
            self.best_epoch = trainer.current_epoch
            if trainer.is_global_zero:
                self.run.check_there()
                facts = {**self.facts, "epoch": self.best_epoch + 1}
                save(pl_module.method.student, self.run.weights("best"), pl_module.method.data_spec, facts)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "error": self.error}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_epoch = state_dict["best"], state_dict["best_epoch"]
        self.error = state_dict.get("error")  # not in checkpoints of before


TOLD_FROM = 10
"""Perfect measurements in a row from which a note is printed, where half of the epochs came after the first of them."""


class Perfect(Callback):
    """Counts the measurements in a row that were perfect on validation images, and ends the training after so many.

    Args:
        stop_after: measurements; None never ends it.
    """

    def __init__(self, stop_after: int | None) -> None:
        self.stop_after, self.count, self.since = stop_after, 0, 0

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        value = trainer.callback_metrics.get(f"val/{pl_module.method.best_metric}")
        perfect = value is not None and float(value) >= 1
        self.since = (self.since or trainer.current_epoch + 1) if perfect else 0
        self.count = self.count + 1 if perfect else 0
        if self.stop_after is not None and self.count >= self.stop_after:
            trainer.should_stop = True

    def warning(self, images: int, trained: int, planned: int) -> str:
        """Return a note about a training after its end; empty where most of it improved on validation images.

        Args:
            images: of the validation split.
            trained: epochs.
            planned: epochs.
        """
        if self.stop_after is not None and self.count >= self.stop_after and trained < planned:
            return (
                f"ended after epoch {trained} of {planned}: validation, on {counted(images, 'image')}, was perfect "
                f"{self.count} times in a row (train.stop_when_perfect)"
            )
        if self.count < TOLD_FROM or 2 * (trained - self.since) < trained:
            return ""
        return (
            f"validation, on {counted(images, 'image')}, was perfect from epoch {self.since} to the last, {trained}, "
            f"so it cannot compare these; --stop-when-perfect {3 * TOLD_FROM} ends a training sooner"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "since": self.since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count, self.since = state_dict["count"], state_dict["since"]


class WatchEvery(Callback):
    """Validates after every n-th epoch and the last one, also one within which a callback before this one ends the
    training.

    Args:
        every: n.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._decide(trainer, pl_module)  # the epoch that a resumed run is in the middle of does not start again

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._decide(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.should_stop:
            trainer.check_val_every_n_epoch = trainer.current_epoch + 1

    def _decide(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        number = trainer.current_epoch + 1
        due = number % self.every == 0 or number == module.method.length.epochs
        trainer.check_val_every_n_epoch = number if due else number + 1  # Lightning validates where this divides
