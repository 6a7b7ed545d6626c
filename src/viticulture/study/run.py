# SPDX-License-Identifier: Apache-2.0
"""Before a study's first cell: measure every candidate on the data, then plan."""

# Untrained doubles of the candidates that another one learns from, so that its pace can be measured beforehand.
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..config.checks import check_rates
from ..config.references import check_given, references, replaced
from ..config.resolve import Config
from ..data.dataset import Dataset
from ..data.image_settings import usual_sizes
from ..data.sources.annotated import DenseSource
from ..data.sources.source import Source
from ..data.statistics import sample_sizes
from ..disk import sweep
from ..errors import UserError
from ..models.weights.files import save
from ..training.assemble import data_spec_of, student_of
from ..training.data import load_dataset, open_for
from .cell import data_of, held_out_digest
from .clusters import run_on_ray, write_script
from .folder import StudyFolder
from .grid import Candidate, Grid
from .halving import write_table
from .outcomes import Outcomes
from .plan import IMAGE_SIZE, VIEWS, Key, StudyPlan, check_budget, dearest, make_plan, survivors
from .step_times import StepTimes, measure_step_times
from .terms import Subset, Where
from .work import changed
from .workers import as_one_of, count, run_workers


def prepare(study: StudyFolder, workers: int, tell: Callable[[str], None]) -> StudyPlan:
    """The study's plan; made and kept where there is none yet, or none for what was added to the grid.

    A candidate that cannot be measured is told; its cells fail later, with their error, and the rest goes on.

    Args:
        study: its folder.
        workers: cells that train at the same time.
        tell: is told about measuring.

    Raises: UserError if the budget is too short, or no candidate can be trained on the data at all.
    """
    with study.locked("plan"):  # who comes second finds the plan, and measures beside nobody
        return _prepare(study, workers, tell)


def _prepare(study: StudyFolder, workers: int, tell: Callable[[str], None]) -> StudyPlan:
    grid, facts = study.grid, study.facts
    known = StudyPlan.from_dict(facts["plan"]) if "plan" in facts else None
    wanted = {(candidate.name, subset.name) for candidate in grid.candidates for subset in grid.subsets.each()}
    if known is not None and wanted <= known.epochs.keys():
        return known
    rivals = len(grid.candidates)
    if grid.terms.halving and survivors(rivals) == rivals:
        raise UserError(
            f"halving goes on with two candidates at least, so that of {rivals} it drops none and trains all in every "
            "rung; leave --halving out, or compare three or more"
        )
    recipes = {candidate.name: study.recipe(candidate) for candidate in grid.candidates}
    own = {name: recipe.train.epochs for name, recipe in recipes.items()}
    warmups = {name: recipe.schedule.warmup_epochs for name, recipe in recipes.items()}

    added = [candidate for candidate in grid.candidates if known and candidate.name not in known.own]
    named = {candidate.name: _named(candidate, recipes[candidate.name]) for candidate in added}
    named |= known.named if known else {}

    def planned(keys: dict[str, Any]) -> StudyPlan:
        chosen = {name: {key: keys[key] for key in keys if key not in named.get(name, ())} for name in recipes}
        shown = {name: recipe.changed(chosen[name], by="study") for name, recipe in recipes.items()}
        with as_one_of(workers):
            paces = _paces(study, shown, known.paces if known else {}, tell)
        return replace(make_plan(grid, own, warmups, paces, workers, known), shown=keys, named=named)

    plan = dearest([known.shown] if known else _shown(study, recipes), planned)
    if known is None:
        check_budget(grid, plan, workers)
    study.update(plan=plan.to_dict())
    return plan


def _named(candidate: Candidate, config: Config) -> list[str]:
    """Recipe keys of how images are shown that are a candidate's own, as `_shown` tells them for those planned first:
    a size that its recipe names, and views that the study or its recipe names for it."""
    size = [IMAGE_SIZE] if config.images.image_size is not None else []
    return size + [VIEWS] * _names_views(candidate, config)


def _names_views(candidate: Candidate, config: Config) -> bool:
    """Whether anybody says by which views of an image a candidate answers; a recipe that leaves that to validation
    images says nothing."""
    return VIEWS in candidate.overrides or config.images.eval_views not in ("one", "best")


def _shown(study: StudyFolder, recipes: dict[str, Config]) -> list[dict[str, Any]]:
    """Recipe keys of how images are shown that a budget may choose for all, from cheap to dear; what a recipe or the
    conditions name, and a paper's table, stay as they are."""
    grid, images = study.grid, [recipe.images for recipe in recipes.values()]
    if not grid.terms.budgets or grid.table:
        return [{}]
    steps: list[dict[str, Any]] = [{}]
    if all(settings.image_size is None for settings in images):
        source = open_for(recipes[grid.baseline.name], data_of(study, grid.baseline))
        sizes = [] if isinstance(source, DenseSource) else usual_sizes(sample_sizes(source))
        steps = [{IMAGE_SIZE: size} for size in sizes] or steps
    named = VIEWS in grid.conditions or any(_names_views(each, recipes[each.name]) for each in grid.candidates)
    several = any(settings.eval_views != "one" for settings in images) and not named
    return [{**steps[0], VIEWS: "one"}, *steps] if several else steps


