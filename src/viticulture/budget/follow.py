# SPDX-License-Identifier: Apache-2.0
"""Train a plan's stages one after the other, or resume them wherever a kill has stopped them.

A stage's length is planned, corrected when it begins by the time of the earlier stages, and fixed within its warm-up by
the time of its first epochs. A stage that was interrupted keeps its length.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..config.keys import STAGES
from ..disk import sweep
from ..errors import counted
from ..training.length import check_length, may_change, resumed_session, set_length
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of, dataset_of, folder_of, last_place
from ..training.session import Session, begin, reopen
from .budget import TimeBudget
from .choices import MAX_EPOCHS
from .lengths import MARGIN, calibration_epochs, remaining_epochs, slowdown_of, stage_seconds
from .plan import BudgetPlan, check_version, read_plan


class Stopwatch(Callback):
    """Times a training's epochs, except for the first step, which includes work that is done once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.first, self.last = now, 0.0, 0.0
        self.steps = list[float]()
        self.ended = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = self.now()
        if batch_idx:  # an epoch's first step has what came between two epochs before it
            self.steps.append(now - self.last)
        self.first, self.last = self.first or now, now

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.ended = self.now()

    @property
    def seconds(self) -> float:
        """Seconds of all epochs and the time between them; the first step counts as long as others."""
        return mean(self.steps) + self.ended - self.first


@dataclass(frozen=True)
class Calibration:
    """The first epochs of a stage, whose time decides its length."""

    epochs: int
    stopwatch: Stopwatch
    # Called once they are trained: writes the length and returns the session that resumes.
    fix: Callable[[Session], Session]


TrainStage = Callable[[Session, Calibration | None], Any]
"""Trains and evaluates a session, after its calibration if there is one; marks the run as finished in run.json."""


def follow(
    run: Path,
    train_stage: TrainStage,
    log: Callable[[str], None],
    data: str = "",
    now: Callable[[], float] | None = None,
) -> None:
    """Train what is missing of a plan. A stage that has begun resumes exactly; its length is never chosen again.

    Raises: UserError if `data` holds other images than those of the stages that have begun.
    """
    with _alone(run):
        plan = read_plan(run)
        follower = _Follower(run, train_stage, log, data, now or TimeBudget(plan.budget).clock)
        for number, stage in enumerate(plan.stages):
            if stage.spent is None:
                check_version(run, plan)
                plan = follower.trained(plan, number)


def change_length(run: Path, epochs: int) -> None:
    """Give the last stage of a stopped run on a budget another length, with time in proportion.

    Raises: UserError if it has not begun, or as `check_length`.
    """
    with _alone(run):
        plan, place = read_plan(run), RunFolder.open(run)
        stage = plan.stages[-1]
        set_length(place, stage.epochs)  # a kill may have come between the plan and the run
        if not (warning := check_length(place, epochs)):
            return
        seconds = stage.seconds * epochs / stage.epochs
        plan.with_stage(len(plan.stages) - 1, replace(stage, epochs=epochs, seconds=seconds)).write(run)
        set_length(place, epochs, warning)


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Lock the stages for this process. Raises: UserError if another one trains them."""
    (run / STAGES).mkdir(exist_ok=True)
    stages = RunFolder(run / STAGES)
    stages.lock()
    sweep(run)
    try:
        yield
    finally:
        stages.unlock()


def corrected(plan: BudgetPlan, number: int) -> BudgetPlan:
    """Return the plan with the length of a stage that is about to begin, from the time that is left and from the
    slowdown of the earlier stages, except for those that took no steps. The first one's stays as planned, and that of a
    stage without steps."""
    stage, earlier = plan.stages[number], plan.stages[:number]
    if earlier and stage.step_times.step:
        timed = [before for before in earlier if before.step_times.step]
        actual = sum(before.spent or 0 for before in timed)
        expected = sum(stage_seconds(before.step_times, before.epochs) for before in timed)
        slowdown = slowdown_of(actual, expected) if timed else 1.0
        planned = [stage.seconds for stage in plan.stages[number:]]
        epochs = remaining_epochs(stage.step_times, planned, _left(plan), slowdown)
        stage = replace(stage, epochs=epochs, seconds=stage_seconds(stage.step_times, epochs) * slowdown)
    return plan.with_stage(number, replace(stage, begun=True))


def calibrated(
    plan: BudgetPlan, number: int, epochs: int, took: float, elapsed: float, warmup: float = 0
) -> BudgetPlan:
    """Return the plan with a stage's length by its first epochs, longer than its warm-up in any case."""
    stage = plan.stages[number]
    times = replace(stage.step_times, probed_images=0)  # a head has been trained within `elapsed`
    slowdown = slowdown_of(took, times.epoch * epochs)
    planned = [stage.seconds for stage in plan.stages[number:]]
    more = min(remaining_epochs(times, planned, _left(plan), slowdown, elapsed), MAX_EPOCHS - epochs)
    more = max(more, math.floor(warmup) + 1 - epochs)
    seconds = elapsed + stage_seconds(times, more) * slowdown
    return plan.with_stage(number, replace(stage, epochs=epochs + more, seconds=seconds))


