# SPDX-License-Identifier: Apache-2.0
"""Run a study: measure every candidate on the data, plan, and train what is missing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..config.checks import check_learns_unlabeled, check_rates
from ..config.references import check_given, references, replaced
from ..config.resolve import Config
from ..data.image_settings import usual_sizes
from ..data.sources.source import Source
from ..data.statistics import sample_sizes
from ..disk import sweep
from ..errors import UserError, counted
from ..models.weights.files import save
from ..training.assemble import data_spec_of, student_of
from ..training.data import load_dataset, open_for
from ..waiting import waiting
from .cell import data_of, held_out_digest
from .clusters import run_on_ray, write_script
from .folder import StudyFolder
from .grid import Candidate
from .halving import write_table
from .outcomes import Outcomes
from .plan import EVAL_VIEWS, IMAGE_SIZE, Key, StudyPlan, check_budget, make_plan, most_expensive, survivors
from .step_times import StepTimes, measure_step_times
from .terms import Subset, Where
from .work import changed
from .workers import run_workers, threads_of_one

Log = Callable[[str], None]


def run_study(
    study: StudyFolder,
    where: Where,
    log: Log,
    show_plan: Callable[[StudyFolder, StudyPlan], None],
    skip: Sequence[str] = (),
) -> None:
    """Plan a study, show the plan, and train what is missing, but the cells `skip`, on this machine or on a cluster."""
    sweep(study.path)
    warnings = study.extend()
    for warning in warnings:
        log(f"note: {warning}")
    study.update(warnings=warnings)
    workers = where.workers or max(1, torch.cuda.device_count())
    with study.locked("plan"):  # a second process finds the plan, and does not disturb the measuring
        plan = plan_study(study, workers, log)
    if wrong := changed(study, plan):
        raise UserError(
            f"{study.path} holds {len(wrong)} cells that were trained under other settings, such as {wrong[0]}; "
            "begin a new study"
        )
    show_plan(study, plan)
    write_table(study, Outcomes(study))
    if where.slurm:
        log(f"written: {write_script(study, plan)}; nothing was trained here")
    elif where.ray:
        run_on_ray(study, where.ray, log)
    else:
        run_workers(study, workers, log, skip)
    write_table(study, Outcomes(study))


def plan_study(study: StudyFolder, workers: int, log: Log) -> StudyPlan:
    """Return the study's plan; make it where there is none yet, or none for what was added to the grid.

    A candidate that cannot be measured is logged; its cells fail later, with their error, and the others continue.

    Raises: UserError if the budget is too short, or no candidate can be trained on the data at all.
    """
    grid, metadata = study.grid, study.metadata
    previous = StudyPlan.from_dict(metadata["plan"]) if "plan" in metadata else None
    needed = {(candidate.name, subset.name) for candidate in grid.candidates for subset in grid.subsets.each()}
    if previous is not None and needed <= previous.epochs.keys():
        return previous
    rivals = len(grid.candidates)
    if grid.terms.halving and survivors(rivals) == rivals:
        raise UserError(
            f"halving continues with at least two candidates, so that of {rivals} it drops none and trains all in "
            "every rung; leave --halving out, or compare three or more"
        )
    recipes = {candidate.name: study.recipe(candidate) for candidate in grid.candidates}
    recipe_epochs = {name: config.train.epochs for name, config in recipes.items()}
    warmups = {name: config.schedule.warmup_epochs for name, config in recipes.items()}
    sized = [each for each in grid.candidates if _sets_size(each)]
    added = [each for each in grid.candidates if previous and each.name not in previous.recipe_epochs]
    fixed_keys = {each.name: _fixed_keys(each, recipes[each.name]) for each in (added if previous else sized)}
    fixed_keys |= previous.fixed_keys if previous else {}

    def planned(keys: dict[str, Any]) -> StudyPlan:
        chosen = {
            name: config.changed({k: v for k, v in keys.items() if k not in fixed_keys.get(name, ())}, by="study")
            for name, config in recipes.items()
        }
        size = f" at {keys[IMAGE_SIZE]} px" if IMAGE_SIZE in keys else ""
        trained = f"{counted(len(grid.candidates), 'recipe')}{size}"

        def within(step_times: dict[Key, StepTimes]) -> StudyPlan:
            plan = make_plan(grid, recipe_epochs, warmups, step_times, workers, previous)
            if previous is None:
                check_budget(grid, plan, workers)
            return plan

        with waiting(f"measuring a few steps of {trained}, to plan the study"), threads_of_one(workers):
            step_times = _measure(study, chosen, previous.step_times if previous else {}, log, within)
        return replace(within(step_times), image_keys=keys, fixed_keys=fixed_keys)

    plan = most_expensive([previous.image_keys] if previous else _image_keys(study, recipes), planned)
    study.update(plan=plan.to_dict())
    return plan


def _fixed_keys(candidate: Candidate, config: Config) -> list[str]:
    """Return the image keys that a candidate which was added later sets itself, by the rules of `_image_keys`."""
    size = [IMAGE_SIZE] if config.images.image_size is not None else []
    return size + [EVAL_VIEWS] * _sets_views(candidate, config)


def _sets_size(candidate: Candidate) -> bool:
    """Return whether a candidate that is compared from the start has its own image size, as trained networks have."""
    return IMAGE_SIZE in candidate.overrides


def _sets_views(candidate: Candidate, config: Config) -> bool:
    """Return whether a candidate sets its test-time augmentation; a recipe that lets validation choose does not."""
    return EVAL_VIEWS in candidate.overrides or config.images.eval_views not in ("one", "best")


def _image_keys(study: StudyFolder, recipes: dict[str, Config]) -> list[dict[str, Any]]:
    """Return recipe keys of images that a budget may choose for all, from cheap to expensive. It leaves the keys of a
    recipe, of the conditions and of a paper's table."""
    grid = study.grid
    images = [recipes[each.name].images for each in grid.candidates if not _sets_size(each)]
    if not grid.terms.budgets or grid.table:
        return [{}]
    choices: list[dict[str, Any]] = [{}]
    if all(settings.image_size is None for settings in images):
        source = open_for(recipes[grid.baseline.name], data_of(study, grid.baseline))
        sizes = [] if source.targets is not None else usual_sizes(sample_sizes(source))
        choices = [{IMAGE_SIZE: size} for size in sizes] or choices
    fixed = EVAL_VIEWS in grid.conditions or any(_sets_views(each, recipes[each.name]) for each in grid.candidates)
    several = any(settings.eval_views != "one" for settings in images) and not fixed
    return [{**choices[0], EVAL_VIEWS: "one"}, *choices] if several else choices


