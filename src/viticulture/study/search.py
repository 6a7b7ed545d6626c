# SPDX-License-Identifier: Apache-2.0
"""Search of recipe keys by Optuna's TPE: proposals are trained briefly, and the best are added to a study.

    STUDY/search/    a study of the proposals, one seed that the study does not use, half of its epochs

The study begins with its baseline, the recipe as it is. Validation images choose; no test image does. A proposal
follows from the results before it alone, so that a search that was stopped continues as it would have.

Sources: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, Section 4 (TPE); importance:
Watanabe, Bansal and Hutter, "PED-ANOVA", IJCAI 2023, arXiv:2304.10255.
"""

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ..config.keys import FINE_TUNE, check_key, flat
from ..config.load import load_config
from ..data.open import open_source
from ..errors import UserError, shortened
from ..keywords import NUMBER
from ..models.students import check_student
from ..text import comment, read_yaml, yaml_word
from ..training.data import default_recipe
from .declare import grid_of_recipes
from .folder import StudyFolder
from .grid import FINALISTS, TRIALS, VARIED, Candidate, Grid
from .outcomes import Outcome, Outcomes
from .plan import StudyPlan
from .run import run_study
from .terms import ALL_IMAGES, AUTO, Terms, Where

RANDOM = 8
"""Proposals that come before those of TPE."""
ATTEMPTS = 100  # draws for a proposal that is new
MIN_IMPORTANCE = 10  # trials
FOLDER = "search"

Space = dict[str, tuple[float, float] | list[Any]]
"""Recipe key -> the ends of a range, of whole numbers for a key that takes no others; or choices."""


def space_of(search: Mapping[str, str]) -> Space:
    """Read ranges LOW..HIGH and choices A,B. Raises: UserError for anything else."""
    space: Space = {}
    for key, text in search.items():
        check_key(key)
        low, dots, high = text.partition("..")
        if dots and not (NUMBER.fullmatch(low) and NUMBER.fullmatch(high)):
            raise UserError(f"the ends of a range are numbers, got {key}={text}; write {key}=1..10")
        if dots:
            whole = low.strip("+-").isdigit() and high.strip("+-").isdigit()
            ends = (int(low), int(high)) if whole else (float(low), float(high))
            if ends[0] == ends[1]:
                raise UserError(f"a range has two different ends, got {key}={text}; leave it out, or set --{key} {low}")
            if not ends[0] < ends[1]:
                raise UserError(f"a range begins with its smaller end, got {key}={text}; write {key}={high}..{low}")
            space[key] = ends
            continue
        choices = [read_yaml(word, f"a choice of {key}") for word in text.split(",") if word.strip()]
        if len({repr(choice) for choice in choices}) < max(2, len(choices)):
            raise UserError(f"a search needs two or more different choices, got {key}={text}; write {key}=A,B")
        space[key] = choices
    return space


def grid_of_search(
    data: str, recipe: str, words: Sequence[str], seeds: int, terms: Terms, overrides: dict[str, Any]
) -> Grid:
    """Return the study of a search: its baseline, and the keys to search, `words` of KEY=LOW..HIGH or KEY=A,B."""
    _optuna()
    search: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals and text):
            raise UserError(f"--search takes KEY=LOW..HIGH or KEY=A,B, got {shortened(repr(word))}")
        if key in search:
            raise UserError(f"--search names {key} twice; name it once")
        search[key] = text
    if terms.halving or terms.budget == AUTO or not (terms.budget or "train.epochs" in overrides):
        raise UserError("a search takes its length by a time such as --budget 2h, or by --epochs, without --halving")
    if wrong := [VARIED[key] for key in overrides if key in VARIED]:
        raise UserError(f"a search trains on all training images; leave {wrong[0]} out")
    recipe = recipe or default_recipe(open_source(data, annotations_first=True))
    if "student.init" in overrides and recipe.startswith("default/"):
        recipe = FINE_TUNE
    grid = grid_of_recipes(data, [recipe], ALL_IMAGES, seeds, terms, overrides)
    shared = {**grid.baseline.overrides, **grid.conditions}  # a trained network is that of all proposals
    grid = replace(grid, candidates=(replace(grid.baseline, overrides={}),), conditions=shared)
    for key, values in space_of(search).items():
        if key in {**VARIED, "train.epochs": ""} or key in grid.conditions:
            raise UserError(f"{key} is the same for all trainings of a study; leave it out of --search")
        typed = [flat(load_config(recipe, {**grid.conditions, key: value}).values).get(key) for value in values]
        if isinstance(values, tuple) and isinstance(values[0], int) and any(isinstance(v, float) for v in typed):
            search[key] = f"{float(values[0])!r}..{float(values[1])!r}"  # 0..1 of a share
        for name in values if key in ("student", "student.name") else ():
            check_student(str(name))
    return replace(grid, search=search)


