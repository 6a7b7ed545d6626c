# SPDX-License-Identifier: Apache-2.0
"""Train a plan's stages one after the other, or go on with them wherever a kill has stopped them."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..training.rundir import RunDir
from ..training.session import Session, begin, reopen
from .budget import Budget
from .lengths import MARGIN, again, cost
from .plan import STAGES, Plan, check_version, read_plan


def follow(
    run: Path,
    grow: Callable[[Session], Any],
    tell: Callable[[str], None],
    data: str = "",
    now: Callable[[], float] | None = None,
) -> None:
    """Train what is missing of a plan. A stage that has begun goes on exactly; its length is never chosen again.

    Args:
        run: the folder that holds the plan.
        grow: trains and measures a session to its end, and says in run.json that it is finished.
        tell: is told which stage begins.
        data: where the images are now; by default where they were.
        now: tells the time; by default the budget's clock.
    """
    plan = read_plan(run)
    now = now or Budget(plan.budget).clock
    if all(stage.spent is not None for stage in plan.stages):
        return
    check_version(run, plan)
    (run / STAGES).mkdir(exist_ok=True)
    stages = RunDir(run / STAGES)
    stages.lock()
    try:
        for number, stage in enumerate(plan.stages):
            if stage.spent is None:
                plan = _trained(run, plan, number, grow, tell, data, now)
    finally:
        stages.unlock()


def settled(plan: Plan, number: int) -> Plan:
    """The plan with the length of a stage that is about to begin: from what is left of the time, and from how much
    longer (or shorter) than planned the earlier stages took. The first one's stays as it was planned."""
    stage, earlier = plan.stages[number], plan.stages[:number]
    if earlier:
        took, wanted = sum(stage.spent or 0 for stage in earlier), sum(stage.seconds for stage in earlier)
        left = Budget(plan.budget).seconds * (1 - MARGIN) - plan.spent
        epochs = again(stage.pace, [stage.seconds for stage in plan.stages[number:]], left, took / wanted)
        stage = replace(stage, epochs=epochs, seconds=cost(stage.pace, epochs) * took / wanted)
    return plan.with_stage(number, replace(stage, begun=True))


def _trained(
    run: Path,
    plan: Plan,
    number: int,
    grow: Callable[[Session], Any],
    tell: Callable[[str], None],
    data: str,
    now: Callable[[], float],
) -> Plan:
    """The plan once a stage is done."""
    began, place, before = now(), plan.place(run, number), 0.0
    if (place / "run.json").exists():
        before = _seconds(place)
        if RunDir.open(place).read("run.json")["status"] != "finished":
            tell(_heading(plan, number))
            grow(reopen(str(place), data))
            before = _seconds(place)
    else:
        if not plan.stages[number].begun:
            plan = settled(plan, number)
            plan.write(run)
        tell(_heading(plan, number))
        grow(_session(run, plan, number, data))
    gc.collect()
    spent = max(now() - began, before)
    plan = plan.with_stage(number, replace(plan.stages[number], spent=round(spent, 1)))
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


def _heading(plan: Plan, number: int) -> str:
    stage = plan.stages[number]
    minutes = f"{stage.seconds / 60:.1f}"
    return f"stage    {number + 1} of {len(plan.stages)}: {stage.kind}, {stage.epochs} epochs, about {minutes} min"


def _seconds(place: Path) -> float:
    """Seconds of training in all processes so far, as a run knows them; 0 before it has ended."""
    return float(RunDir(place).read("run.json").get("seconds", 0.0))
