# SPDX-License-Identifier: Apache-2.0
"""Train a plan's stages one after the other, or go on with them wherever a kill has stopped them.

A stage's length is planned, corrected when it begins by what the earlier stages took, and settled within its warm-up by
what its own epochs took. What a kill has interrupted keeps the length that it had.
"""

import gc
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
from ..training.length import asked_length, gone_on, may_change, set_length
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of, dataset_of, folder_of, last_place
from ..training.session import Session, begin, reopen
from .budget import Budget
from .choices import MOST_EPOCHS
from .lengths import MARGIN, again, cost, slowness, trial
from .plan import Plan, check_version, read_plan


class Stopwatch(Callback):
    """Times a training's epochs, but for the first step, which pays for what happens once.

    Args:
        now: tells the time.
    """

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
        """Of all epochs, with what came between them; the first step counts as long as others do."""
        return mean(self.steps) + self.ended - self.first


@dataclass(frozen=True)
class Trial:
    """The first epochs of a stage, which tell how many it is to have.

    Args:
        epochs: of them.
        stopwatch: a callback of their training.
        settle: called once they are trained: writes the length down and gives the session that goes on.
    """

    epochs: int
    stopwatch: Stopwatch
    settle: Callable[[Session], Session]


Grow = Callable[[Session, Trial | None], Any]
"""Trains and measures a session to its end, after its trial where it has one; says in run.json that it is finished."""


def follow(
    run: Path,
    grow: Grow,
    tell: Callable[[str], None],
    data: str = "",
    now: Callable[[], float] | None = None,
) -> None:
    """Train what is missing of a plan. A stage that has begun goes on exactly; its length is never chosen again.

    Args:
        run: the folder that holds the plan.
        grow: trains a stage.
        tell: is told which stage begins.
        data: where the images are now; by default where they were.
        now: tells the time; by default the budget's clock.

    Raises: UserError if `data` holds other images than those of the stages that have begun.
    """
    with _alone(run):
        plan = read_plan(run)
        follower = _Follower(run, grow, tell, data, now or Budget(plan.budget).clock)
        for number, stage in enumerate(plan.stages):
            if stage.spent is None:
                check_version(run, plan)
                plan = follower.trained(plan, number)


def change_length(run: Path, epochs: int) -> None:
    """Give the last stage of a stopped run within a budget another length, and the share of the time that goes with it.

    Raises: UserError if it has not begun, or as `asked_length`.
    """
    with _alone(run):
        plan, place = read_plan(run), RunFolder.open(run)
        stage = plan.stages[-1]
        set_length(place, stage.epochs)  # a kill may have come between the plan and the run
        if not (warning := asked_length(place, epochs)):
            return
        seconds = stage.seconds * epochs / stage.epochs
        plan.with_stage(len(plan.stages) - 1, replace(stage, epochs=epochs, seconds=seconds)).write(run)
        set_length(place, epochs, warning)


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Be the one process that trains the stages. Raises: UserError if another is."""
    (run / STAGES).mkdir(exist_ok=True)
    stages = RunFolder(run / STAGES)
    stages.lock()
    sweep(run)
    try:
        yield
    finally:
        stages.unlock()


def settled(plan: Plan, number: int) -> Plan:
    """The plan with the length of a stage that is about to begin: from what is left of the time, and from how much
    longer (or shorter) than by their paces the earlier stages took. The first one's stays as it was planned."""
    stage, earlier = plan.stages[number], plan.stages[:number]
    if earlier:
        took, wanted = (
            sum(stage.spent or 0 for stage in earlier),
            sum(cost(before.pace, before.epochs) for before in earlier),
        )
        slow = slowness(took, wanted)
        epochs = again(stage.pace, [stage.seconds for stage in plan.stages[number:]], _left(plan), slow)
        stage = replace(stage, epochs=epochs, seconds=cost(stage.pace, epochs) * slow)
    return plan.with_stage(number, replace(stage, begun=True))


