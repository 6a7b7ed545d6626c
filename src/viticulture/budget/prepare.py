# SPDX-License-Identifier: Apache-2.0
"""From a budget to a plan: everything is checked, and all step times are measured, before the run has a folder.

1. Candidate students are measured on noise, as few of them as show which one there is time for. (What a recipe names
   stays, and detectors and segmenters have no candidates.)
2. The images are decoded for that one.
3. Its stages are measured on the images, and share the time that is left.

When the machine gets slower afterwards (or was slowed while it was measured), stages get other lengths than planned
here: when they begin, by the time of the earlier ones, and once more within their warm-up, by the time of their first
epochs (`follow.py`). After that a stage's length is fixed, so that it resumes exactly.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..config.checks import check_learns_unlabeled
from ..config.keys import STAGES
from ..config.references import check_outlast, from_anywhere
from ..config.resolve import Config, plan_of
from ..config.start import LARGEST_SIDE, load_started, teachers_of
from ..data.dataset import Dataset
from ..data.image_settings import shape_of
from ..data.open import open_source
from ..data.sources.source import Source
from ..disk import file_lock, unwritable
from ..errors import UserError
from ..models.weights.sources import anchored, predicts
from ..parallel import Progress
from ..study.step_times import StepTimes
from ..training.data import default_recipe, for_method, load_dataset, open_by_default, open_for, resolve_default
from ..training.leakage import check_leakage
from ..training.run_folder import RunFolder
from ..training.run_inputs import folder_of
from ..training.session import check_seed
from . import recipes
from .budget import TimeBudget
from .choices import TEACHER_SHARE, TEACHER_VIEW, Kind, SizedStudent, teacher
from .lengths import MARGIN, divide_time, epochs_within, largest_that_fits, stage_seconds
from .measure import Measurements, is_plain_vit
from .plan import BudgetPlan, Stage

SCRATCH = ".viticulture-"  # beginning of the names of scratch directories in which steps are measured


@dataclass(frozen=True)
class BudgetRequest:
    """The user's request."""

    data: str
    recipe: str  # as for `train`; a named one is the base of the student's stage, and its student stays
    seed: int
    out: Path  # the run's folder; where none is named, its name unless another run is quicker
    overrides: dict[str, Any]
    budget: TimeBudget
    overwrite: bool = False
    teacher: str = ""  # trained networks that teach the student, separated by commas; "" for none


def make_plan(
    request: BudgetRequest,
    command: str,
    now: Callable[[], float],
    began: float,
    measurements: Callable[..., Measurements] = Measurements,
) -> BudgetPlan:
    """Return what the budget is spent on. Raises: UserError for any mistake, or for a budget that is too short."""
    check_seed(request.seed)
    RunFolder.check_free(request.out, request.overwrite)
    overrides = {**request.overrides}
    size = overrides.pop("images.teacher_size", None) if request.teacher else None
    request = replace(request, overrides=overrides)
    labeled, base, default = opened(request.data, request.recipe, request.overrides)
    recipes.check(base, request.overrides)
    if request.teacher and not recipes.may_be_taught(base):
        raise UserError(
            f"--teacher {request.teacher} teaches a student of one class an image that has no guides and no trained "
            "start; leave --budget out to combine it with others"
        )
    teachers = [anchored(source) for source in teachers_of(request.teacher)] if request.teacher else []
    if not teachers:
        check_learns_unlabeled(base)
    base = replace(base, values=from_anywhere(base.values))
    if request.overwrite:
        check_outlast(base.values, request.out)
        for source in teachers:
            check_outlast({"student.init": source}, request.out)

    def left() -> float:
        return request.budget.seconds * (1 - MARGIN) - (now() - began)

    with _scratch(request.out) as folder:
        images = labeled.images_alone
        measured = measurements(images, request.seed, Path(folder), now, request.budget.seconds)
        config = base if recipes.is_dense(base) else _chosen(request, base, measured, left)
        probes = [recipes.probe_stage(config, source, size) for source in teachers]
        decoded = config.changed({"images.teacher_size": _side(probes)}, by="budget") if probes else config
        dataset = load_dataset(labeled, decoded, request.seed, watch=_in_time(request, left))
        if recipes.is_dense(config):
            config = config.changed({"images.image_size": dataset.image_size}, by="images")
        place = folder_of(request.data)
        for each in (config, *probes):  # else the last stage would refuse
            check_leakage(each, dataset, {"folder": place, "name": dataset.name})
        return BudgetPlan(
            budget=request.budget.text,
            data=request.data,
            folder=place,
            seed=request.seed,
            command=command,
            stages=_taught_stages(request, config, probes, dataset, measured, left)
            if probes
            else _stages(request, config, default, dataset, measured, left),
            prepared=now() - began,
        )


