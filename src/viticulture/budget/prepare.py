# SPDX-License-Identifier: Apache-2.0
"""From a budget to a plan: everything is checked, and every pace measured, before the run has a folder.

1. The ladder's students are tried on noise, as few of them as tell which one the time affords. (What a recipe names
   stays, and detectors and segmenters have no ladder.)
2. The images are decoded for that one.
3. Its stages are tried on the images, and share what is left of the time.

When the machine gets slower afterwards (or was slowed while it was measured), stages get other lengths than planned
here: when they begin, by what the earlier ones took, and once more within their warm-up, by what their own epochs took,
`follow.py`. After that a stage keeps its length, so that it resumes exactly.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..config.keys import STAGES
from ..config.load import load_config
from ..config.references import check_outlast, from_anywhere
from ..config.resolve import Config
from ..data.dataset import Dataset
from ..data.sources.annotated import DenseSource
from ..data.sources.source import Source
from ..disk import file_lock, unwritable
from ..errors import UserError
from ..parallel import Progress
from ..study.step_times import StepTimes
from ..training.data import (
    default_recipe,
    for_method,
    load_dataset,
    open_by_default,
    open_for,
    open_labeled,
    resolve_default,
)
from ..training.leakage import check_leakage
from ..training.run_folder import RunFolder
from ..training.run_inputs import folder_of
from ..training.session import check_seed
from . import recipes
from .budget import Budget
from .choices import Kind, Rung, teacher
from .lengths import MARGIN, climb, cost, divide, fitting
from .measure import Measurements, is_plain_vit
from .plan import Plan, Stage

WORKSHOP = ".viticulture-"
"""How the name of a folder begins in which paces are measured."""


@dataclass(frozen=True)
class Wish:
    """What a person asks for.

    Args:
        data: as for `train`.
        recipe: as for `train`; a named one is the base of the student's stage, and its student stays.
        seed: of every stage.
        out: the run's folder; where nobody names one, what it is to be called unless another run is quicker.
        overrides: recipe keys, which nothing replaces.
        budget: for all of it, and what may be planned within it.
        overwrite: replace the run in that folder.
    """

    data: str
    recipe: str
    seed: int
    out: Path
    overrides: dict[str, Any]
    budget: Budget
    overwrite: bool = False

    @property
    def named(self) -> bool:
        """Whether the person named the recipe."""
        return self.recipe != "default"


def make_plan(
    wish: Wish,
    command: str,
    now: Callable[[], float],
    began: float,
    measurements: Callable[..., Measurements] = Measurements,
) -> Plan:
    """What the budget is spent on. Raises: UserError for any mistake, or for a budget in which nothing can be learnt.

    Args:
        wish: what is asked for.
        command: that asks.
        now: tells the time.
        began: when the command did, by that clock.
        measurements: finds out about paces.
    """
    check_seed(wish.seed)
    RunFolder.check_free(wish.out, wish.overwrite)
    learnt, base, default = _opened(wish)
    recipes.check(base, wish.overrides)
    base = replace(base, values=from_anywhere(base.values))
    if wish.overwrite:
        check_outlast(base.values, wish.out)

    def left() -> float:
        return wish.budget.seconds * (1 - MARGIN) - (now() - began)

    with _workshop(wish.out) as folder:
        images = learnt.images if isinstance(learnt, DenseSource) else learnt
        tried = measurements(images, wish.seed, Path(folder), now, wish.budget.seconds)
        config = base if recipes.is_dense(base) else _chosen(wish, base, tried, left)
        dataset = load_dataset(learnt, config, wish.seed, watch=_in_time(wish, left))
        if recipes.is_dense(config):
            config = config.changed({"images.image_size": dataset.image_size}, by="budget")
        place = folder_of(wish.data)
        check_leakage(config, dataset, {"folder": place, "name": dataset.name})  # else the last stage would refuse
        return Plan(
            budget=wish.budget.words,
            data=wish.data,
            folder=place,
            seed=wish.seed,
            command=command,
            stages=_stages(wish, config, default, dataset, tried, left),
            prepared=now() - began,
        )


def _opened(wish: Wish) -> tuple[Source | DenseSource, Config, str]:
    """The data as the student's recipe learns from them, that recipe, and the default one for such images."""
    if not wish.named:
        opened, default, chosen = open_by_default(wish.data)
        base = resolve_default(default, wish.overrides)
        base = replace(base, warnings=(*chosen, *base.warnings))
        if not isinstance(opened, Source):
            return opened, base, default
    else:
        base = load_config(wish.recipe, wish.overrides)
        if not recipes.learns_classes(base):
            return open_for(base, wish.data), base, base.name
        opened = open_labeled(wish.data)
        default = default_recipe(opened)
    base = recipes.asked_once(base, wish.overrides)
    return for_method(base, opened), base, default