def after_trial(plan: Plan, number: int, epochs: int, took: float, elapsed: float) -> Plan:
    """The plan with the length that a stage gets by its first epochs.

    Args:
        plan: as far as it has come.
        number: of the stage.
        epochs: that it has trained.
        took: seconds that these took.
        elapsed: seconds since it began.
    """
    stage = plan.stages[number]
    slow = slowness(took, stage.pace.epoch * epochs)
    more = again(stage.pace, [stage.seconds for stage in plan.stages[number:]], _left(plan), slow, elapsed)
    more = min(more, MOST_EPOCHS - epochs)
    return plan.with_stage(
        number, replace(stage, epochs=epochs + more, seconds=elapsed + cost(stage.pace, more) * slow)
    )


def _left(plan: Plan) -> float:
    """Seconds for the stages that are not done."""
    return Budget(plan.budget).seconds * (1 - MARGIN) - plan.spent


@dataclass(frozen=True)
class _Follower:
    """Trains a plan's stages; arguments as for `follow`."""

    run: Path
    grow: Grow
    tell: Callable[[str], None]
    data: str
    now: Callable[[], float]

    def trained(self, plan: Plan, number: int) -> Plan:
        """The plan once a stage is done. One that a kill has interrupted counts for the time that was planned."""
        began, place = self.now(), plan.place(self.run, number)
        interrupted = (place / "run.json").exists()
        if not (interrupted or plan.stages[number].begun):
            plan = settled(plan, number)
            plan.write(self.run)
        stage = plan.stages[number]
        if not interrupted or RunFolder.open(place).read("run.json")["status"] != "finished":
            length = f"{counted(stage.epochs, 'epoch')}, about {stage.seconds / 60:.1f} min"
            self.tell(f"stage    {number + 1} of {len(plan.stages)}: {stage.kind}, {length}")
            if interrupted:
                set_length(RunFolder.open(place), stage.epochs)  # a kill may have come between the plan and the run
                session = reopen(str(place), self.data)
            else:
                session = self._session(plan, number)
            if self.data:  # later stages begin where these were taken for the run's own
                plan = replace(plan, data=self.data, folder=folder_of(self.data))
                plan.write(self.run)
            self.grow(session, None if interrupted else self._trial(plan, number, session, began))
            gc.collect()
            plan = read_plan(self.run)
        stage = plan.stages[number]
        spent = stage.seconds if interrupted else self.now() - began
        plan = plan.with_stage(number, replace(stage, spent=round(spent, 1)))
        plan.write(self.run)
        return plan

    def _trial(self, plan: Plan, number: int, session: Session, began: float) -> Trial | None:
        """The first epochs of a stage that is about to be trained; None where they would be too short to tell."""
        stage = plan.stages[number]
        epochs = trial(stage.pace, stage.epochs, session.config.schedule.warmup(stage.epochs))
        if not epochs or not may_change(session):
            return None
        stopwatch = Stopwatch(self.now)

        def settle(session: Session) -> Session:
            longer = after_trial(plan, number, epochs, stopwatch.seconds, self.now() - began)
            length = longer.stages[number].epochs
            if length == stage.epochs:
                return gone_on(session)
            self.tell(f"length   {counted(length, 'epoch')} in place of {stage.epochs}, by what the first took")
            longer.write(self.run)
            set_length(session.run, length)
            return gone_on(session)

        return Trial(epochs, stopwatch, settle)

    def _session(self, plan: Plan, number: int) -> Session:
        place = plan.place(self.run, number)
        if self.data and number:
            # Else a student would learn from a teacher of other images, or be tested on what that knows.
            earlier = RunFolder.open(plan.place(self.run, number - 1))
            dataset_of(earlier, config_of(earlier), self.data)
        known = self.data or last_place(self.run, plan.folder) or plan.data
        out = RunFolder(place) if number == len(plan.stages) - 1 else str(place)
        return begin(known, plan.stages[number].resolved, plan.seed, out, False, {}, plan.command)