def _left(plan: BudgetPlan) -> float:
    """Return the seconds for the stages that are not finished."""
    return TimeBudget(plan.budget).seconds * (1 - MARGIN) - plan.spent


@dataclass(frozen=True)
class _Follower:
    """Trains a plan's stages; arguments as for `follow`."""

    run: Path
    train_stage: TrainStage
    log: Callable[[str], None]
    data: str
    now: Callable[[], float]

    def trained(self, plan: BudgetPlan, number: int) -> BudgetPlan:
        """Train a stage and return the plan then. An interrupted stage counts for its planned time."""
        began, place = self.now(), plan.place(self.run, number)
        interrupted = (place / "run.json").exists()
        if not (interrupted or plan.stages[number].begun):
            plan = corrected(plan, number)
            plan.write(self.run)
        stage = plan.stages[number]
        if not interrupted or RunFolder.open(place).read("run.json")["status"] != "finished":
            length = f"{counted(stage.epochs, 'epoch')}, about {stage.seconds / 60:.1f} {TimeBudget(plan.budget).unit}"
            self.log(f"stage    {number + 1} of {len(plan.stages)}: {stage.kind}, {length}")
            if interrupted:
                set_length(RunFolder.open(place), stage.epochs)  # a kill may have come between the plan and the run
                session = reopen(str(place), self.data)
            else:
                session = self._session(plan, number)
            if self.data:  # later stages begin where these images, which are the run's, are now
                plan = replace(plan, data=self.data, folder=folder_of(self.data))
                plan.write(self.run)
            self.train_stage(session, None if interrupted else self._calibration(plan, number, session, began))
            gc.collect()
            plan = read_plan(self.run)
        stage = plan.stages[number]
        spent = stage.seconds if interrupted else self.now() - began
        plan = plan.with_stage(number, replace(stage, spent=round(spent, 1)))
        plan.write(self.run)
        return plan

    def _calibration(self, plan: BudgetPlan, number: int, session: Session, began: float) -> Calibration | None:
        """Return the first epochs of a stage that is about to train; None where they are too short to calibrate, or
        have passes of a teacher that later ones replay."""
        stage = plan.stages[number]
        config = session.config
        warmup, replayed = config.schedule.warmup(stage.epochs), config.train.fixed_views and config.engine.replay_gb
        epochs = calibration_epochs(stage.step_times, stage.epochs, warmup)
        if not epochs or not may_change(session) or replayed:
            return None
        stopwatch = Stopwatch(self.now)

        def fix(session: Session) -> Session:
            fixed = calibrated(plan, number, epochs, stopwatch.seconds, self.now() - began, warmup)
            length = fixed.stages[number].epochs
            if length != stage.epochs:
                self.log(f"length   {counted(length, 'epoch')} in place of {stage.epochs}, by the measured time")
                fixed.write(self.run)
                set_length(session.run, length)
            return resumed_session(session)

        return Calibration(epochs, stopwatch, fix)

    def _session(self, plan: BudgetPlan, number: int) -> Session:
        """Begin a stage."""
        place = plan.place(self.run, number)
        if self.data and number:
            # Else a student would learn from a teacher of other images, or be tested on its training images.
            earlier = RunFolder.open(plan.place(self.run, number - 1))
            dataset_of(earlier, config_of(earlier), self.data)
        data = self.data or last_place(self.run, plan.folder) or plan.data
        out = RunFolder(place) if number == len(plan.stages) - 1 else str(place)
        return begin(data, plan.stages[number].config, plan.seed, out, False, {}, plan.command)
