# SPDX-License-Identifier: Apache-2.0
"""Before a study's first cell: measure every contender on the data, then plan."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..data.open import open_source
from ..data.sources.source import Source
from ..errors import UserError
from ..training.recipe import Recipe
from ..training.references import check_given
from ..training.session import load_dataset
from .declare.grid import Contender
from .declare.terms import Amount, Where
from .folder import StudyDir, locked
from .plan.pace import Pace, measure
from .plan.plan import Key, Plan, make_plan
from .plan.stand_ins import stand_ins, with_overrides
from .run.cell import place
from .run.outcomes import Outcomes
from .run.ray_tasks import run_on_ray
from .run.rounds import write_table
from .run.slurm import write_script
from .run.work import changed
from .run.workers import count, run_workers


def prepare(study: StudyDir, workers: int, tell: Callable[[str], None], data: str = "") -> Plan:
    """The study's plan; made and kept where there is none yet, or none for what was added to the grid.

    A contender that cannot be measured is told; its cells fail later, with their error, and the rest goes on.

    Args:
        study: its folder.
        workers: cells that train at the same time.
        tell: is told about measuring.
        data: where the images are now.

    Raises: UserError if the budget is too short, or no contender can be trained on the data at all.
    """
    with locked(study.path / "locks" / "plan"):  # who comes second finds the plan, and measures beside nobody
        return _prepare(study, workers, tell, data)


def _prepare(study: StudyDir, workers: int, tell: Callable[[str], None], data: str) -> Plan:
    grid, facts = study.grid, study.facts
    known = Plan.from_dict(facts["plan"]) if "plan" in facts else None
    wanted: list[tuple[Contender, Amount]] = [
        (one, amount) for one in grid.contenders for amount in grid.amounts.each()
    ]
    if known is not None and all((one.name, amount.name) in known.epochs for one, amount in wanted):
        return known
    recipes = {one.name: study.recipe(one) for one in grid.contenders}
    own = {name: recipe.section("train").epochs for name, recipe in recipes.items()}
    warmups = {name: recipe.section("schedule").warmup_epochs for name, recipe in recipes.items()}
    paces = _paces(study, recipes, known.paces if known else {}, tell, data)
    plan = make_plan(grid, own, warmups, paces, workers, known)
    study.update(plan=plan.to_dict())
    return plan


def _paces(
    study: StudyDir, recipes: dict[str, Recipe], known: dict[Key, Pace], tell: Callable[[str], None], data: str
) -> dict[Key, Pace]:
    found, errors = dict(known), list[Exception]()
    sources: dict[str, Source] = {}
    by_slug: dict[tuple[str, str], Pace] = {}

    def opened(one: Contender) -> Source:
        where = data or place(study, one)
        if where not in sources:
            sources[where] = open_source(where)
        return sources[where]

    for one in study.grid.contenders:
        for amount in study.grid.amounts.each():
            key, double = (one.name, amount.name), (study.slugs[one.name], amount.name)
            if key in found:
                continue
            try:
                if double not in by_slug:
                    check_given(recipes[one.name].values)
                    with TemporaryDirectory() as folder:
                        doubles = stand_ins(study.grid, recipes, one, amount, opened, Path(folder))
                        by_slug[double] = _pace(study, recipes[one.name], {**doubles, **amount.overrides}, opened(one))
                found[key] = by_slug[double]
            except Exception as error:
                errors.append(error)
                tell(f"{one.name} could not be measured on {amount.name}: {error}")
    if errors and not found:
        raise errors[0]
    return found


def _pace(study: StudyDir, recipe: Recipe, overrides: dict[str, Any], source: Source) -> Pace:
    recipe, seed = with_overrides(recipe, overrides), study.grid.seeds[0]
    return measure(recipe, load_dataset(source, recipe, seed), study.path / "pace", seed)


def conduct(
    study: StudyDir, where: Where, tell: Callable[[str], None], show: Callable[[StudyDir, Plan], None], data: str = ""
) -> None:
    """Plan a study, show the plan, and train what is missing, here or wherever it is to be trained.

    Args:
        study: its folder.
        where: who trains.
        tell: is told what happens, a line each.
        show: is shown the plan.
        data: where the images are now.
    """
    remarks = study.extend()
    for remark in remarks:
        tell(f"note: {remark}")
    study.update(remarks=remarks)
    workers = count(where.workers)
    plan = prepare(study, workers, tell, data)
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
        run_on_ray(study, where.ray, tell, data)
    else:
        run_workers(study, workers, tell, data)
    write_table(study, Outcomes(study))