def search_keys(study: StudyFolder, where: Where, log: Callable[[str], None]) -> StudyFolder:
    """Train proposals, add the best to a study whose baseline is trained, and return it. It does nothing once they are
    there.

    Raises: UserError without validation images, or where no proposal could be trained.
    """
    grid = study.grid
    if len(grid.candidates) > 1:
        return study
    if not any(outcome.val is not None for outcome in Outcomes(study).all(grid.cells())):
        raise UserError("a search chooses by validation images, of which no result is there; see data.val_fraction")
    space, path, command = space_of(grid.search), study.path / FOLDER, str(study.metadata["command"])
    begun = (path / "study.json").is_file()
    trials = StudyFolder.open(path, study.data) if begun else _begin(study, space, command)
    lines = dict[str, None]()

    def once(line: str) -> None:  # every proposal repeats the warnings of its recipe
        if line not in lines:
            lines[line] = None
            log(line)

    workers = where.workers or max(1, torch.cuda.device_count())
    while True:
        failed = [cell.name for cell in trials.grid.cells() if trials.failure(cell)]
        run_study(trials, Where(workers=where.workers), once, lambda *_: None, failed)
        outcomes = Outcomes(trials).all(trials.grid.cells())
        count = min(workers, TRIALS - len(outcomes))
        new = _proposed(space, grid.baseline.recipe, outcomes, count) if count > 0 else []
        if not new:
            break
        trials = _extended(trials, new)
    ranked = sorted((each for each in outcomes if each.val is not None), key=lambda each: -(each.val or 0))
    if not ranked:
        raise UserError(f"no training of the search finished: {outcomes[0].error}; see {path / 'failures'}")
    study.update(importance=_importance(space, outcomes))
    return _extended(study, [each.cell.candidate for each in ranked[:FINALISTS]])


def _begin(study: StudyFolder, space: Space, command: str) -> StudyFolder:
    """Create the study of the proposals with the random ones, on the images that the budget chose."""
    grid, plan = study.grid, StudyPlan.from_dict(study.metadata["plan"])
    epochs = max(1, max(plan.epochs.values()) // 2)
    images = {key: value for key, value in plan.image_keys.items() if key not in space}
    conditions, seed = {**grid.conditions, **images}, max(grid.seeds) + 1
    candidates = tuple(_proposed(space, grid.baseline.recipe, [], RANDOM))
    trials = Grid(grid.data, candidates, seeds=(seed,), conditions=conditions, epochs=epochs)
    return StudyFolder.create(study.path / FOLDER, trials, command)


def _extended(study: StudyFolder, candidates: Sequence[Candidate]) -> StudyFolder:
    """Add candidates to study.yaml."""
    grid = replace(study.grid, candidates=(*study.grid.candidates, *candidates))
    study.write("study.yaml", f"{comment(str(study.metadata['command']))}{grid.to_yaml()}")
    return StudyFolder.open(study.path, study.data)


def _proposed(space: Space, recipe: str, outcomes: Sequence[Outcome], count: int) -> list[Candidate]:
    """Return new candidates, fewer where `ATTEMPTS` draws find no other."""
    short = {key: key.rpartition(".")[2] for key in space}
    short = short if len({*short.values()}) == len(short) else {key: key for key in space}
    names, new, past = {each.cell.candidate.name for each in outcomes}, list[Candidate](), _past(space, outcomes)
    for _ in range(ATTEMPTS):
        drawn = past.ask(_distributions(space)).params
        values = {key: _rounded(value, space[key]) for key, value in drawn.items()}
        name = " ".join(f"{short[key]}={yaml_word(value)}" for key, value in values.items())
        if len(new) < count and name not in names:
            names.add(name)
            new.append(Candidate(name, recipe, values))
        if len(new) == count:
            break
    return new


def _rounded(value: Any, values: tuple[float, float] | list[Any]) -> Any:
    """Return a number of a range with three digits; anything else unchanged."""
    if isinstance(values, list) or isinstance(value, int):
        return value
    return min(max(float(f"{value:.3g}"), values[0]), values[1])


def _distributions(space: Space) -> dict[str, Any]:
    """Return Optuna's distributions: logarithmic for a range over a factor of ten or more."""
    kinds = _optuna().distributions

    def of(values: tuple[float, float] | list[Any]) -> Any:
        if isinstance(values, list):
            return kinds.CategoricalDistribution(values)
        kind = kinds.IntDistribution if isinstance(values[0], int) else kinds.FloatDistribution
        return kind(*values, log=0 < 10 * values[0] <= values[1])

    return {key: of(values) for key, values in space.items()}


def _past(space: Space, outcomes: Sequence[Outcome]) -> Any:
    """Return Optuna's study of the results so far; what failed counts as the worst result, or it is proposed again."""
    worst = min((each.val for each in outcomes if each.val is not None), default=0.0)
    optuna = _optuna()
    sampler = optuna.samplers.TPESampler(seed=len(outcomes), n_startup_trials=RANDOM)
    past = optuna.create_study(direction="maximize", sampler=sampler)
    for outcome in outcomes:
        if outcome.val is not None or outcome.status == "failed":
            values = {"params": outcome.cell.candidate.overrides, "distributions": _distributions(space)}
            past.add_trial(optuna.create_trial(**values, value=worst if outcome.val is None else outcome.val))
    return past


def _importance(space: Space, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the share of each key in the differences between results; nothing for too few results."""
    past, optuna = _past(space, [each for each in outcomes if each.val is not None]), _optuna()
    with warnings.catch_warnings(), suppress(ValueError, RuntimeError):  # keys that do not vary
        warnings.simplefilter("ignore")
        if len(past.trials) >= MIN_IMPORTANCE:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return dict(optuna.importance.get_param_importances(past, evaluator=evaluator))
    return {}


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UserError("--search needs Optuna, not installed; run: pip install 'viticulture[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