def _measure(
    study: StudyFolder,
    recipes: dict[str, Config],
    measured_before: dict[Key, StepTimes],
    log: Log,
    within: Callable[[dict[Key, StepTimes]], object],
) -> dict[Key, StepTimes]:
    """Measure every candidate on every subset that is not known yet. Raises: UserError if none can be measured, if
    candidates would be tested on different images, or as `within`, which gets the step times after each candidate."""
    step_times, failed, warnings = dict(measured_before), dict[str, Exception](), dict[str, None]()
    sources: dict[tuple[str, str, bool, str | None], Source] = {}
    by_slug: dict[tuple[str, str], StepTimes] = {}
    held_out: dict[str, tuple[Candidate, str]] = {}
    unequal: tuple[Candidate, Candidate] | None = None

    def opened(candidate: Candidate) -> Source:
        data, config = data_of(study, candidate), recipes[candidate.name]
        spec = config.method_class.batch_spec
        key = data, spec.contents, spec.labels, config.data.unlabeled
        if key not in sources:
            sources[key] = open_for(config, data)
        return sources[key]

    def measured(candidate: Candidate, subset: Subset) -> tuple[StepTimes, str]:
        """Return the step times, and a digest of the held-out images."""
        check_given(recipes[candidate.name].values)
        seed = study.grid.seeds[0]
        with TemporaryDirectory() as folder:
            rows = _placeholders(study, recipes, candidate, subset, opened, Path(folder))
            keys = {**rows, **study.grid.conditions, **subset.overrides, **study.grid.subsets.fold(seed)}
            config = recipes[candidate.name].changed(keys, by="study")
            check_rates(config)
            check_learns_unlabeled(config)
            dataset = load_dataset(opened(candidate), config, seed)
            warnings.update(dict.fromkeys(dataset.warnings))
            if config.method_class.batch_spec.labels and dataset.val is None and dataset.test is None:
                raise UserError(
                    f"{dataset.name} has no validation or test images to compare by; raise data.test_fraction or "
                    "data.val_fraction above 0"
                )
            times = measure_step_times(config, dataset, study.path / "step_times", seed)
            return times, held_out_digest(dataset.split_names)

    for candidate in study.grid.candidates:
        for subset in study.grid.subsets.each():
            key, shared = (candidate.name, subset.name), (study.slugs[candidate.name], subset.name)
            if key in step_times:
                continue
            try:
                if shared not in by_slug:
                    by_slug[shared], digest = measured(candidate, subset)
                    first, known_digest = held_out.setdefault(data_of(study, candidate), (candidate, digest))
                    unequal = unequal or (first, candidate) if known_digest != digest else unequal
                step_times[key] = by_slug[shared]
            except Exception as error:
                failed[f"{candidate.name} could not be measured on {subset.name}"] = error
        if step_times:
            within(step_times)
    for warning in warnings:
        log(f"note: {warning}")
    if step_times or len({str(error) for error in failed.values()}) > 1:  # a single error is raised below
        for what, reason in failed.items():
            log(f"{what}: {reason}")
    if failed and not step_times:
        raise next(iter(failed.values()))
    if failed:
        log("these trainings will fail unless that is fixed; the others continue")
    if unequal is not None:
        _refuse(*unequal, recipes)
    return step_times


def _placeholders(
    study: StudyFolder,
    recipes: dict[str, Config],
    candidate: Candidate,
    subset: Subset,
    opened: Callable[[Candidate], Any],
    folder: Path,
) -> dict[str, Any]:
    """Write untrained networks in place of the runs that a candidate uses; return recipe keys that name them."""
    folders: dict[str, str] = {}
    for name in references(candidate.overrides).values():
        other = next(other for other in study.grid.candidates if other.name == name)
        config = recipes[name].changed(subset.overrides, by="study")
        data_spec = data_spec_of(load_dataset(opened(other), config, study.grid.seeds[0]))
        folders[name] = str(folder / str(len(folders)))
        save(student_of(config, data_spec), Path(folders[name]), data_spec)
    return replaced(candidate.overrides, folders)


def _refuse(candidate: Candidate, other: Candidate, recipes: dict[str, Config]) -> None:
    """Raise a UserError for two candidates that would be tested on different images."""
    contents = {each.name: recipes[each.name].method_class.batch_spec.contents for each in (candidate, other)}
    why = ", ".join(f"{name} trains on {content}" for name, content in contents.items())
    raise UserError(
        f"{candidate.name} and {other.name} would be tested on different images of the same data "
        f"({why if len(set(contents.values())) > 1 else 'their recipes hold out others'}); compare recipes that use "
        "the same annotations and hold out the same images"
    )
