# SPDX-License-Identifier: Apache-2.0
"""Train a plan's stages one after the other, or go on with them wherever a kill has stopped them."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import counted
from ..training.rundir import RunDir
from ..training.session import Session, begin, reopen
from .budget import Budget
from .lengths import MARGIN, again, cost
from .plan import STAGES, Plan, check_version, read_plan

MOST_SLOWNESS = 3.0
"""Factor by which a stage is believed to have been mismeasured; more is a machine that slept, or was busy once."""

Grow = Callable[[Session], Any]
"""Trains and measures a session to its end, and says in run.json that it is finished."""


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
    """
    with _alone(run):
        plan = read_plan(run)
        now = now or Budget(plan.budget).clock
        for number, stage in enumerate(plan.stages):
            if stage.spent is None:
                check_version(run, plan)
                plan = _trained(run, plan, number, grow, tell, data, now)


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Be the one process that trains the stages. Raises: UserError if another is."""
    (run / STAGES).mkdir(exist_ok=True)
    stages = RunDir(run / STAGES)
    stages.lock()
    try:
        yield
    finally:
        stages.unlock()


def settled(plan: Plan, number: int) -> Plan:
    """The plan with the length of a stage that is about to begin: from what is left of the time, and from how much
    longer (or shorter) than planned the earlier stages took. The first one's stays as it was planned."""
    stage, earlier = plan.stages[number], plan.stages[:number]
    if earlier:
        took, wanted = sum(stage.spent or 0 for stage in earlier), sum(stage.seconds for stage in earlier)
        slowness = min(max(took / wanted, 1 / MOST_SLOWNESS), MOST_SLOWNESS)
        left = Budget(plan.budget).seconds * (1 - MARGIN) - plan.spent
        epochs = again(stage.pace, [stage.seconds for stage in plan.stages[number:]], left, slowness)
        stage = replace(stage, epochs=epochs, seconds=cost(stage.pace, epochs) * slowness)
    return plan.with_stage(number, replace(stage, begun=True))


def _trained(
    run: Path, plan: Plan, number: int, grow: Grow, tell: Callable[[str], None], data: str, now: Callable[[], float]
) -> Plan:
    """The plan once a stage is done. One that a kill has interrupted counts for the time that was planned."""
    began, place = now(), plan.place(run, number)
    interrupted = (place / "run.json").exists()
    if not (interrupted or plan.stages[number].begun):
        plan = settled(plan, number)
        plan.write(run)
    stage = plan.stages[number]
    if not interrupted or RunDir.open(place).read("run.json")["status"] != "finished":
        minutes = f"about {stage.seconds / 60:.1f} min"
        tell(f"stage    {number + 1} of {len(plan.stages)}: {stage.kind}, {counted(stage.epochs, 'epoch')}, {minutes}")
        grow(reopen(str(place), data) if interrupted else _session(run, plan, number, data))
        gc.collect()
    spent = stage.seconds if interrupted else now() - began
    plan = plan.with_stage(number, replace(stage, spent=round(spent, 1)))
    plan.write(run)
    return plan


def _session(run: Path, plan: Plan, number: int, data: str) -> Session:
    stage, last = plan.stages[number], number == len(plan.stages) - 1
    place = plan.place(run, number)
    known = data or (plan.folder if plan.folder and not Path(plan.data).exists() else plan.data)
    recipe = stage.resolved
    if last:
        return begin(known, recipe, plan.seed, RunDir(place), False, {}, plan.command)
    return begin(known, recipe, plan.seed, str(place), False, {}, plan.command)