@contextmanager
def _workshop(out: Path) -> Iterator[str]:
    """A folder on the run's disk to try things in: beside the run, or in its empty folder where that alone may be
    written. Those of processes that were killed, whose locks have fallen, are removed."""
    beside = next(folder for folder in out.absolute().parents if folder.exists())
    place = beside if os.access(beside, os.W_OK | os.X_OK) else out
    for around in {place, *out.absolute().parents[:2]}:  # before the first run, its folder's own was not there
        for lock in around.glob(f"{WORKSHOP}*.part/lock"):
            with suppress(OSError, UserError), file_lock(lock, wait=False):
                shutil.rmtree(lock.parent)
    try:
        folder = TemporaryDirectory(prefix=WORKSHOP, suffix=".part", dir=place)
    except OSError as error:
        raise unwritable(place, error) from error
    with folder as name, file_lock(Path(name, "lock")):
        yield name


def _chosen(wish: Wish, base: Config, tried: Measurements, left: Callable[[], float]) -> Config:
    """The recipe with the student and the image size that the budget affords."""

    def of_rung(rung: Rung) -> Config:
        return recipes.of_rung(base, rung, wish.overrides)

    ladder = recipes.ladder(base, wish.overrides, wish.named, tried.side)

    def pace(rung: Rung) -> StepTimes:
        return recipes.watched(wish.overrides, *tried.fastest(of_rung(rung)))[1]

    return of_rung(climb(ladder, left, pace, lambda rung: tried.macs(of_rung(rung))))


def _stages(
    wish: Wish, config: Config, default: str, dataset: Dataset, tried: Measurements, left: Callable[[], float]
) -> tuple[Stage, ...]:
    """The stages, each with its recipe, its pace and its length."""
    known: dict[tuple[Kind, bool], StepTimes] = {}
    made: dict[Kind, Config] = {}

    student, alone = recipes.watched(wish.overrides, *tried.fastest(config, dataset))
    student, alone = recipes.asked_well(wish.overrides, student, alone, dataset, left())
    made["student"], known["student", False] = student, alone
    steps = fitting(alone, left()) * alone.steps

    def pace(kind: Kind, taught: bool) -> StepTimes:
        if (kind, taught) not in known:
            if kind == "mae":
                mae = recipes.of_mae(config)
                images = load_dataset(tried.source, mae, wish.seed)
                made[kind], known[kind, taught] = tried.fastest(mae, images)
            elif kind == "teacher":
                cnn = recipes.of_teacher(config, default, teacher(steps))
                made[kind], known[kind, taught] = recipes.watched(wish.overrides, *tried.fastest(cnn, dataset))
            else:
                double = tried.double(made["teacher"], dataset)
                known[kind, taught] = tried.pace(recipes.of_student(student, wish.overrides, "", double), dataset)
        return known[kind, taught]

    search = wish.budget.search and recipes.may_be_taught(config) and is_plain_vit(config, dataset)
    startable = recipes.may_be_started(config)
    lengths = divide(left(), len(dataset.train), pace, search, startable)
    if lengths:  # measuring took some of the time that was divided
        lengths = divide(left(), len(dataset.train), pace, search, startable)
    if not lengths:
        raise UserError(_too_short(wish, config, alone, left()))
    kinds = [length.kind for length in lengths]
    names = [f"{number}-{kind}" for number, kind in enumerate(kinds, 1)]
    places = {kind: f"{STAGES}/{name}" for kind, name in zip(kinds, names, strict=True)}  # `read_plan` says where
    made["student"] = recipes.of_student(student, wish.overrides, places.get("mae", ""), places.get("teacher", ""))
    if wish.budget.search and dataset.classes:
        epochs, per_class = lengths[-1].epochs, len(dataset.train) / len(dataset.classes)
        made["student"] = recipes.mixed(made["student"], wish.overrides, epochs, epochs * alone.steps, per_class)
    if "schedule.warmup_epochs" in wish.overrides:  # a person's is meant for the length that is planned
        made["student"] = recipes.of_length(made["student"], lengths[-1].epochs, lengths[-1].epochs)
    stages = []
    for name, (kind, epochs, seconds) in zip(names, map(astuple, lengths), strict=True):
        warmed = recipes.warmed(made[kind], epochs)
        own = known[kind, kind == "student" and "teacher" in kinds]
        stages.append(Stage(name, kind, warmed.name, warmed.values, own, epochs, seconds, warnings=warmed.warnings))
    return tuple(stages)


def _in_time(wish: Wish, left: Callable[[], float]) -> Progress:
    """Ends the reading of images where the budget does."""
    at_first = left()

    def watch(done: int, total: int) -> None:
        if done < total and left() <= 0:
            whole = (at_first - left()) * total / done
            raise UserError(
                f"a budget of {wish.budget.words} is too short: to read {total:,} images takes about {whole:.0f} s; "
                "give more, or smaller images"
            )

    return watch


def _too_short(wish: Wish, config: Config, pace: StepTimes, left: float) -> str:
    """What a person can do about it."""
    student, side = config.values["student"]["name"], config.values["images"]["image_size"]
    least = (wish.budget.seconds * (1 - MARGIN) - left + cost(pace, 1)) / (1 - MARGIN)
    return (
        f"a budget of {wish.budget.words} is too short: to begin, and one epoch of {student} at {side} px on these "
        f"images, take about {least:.0f} s; give more, or learn from a part of the images (--fraction 0.1)"
    )


def make_folder(wish: Wish, plan: Plan) -> None:
    """The run's folder with the plan in it, from which on it can be resumed."""
    run = RunFolder.create(wish.out, wish.overwrite)
    plan.write(run.path)
    run.unlock()
