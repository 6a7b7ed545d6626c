# SPDX-License-Identifier: Apache-2.0
"""Time of a recipe's training on this machine and these images, measured by a few of its steps."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ..config.resolve import Config
from ..data.batches.targets import Batch
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..errors import UserError
from ..methods.method import Method
from ..models.similarity import IMAGES
from ..models.tta import ALL_VIEWS, TTA_VIEWS, TTAMode
from ..tasks.task import task_class
from ..training.assemble import assemble
from ..training.feed import DENSE_BATCH, ValidationLoader
from ..training.module import TrainingModule
from ..training.run import fit
from ..training.run_folder import RunFolder
from ..training.session import Session, of_images

MAX_SECONDS = 1.5
MAX_STEPS = 8
MIN_STEPS = 4  # the first step includes one-time work, and of three others one may be an outlier
MAX_IMAGES = 64
EPOCH = 0.03  # seconds of the engine at an epoch's beginning and end, two CPU cores
BARE = {
    **{"train.validate": "none", "train.best_by": None, "train.stop_when_perfect": None},
    **{"student.head": None, "engine.replay_gb": None, "engine.logger": "none"},
}
"""Recipe keys that switch off what is no part of a step: validation, which is measured separately; training of a head
before the first step; cached predictions of teachers; loggers."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the parts of a training, without its start."""

    step: float
    steps: int
    inference: float  # of a validation image, without gradients
    val_images: int
    held_out_images: int  # predicted at the end; counted for each view, and for each set of weights
    checkpoint: float = 0.0
    validate_every: int = 1
    # Of a held-out image at the end, in float32 (for objects and pixels in the original's size, with their scores);
    # None if it equals `inference`.
    evaluation: float | None = None
    probed_images: int = 0  # images whose features train the head before the first step
    once: float = 0.0  # besides these, such as a teacher's predictions for fixed views

    @property
    def learning(self) -> float:
        """An epoch's optimizer steps."""
        return self.step * self.steps

    @property
    def validation(self) -> float:
        """One validation."""
        return self.inference * self.val_images

    @property
    def epoch(self) -> float:
        """An epoch with its part of a validation, and its checkpoint."""
        return self.learning + self.validation / self.validate_every + self.checkpoint + EPOCH

    def training(self, epochs: float) -> float:
        """Return the seconds of a whole cell: a head on features, the epochs, then the evaluation."""
        evaluation = self.inference if self.evaluation is None else self.evaluation
        return self.epoch * epochs + evaluation * (self.held_out_images + self.probed_images) + self.once

    def scaled(self, factor: float) -> "StepTimes":
        """Return the times of a network that takes `factor` times as long."""
        evaluation = None if self.evaluation is None else self.evaluation * factor
        return replace(self, step=self.step * factor, inference=self.inference * factor, evaluation=evaluation)


def held_out_images(config: Config, dataset: Dataset) -> int:
    """Return the predictions at the end: of validation images with each set of weights, of test images with those that
    validation images choose, and of the images whose features are saved.

    Views of an image count separately.
    """
    spec = config.method_class.batch_spec
    views: TTAMode | Literal["best"] = config.images.eval_views if spec.labels else "one"
    val, test = (0 if split is None else len(split) for split in (dataset.val, dataset.test))
    saved = min(len(dataset.train), IMAGES) + min(val, IMAGES) if spec.labels and spec.contents == "classes" else 0
    chosen = config.train.validate == "val" and val > 0
    sets = 1 + chosen + bool(config.train.ema_decay)  # the last weights, the best, their moving average
    predicted = sets * val + (1 if chosen else sets) * test
    if views != "best":
        return len(TTA_VIEWS[views]) * predicted + sets * saved
    return (len(ALL_VIEWS) * (predicted + val) if val else predicted) + sets * saved