def _paces(
    study: StudyFolder, recipes: dict[str, Config], known: dict[Key, StepTimes], tell: Callable[[str], None]
) -> dict[Key, StepTimes]:
    paces, failed = dict(known), dict[str, Exception]()
    sources: dict[tuple[str, str, bool], Source | DenseSource] = {}
    by_slug: dict[tuple[str, str], StepTimes] = {}
    held_out: dict[str, tuple[Candidate, str]] = {}
    unlike: tuple[Candidate, Candidate] | None = None
    notes: dict[str, None] = {}

    def opened(candidate: Candidate) -> Source | DenseSource:
        where, config = data_of(study, candidate), recipes[candidate.name]
        spec = config.method_class.batch_spec
        key = where, spec.contents, spec.labels
        if key not in sources:
            sources[key] = open_for(config, where)
        return sources[key]

    for candidate in study.grid.candidates:
        for subset in study.grid.subsets.each():
            key, double = (candidate.name, subset.name), (study.slugs[candidate.name], subset.name)
            if key in paces:
                continue
            try:
                if double not in by_slug:
                    check_given(recipes[candidate.name].values)
                    with TemporaryDirectory() as folder:
                        doubles = stand_ins(study.grid, recipes, candidate, subset, opened, Path(folder))
                        seed, overrides = study.grid.seeds[0], {**doubles, **subset.overrides}
                        config = recipes[candidate.name].changed(
                            {**overrides, **study.grid.subsets.fold(seed)}, by="study"
                        )
                        check_rates(config)
                        dataset = load_dataset(opened(candidate), config, seed)
                        notes |= dict.fromkeys(dataset.warnings)
                        _check_measured(dataset, config)
                        by_slug[double] = measure_step_times(config, dataset, study.path / "pace", seed)
                    same = held_out_digest(dataset.split_names)
                    first, known_same = held_out.setdefault(data_of(study, candidate), (candidate, same))
                    unlike = unlike or (first, candidate) if known_same != same else unlike
                paces[key] = by_slug[double]
            except Exception as error:
                failed[f"{candidate.name} could not be measured on {subset.name}"] = error
    for note in notes:
        tell(f"note: {note}")
    if paces or len({str(error) for error in failed.values()}) > 1:  # one error of all is told as it is raised
        for what, reason in failed.items():
            tell(f"{what}: {reason}")
    if failed and not paces:
        raise next(iter(failed.values()))
    if failed:
        tell("what could not be measured will fail unless that is mended; the rest goes on")
    if unlike is not None:
        _refuse(*unlike, recipes)
    return paces


def _check_measured(dataset: Dataset, config: Config) -> None:
    """Raises: UserError for labels that are learnt where no images are left to ask about them."""
    if config.method_class.batch_spec.labels and dataset.val is None and dataset.test is None:
        raise UserError(
            f"of {dataset.name} nothing is held out to validate or test on, so that nothing could be compared; raise "
            "data.test_fraction or data.val_fraction above 0"
        )


def _refuse(candidate: Candidate, other: Candidate, recipes: dict[str, Config]) -> None:
    """Raises: UserError for two candidates whose numbers are of other images."""
    learns = {each.name: recipes[each.name].method_class.batch_spec.contents for each in (candidate, other)}
    why = ", ".join(f"{name} learns {contents}" for name, contents in learns.items())
    raise UserError(
        f"{candidate.name} and {other.name} would be tested on other images of the same data "
        f"({why if len(set(learns.values())) > 1 else 'their recipes hold out others'}); compare recipes that learn "
        "the same of an image and hold out the same"
    )


def conduct(
    study: StudyFolder, where: Where, tell: Callable[[str], None], show: Callable[[StudyFolder, StudyPlan], None]
) -> None:
    """Plan a study, show the plan, and train what is missing, here or wherever it is to be trained.

    Args:
        study: its folder.
        where: who trains.
        tell: is told what happens, a line each.
        show: is shown the plan.
    """
    sweep(study.path)
    warnings = study.extend()
    for warning in warnings:
        tell(f"note: {warning}")
    study.update(warnings=warnings)
    workers = count(where.workers)
    plan = prepare(study, workers, tell)
    if wrong := changed(study, plan):
        raise UserError(
            f"{study.path} holds {len(wrong)} cells that were trained under other settings, such as {wrong[0]}; "
            "begin a new study"
        )
    show(study, plan)
    write_table(study, Outcomes(study))
    if where.slurm:
        tell(f"written: {write_script(study, plan)}; nothing was trained here")
    elif where.ray:
        run_on_ray(study, where.ray, tell)
    else:
        run_workers(study, workers, tell)
    write_table(study, Outcomes(study))


Opened = Callable[[Candidate], Any]
"""A candidate -> its images."""


def stand_ins(
    grid: Grid, recipes: dict[str, Config], candidate: Candidate, subset: Subset, opened: Opened, folder: Path
) -> dict[str, Any]:
    """Recipe keys that name, in place of the runs that a candidate learns from, such networks with random weights.

    Args:
        grid: the study.
        recipes: of every candidate, by its name.
        candidate: who learns.
        subset: of training data.
        opened: says where a candidate's images are.
        folder: to write them into.
    """
    folders: dict[str, str] = {}
    for name in references(candidate.overrides).values():
        other = next(other for other in grid.candidates if other.name == name)
        config = recipes[name].changed(subset.overrides, by="study")
        data_spec = data_spec_of(load_dataset(opened(other), config, grid.seeds[0]))
        folders[name] = str(folder / str(len(folders)))
        save(student_of(config, data_spec), Path(folders[name]), data_spec)
    return {**replaced(candidate.overrides, folders), **grid.conditions}
