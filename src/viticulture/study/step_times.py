# SPDX-License-Identifier: Apache-2.0
"""How long a recipe takes on this machine and these images, measured by a few steps of its own training."""

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
from ..data.batches.batch import Batch
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..methods.method import Method
from ..models.views import EVERY, NAMED, Views
from ..tasks.task import task_class
from ..training.assemble import assemble
from ..training.feed import DENSE_BATCH, ValidationLoader
from ..training.module import TrainingModule
from ..training.run import fit
from ..training.run_folder import RunFolder
from ..training.session import Session

MAX_SECONDS = 1.5
MAX_STEPS = 8
MIN_STEPS = 4
"""The first one pays for what happens once, and of three others one may be an outlier."""
MOST_IMAGES = 64
EPOCH = 0.03
"""Seconds that the engine takes for an epoch's beginning and end, two CPU cores."""
BARE = {
    **{"train.validate": "none", "train.best_by": None, "train.stop_when_perfect": None},
    **{"engine.replay_gb": None, "engine.logger": "none"},
}
"""Keys of what is no part of a step: validation, measured separately, and what needs it; answers that may be known
already; and a service that would keep the trial as a run."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds that a training takes, apart from what it costs to start.

    Args:
        step: an optimizer step, guides included.
        steps: of an epoch.
        inference: measuring a validation image, without gradients.
        val_images: images measured after every `validate_every`-th epoch.
        held_out_images: images measured at the end, for each kept set of weights; one that is asked about by several
            views counts as so many.
        keep: writing a checkpoint.
        validate_every: epochs from one validation to the next.
        answer: answering about a held-out image in the end, which is done in float32 (of objects and pixels in the
            original's size, with the judging of it); None for as long as `inference`.
        sets: of weights that are kept: the best, the last and, where there is one, their moving average.
    """

    step: float
    steps: int
    inference: float
    val_images: int
    held_out_images: int
    keep: float = 0.0
    validate_every: int = 1
    answer: float | None = None
    sets: int = 2

    @property
    def learning(self) -> float:
        """An epoch's optimizer steps."""
        return self.step * self.steps

    @property
    def validation(self) -> float:
        """Measuring the validation images once."""
        return self.inference * self.val_images

    @property
    def epoch(self) -> float:
        """An epoch with its share of a validation, and its checkpoint."""
        return self.learning + self.validation / self.validate_every + self.keep + EPOCH

    def training(self, epochs: float) -> float:
        """A whole cell: its epochs, then every kept set of weights on every held-out image."""
        answer = self.inference if self.answer is None else self.answer
        return self.epoch * epochs + self.sets * answer * self.held_out_images

    def scaled(self, factor: float) -> "StepTimes":
        """That of a network which takes so many times as long."""
        answer = None if self.answer is None else self.answer * factor
        return replace(self, step=self.step * factor, inference=self.inference * factor, answer=answer)


def held_out_images(config: Config, dataset: Dataset) -> int:
    """How often a recipe's student is asked about held-out images in the end, for each set of weights.

    Views of an image count one by one; what chooses them is shared by two sets.
    """
    wanted: Views | Literal["best"] = config.images.eval_views if config.method_class.batch_spec.labels else "one"
    val, test = (0 if split is None else len(split) for split in (dataset.val, dataset.test))
    if wanted != "best":
        return len(NAMED[wanted]) * (val + test)
    return len(EVERY) * (val + test + val // 2) if val else test


def measure_step_times(
    config: Config,
    dataset: Dataset,
    folder: Path,
    seed: int = 0,
    now: Callable[[], float] = time.perf_counter,
    patience: float = 1.0,
) -> StepTimes:
    """Begin a training as any other, end it after a few steps, and forget what was learnt.

    Args:
        config: settled or not.
        dataset: the images of one cell.
        folder: on the disk that the study is on; made, and removed with what was learnt.
        seed: of weights and order.
        now: tells the time; `time.process_time` counts that of the processors.
        patience: factor on `MAX_STEPS` and `MAX_SECONDS`: more steps tell more.
    """
    held_out = held_out_images(config, dataset)
    config = config.changed(
        {f"images.{key}": value for key, value in vars(dataset.image_settings).items()}, by="images"
    )
    watch = dataset.held_out.get(config.train.validate)
    longer = {"train.epochs": max(int(MAX_STEPS * patience), config.train.epochs)}
    config = config.changed({**BARE, **longer}, by="study")
    method, _ = assemble(config, dataset, seed)
    shutil.rmtree(folder, ignore_errors=True)  # what a kill left
    try:
        folder.mkdir(parents=True)
        run = RunFolder(folder)
        run.write("run.json", {"status": "measured"})  # without it a training would take its folder for removed
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
        keep=min(clock.keeps),
        validate_every=config.train.validate_every,
        answer=clock.answer,
        sets=3 if config.train.ema_decay else 2,
    )


class Clock(Callback):
    """Times the steps of a training and its checkpoints, and ends it after `MAX_STEPS` or `MAX_SECONDS`.

    Args:
        session: what is trained.
        now: tells the time.
        patience: factor on both.
    """

    def __init__(self, session: Session, now: Callable[[], float] = time.perf_counter, patience: float = 1.0) -> None:
        self.session, self.now, self.patience = session, now, patience
        self.steps: list[float] = []
        self.keeps: list[float] = []
        self.inference, self.answer = 0.0, 0.0
        self.last = self.began = now()
        self.kept_from: float | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kept()
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
        self.kept_from = self._now()  # Lightning calls what writes checkpoints last

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kept()
        assert isinstance(pl_module, TrainingModule)
        method = pl_module.method
        split = "val" if self.session.dataset.val is not None else "test"
        held = self.session.dataset.val if split == "val" else self.session.dataset.test
        if held is not None:
            most = DENSE_BATCH if self.session.dataset.annotations else MOST_IMAGES
            some = held.part(torch.arange(min(len(held), most)))
            batch = next(iter(ValidationLoader(some, self.session, trainer.strategy.root_device, split)))
            pl_module.eval()
            with torch.inference_mode():
                self.answer = self._timed(self._last_look(method, some, batch, split)) / len(some)
                with trainer.precision_plugin.val_step_context():
                    self.inference = self._timed(lambda: method.all_metrics(batch)) / len(some)

    def _last_look(self, method: Method, some: Images, batch: Batch, split: str) -> Callable[[], object]:
        """What is done with held-out images once a training has ended."""
        annotations = self.session.dataset.annotations.get(split)
        work = task_class(type(method)).final_evaluation(method, some, annotations)
        return work or (lambda: method.all_metrics(batch))

    def _timed(self, work: Callable[[], object]) -> float:
        """Seconds that a work takes after its first time."""
        work()
        began = self._now()
        work()
        return self._now() - began

    def _kept(self) -> None:
        if self.kept_from is not None:
            self.keeps.append(self._now() - self.kept_from)
        self.kept_from = None

    def _now(self) -> float:
        """Seconds on a clock, once the device is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.now()