def measure_step_times(
    config: Config,
    dataset: Dataset,
    folder: Path,
    seed: int = 0,
    now: Callable[[], float] = time.perf_counter,
    patience: float = 1.0,
) -> StepTimes:
    """Begin an ordinary training, end it after a few steps, and remove its files. `now`: a clock; `time.process_time`
    counts the time of the processors. `patience`: factor on `MAX_STEPS` and `MAX_SECONDS`.
    """
    if config.method_class.closed_form:
        raise UserError(
            f"method {config.method_name} takes no steps whose time could be measured; compare frozen networks by "
            "viticulture probe NETWORK NETWORK ... DATA"
        )
    held_out = held_out_images(config, dataset)
    probed = len(dataset.train) + 2 * len(dataset.val or ()) if config.student.head else 0  # the start is validated
    config = of_images(config, dataset)
    watch = dataset.held_out.get(config.train.validate)
    longer = {"train.epochs": max(int(MAX_STEPS * patience), config.train.epochs)}
    config = config.changed({**BARE, **longer}, by="study")
    method, _ = assemble(config, dataset, seed)
    shutil.rmtree(folder, ignore_errors=True)  # left after a kill
    try:
        folder.mkdir(parents=True)
        run = RunFolder(folder)
        run.write("run.json", {"status": "measured"})  # without it a training assumes that its folder was removed
        session = Session(run, config, dataset, method, seed, [])
        clock = Clock(session, now, patience)
        fit(session, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return StepTimes(
        step=median(clock.steps[1:]),
        steps=method.length.steps_per_epoch,
        inference=clock.inference,
        val_images=len(watch) if watch is not None else 0,
        held_out_images=held_out,
        checkpoint=min(clock.checkpoints),
        validate_every=config.train.validate_every,
        evaluation=clock.evaluation,
        probed_images=probed,
    )


class Clock(Callback):
    """Times the steps of a training and its checkpoints, and ends it; arguments as for `measure_step_times`."""

    def __init__(self, session: Session, now: Callable[[], float] = time.perf_counter, patience: float = 1.0) -> None:
        self.session, self.now, self.patience = session, now, patience
        self.steps: list[float] = []
        self.checkpoints: list[float] = []
        self.inference, self.evaluation = 0.0, 0.0
        self.last = self.began = now()
        self.checkpoint_from: float | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_checkpoint()
        self.last = self._now()
        if not self.steps:
            self.began = self.last

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        now = self._now()
        self.steps.append(now - self.last)
        self.last = now
        enough = len(self.steps) >= MIN_STEPS and now - self.began > MAX_SECONDS * self.patience
        trainer.should_stop = enough or len(self.steps) >= int(MAX_STEPS * self.patience)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.checkpoint_from = self._now()  # Lightning calls what writes checkpoints last

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_checkpoint()
        assert isinstance(pl_module, TrainingModule)
        method = pl_module.method
        split = "val" if self.session.dataset.val is not None else "test"
        held = self.session.dataset.val if split == "val" else self.session.dataset.test
        if held is not None:
            number = DENSE_BATCH if self.session.dataset.annotations else MAX_IMAGES
            some = held.part(torch.arange(min(len(held), number)))
            batch = next(iter(ValidationLoader(some, self.session, trainer.strategy.root_device, split)))
            pl_module.eval()
            with torch.inference_mode():
                self.evaluation = self._timed(self._evaluation(method, some, batch, split)) / len(some)
                with trainer.precision_plugin.val_step_context():
                    self.inference = self._timed(lambda: method.all_metrics(batch)) / len(some)

    def _evaluation(self, method: Method, some: Images, batch: Batch, split: str) -> Callable[[], object]:
        """Return the evaluation of held-out images after a training."""
        annotations = self.session.dataset.annotations.get(split)
        work = task_class(type(method)).final_evaluation(method, some, annotations)
        return work or (lambda: method.all_metrics(batch))

    def _timed(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call after a first one."""
        call()
        began = self._now()
        call()
        return self._now() - began

    def _end_checkpoint(self) -> None:
        if self.checkpoint_from is not None:
            self.checkpoints.append(self._now() - self.checkpoint_from)
        self.checkpoint_from = None

    def _now(self) -> float:
        """Return the time after the device has finished."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.now()