def opened(data: Any, recipe: str, overrides: Mapping[str, Any]) -> tuple[Source, Config, str]:
    """Return the data as the student's method reads it, the student's config, and the default recipe for such data."""
    if recipe == "default":
        source, default, chosen = open_by_default(data)
        base = resolve_default(default, overrides)
        base = replace(base, warnings=(*chosen, *base.warnings))
        if source.targets is not None:
            return source, base, default
    else:
        base = load_started(recipe, overrides)
        if not recipes.learns_classes(base):
            return open_for(base, data), base, base.name
        source = open_source(data, "classes")
        default = default_recipe(source)
    base = base.changed(recipes.one_view_keys(base, overrides), by="budget")
    return for_method(base, source), base, default


@contextmanager
def _scratch(out: Path) -> Iterator[str]:
    """Yield a scratch directory on the run's disk: next to the run, or in its empty folder where only that is writable.
    Those of killed processes, whose locks are free, are removed."""
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    place = parent if os.access(parent, os.W_OK | os.X_OK) else out
    for around in {place, *out.absolute().parents[:2]}:  # before the first run, its parent was not there
        for lock in around.glob(f"{SCRATCH}*.part/lock"):
            with suppress(OSError, UserError), file_lock(lock, wait=False):
                shutil.rmtree(lock.parent)
    try:
        folder = TemporaryDirectory(prefix=SCRATCH, suffix=".part", dir=place)
    except OSError as error:
        raise unwritable(place, error) from error
    with folder as name, file_lock(Path(name, "lock")):
        yield name


def _chosen(request: BudgetRequest, base: Config, measured: Measurements, left: Callable[[], float]) -> Config:
    """Return the config with the student and the image size that there is time for."""

    def sized(candidate: SizedStudent) -> Config:
        return base.changed(recipes.candidate_keys(base, candidate, request.overrides), by="budget")

    def macs(candidate: SizedStudent) -> int:
        return measured.macs(sized(candidate))

    def times(candidate: SizedStudent) -> StepTimes:
        return recipes.with_sparse_validation(request.overrides, *measured.fastest(sized(candidate)))[1]

    def scaled(candidate: SizedStudent) -> StepTimes:
        """One network takes about as long per MAC at any size; to measure a large one takes minutes."""
        return smallest.scaled(macs(candidate) / macs(candidates[0]))

    candidates = recipes.candidates_for(base, request.overrides, request.recipe != "default", measured.side)
    if base.student.init is not None:  # some networks take images of one size alone
        candidates = tuple(each for each in candidates if measured.builds(sized(each))) or candidates[-1:]
        if len(candidates) > 1:
            smallest = times(candidates[0])
            return sized(largest_that_fits(candidates, left, scaled, macs))
    return sized(largest_that_fits(candidates, left, times, macs))


def _stages(
    request: BudgetRequest,
    config: Config,
    default: str,
    dataset: Dataset,
    measured: Measurements,
    left: Callable[[], float],
) -> tuple[Stage, ...]:
    """Return the stages, each with its config, its step times and its length."""
    overrides = request.overrides
    student, alone = recipes.with_sparse_validation(overrides, *measured.fastest(config, dataset))
    student, alone = recipes.with_affordable_views(overrides, student, alone, dataset, left())
    configs: dict[Kind, Config] = {"student": student}
    step_times: dict[tuple[Kind, bool], StepTimes] = {("student", False): alone}
    steps = epochs_within(alone, left()) * alone.steps

    def times(kind: Kind, taught: bool) -> StepTimes:
        if (kind, taught) not in step_times:
            if kind == "mae":
                mae = recipes.mae_stage(config)
                images = load_dataset(measured.source, mae, request.seed)
                configs[kind], step_times[kind, taught] = measured.fastest(mae, images)
            elif kind == "teacher":
                cnn = measured.fastest(recipes.teacher_stage(config, default, teacher(steps)), dataset)
                configs[kind], step_times[kind, taught] = recipes.with_sparse_validation(overrides, *cnn)
            else:
                dummy = measured.dummy_checkpoint(configs["teacher"], dataset)
                under_teacher = student.changed(recipes.student_keys(student, overrides, "", dummy), by="budget")
                step_times[kind, taught] = measured.step_times(under_teacher, dataset)
        return step_times[kind, taught]

    search = request.budget.search and recipes.may_be_taught(config) and is_plain_vit(config, dataset)
    startable = recipes.may_be_started(config)
    lengths = divide_time(left(), len(dataset.trained_on), times, search, startable)
    if lengths:  # measuring took some of the time that was divided
        lengths = divide_time(left(), len(dataset.trained_on), times, search, startable)
    if not lengths:
        raise UserError(_too_short(request, config, alone, left()))
    kinds = [length.kind for length in lengths]
    names = [f"{number}-{kind}" for number, kind in enumerate(kinds, 1)]
    places = {kind: f"{STAGES}/{name}" for kind, name in zip(kinds, names, strict=True)}  # `read_plan` says where
    keys = recipes.student_keys(student, overrides, places.get("mae", ""), places.get("teacher", ""))
    student = student.changed(keys, by="budget")
    epochs = lengths[-1].epochs
    student = _mixed(request, student, dataset, epochs, epochs * alone.steps)
    if "schedule.warmup_epochs" in overrides:  # the user's is meant for the length that is planned
        student = student.changed(recipes.length_keys(student, epochs, epochs), by="budget")
    configs["student"] = student
    stages = []
    for name, (kind, epochs, seconds) in zip(names, map(astuple, lengths), strict=True):
        final = configs[kind].changed(recipes.warmup_keys(configs[kind], epochs), by="budget")
        measured_times = step_times[kind, kind == "student" and "teacher" in kinds]
        stages.append(_stage(name, kind, final, measured_times, epochs, seconds))
    return tuple(stages)


def _taught_stages(
    request: BudgetRequest,
    config: Config,
    probes: Sequence[Config],
    dataset: Dataset,
    measured: Measurements,
    left: Callable[[], float],
) -> tuple[Stage, ...]:
    """Return the stages of a student that trained networks teach: a classifier of each that has none of these classes,
    and the student, for all the time that is left."""
    overrides, size, sources = request.overrides, _side(probes), [str(probe.student.init) for probe in probes]
    missing = [not predicts(source, dataset.classes) for source in sources]
    untaught = replace(dataset, image_settings=replace(dataset.image_settings, teacher_size=None))
    student, alone = recipes.with_sparse_validation(overrides, *measured.fastest(config, untaught))
    student, alone = recipes.with_affordable_views(overrides, student, alone, dataset, left())
    stand_ins = [
        measured.dummy_checkpoint(probe, dataset, size, f"dummy{number}") if lacks else source
        for number, (probe, source, lacks) in enumerate(zip(probes, sources, missing, strict=True))
    ]
    keys = recipes.taught_keys(student, overrides, stand_ins, size)
    taught = student.changed(keys, by="budget")
    passes = max(measured.step_times(taught, dataset).step - alone.step, 0.0)
    if (views := taught.train.fixed_views) and taught.engine.replay_gb:
        if "train.fixed_views" not in overrides:
            affordable = TEACHER_SHARE * left() / (alone.steps * passes) if passes else views
            views = max(min(views, int(affordable)), 1)
        times = replace(alone, step=alone.step + TEACHER_VIEW * passes, once=views * alone.steps * passes)
    else:
        times = replace(alone, step=alone.step + passes)
    image = passes / plan_of(student, len(dataset.trained_on)).batch_size / len(probes)
    tested = len(dataset.val or ()) + len(dataset.test or ())
    probed = StepTimes(0.0, 1, image, 0, tested, probed_images=len(dataset.train) + len(dataset.val or ()))
    reserved = stage_seconds(probed, 1)
    epochs = epochs_within(times, left() - reserved * sum(missing))
    if not epochs:
        raise UserError(_too_short(request, config, replace(times, once=times.once + reserved * sum(missing)), left()))
    stages = list[Stage]()
    for place, (probe, lacks) in enumerate(zip(probes, missing, strict=True)):
        if lacks:
            stages.append(_stage(f"{len(stages) + 1}-teacher", "teacher", probe, probed, 1, reserved))
            sources[place] = f"{STAGES}/{stages[-1].name}"  # `read_plan` says where
    keys = recipes.taught_keys(student, overrides, sources, size, views)
    student = _mixed(request, student.changed(keys, by="budget"), dataset, epochs, epochs * alone.steps)
    if "schedule.warmup_epochs" in overrides:  # the user's is meant for the length that is planned
        student = student.changed(recipes.length_keys(student, epochs, epochs), by="budget")
    student = student.changed(recipes.warmup_keys(student, epochs), by="budget")
    seconds = stage_seconds(times, epochs)
    return *stages, _stage(f"{len(stages) + 1}-student", "student", student, times, epochs, seconds)


def _mixed(request: BudgetRequest, config: Config, dataset: Dataset, epochs: int, steps: int) -> Config:
    """Return the config with mixed images where they help a training of that length."""
    if not (request.budget.search and dataset.classes) or config.data.unlabeled is not None:
        return config
    per_class = len(dataset.train) / len(dataset.classes)
    return config.changed(recipes.mix_keys(config, request.overrides, epochs, steps, per_class), by="budget")


def _stage(name: str, kind: Kind, config: Config, times: StepTimes, epochs: int, seconds: float) -> Stage:
    return Stage(
        name=name,
        kind=kind,
        recipe=config.name,
        values=config.values,
        step_times=times,
        epochs=epochs,
        seconds=seconds,
        warnings=config.warnings,
        changes=config.changes,
    )


def _side(probes: Sequence[Config]) -> int:
    """Return the side of the teachers' images, pixels."""
    return max(max(shape_of(probe.images.image_size or LARGEST_SIDE)) for probe in probes)


def _in_time(request: BudgetRequest, left: Callable[[], float]) -> Progress:
    """Return a callback that ends the reading of images where the budget ends."""
    at_first = left()

    def watch(done: int, total: int) -> None:
        if done < total and left() <= 0:
            whole = (at_first - left()) * total / done
            raise UserError(
                f"a budget of {request.budget.text} is too short: to read {total:,} images takes about {whole:.0f} s; "
                "give more, or smaller images"
            )

    return watch


def _too_short(request: BudgetRequest, config: Config, times: StepTimes, left: float) -> str:
    """Return what the user can do about it."""
    minimum = (request.budget.seconds * (1 - MARGIN) - left + stage_seconds(times, 1)) / (1 - MARGIN)
    return (
        f"a budget of {request.budget.text} is too short: preparing, and one epoch of {config.student.name} at "
        f"{config.images.image_size} px on these images, take about {minimum:.0f} s; give more, or train on a part of "
        "the images (--fraction 0.1)"
    )


def make_folder(request: BudgetRequest, plan: BudgetPlan) -> None:
    """Create the run's folder with the plan, from which on it can be resumed."""
    run = RunFolder.create(request.out, request.overwrite)
    plan.write(run.path)
    run.unlock()
