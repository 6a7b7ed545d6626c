# SPDX-License-Identifier: Apache-2.0
"""Untrained doubles of the contenders that another one learns from, so that its pace can be measured beforehand."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...models.students import create_student
from ...models.weights.files import save
from ...training.assemble import patch_size, task_of
from ...training.recipe import Recipe, resolve
from ...training.references import references, replaced
from ...training.session import load_dataset
from ..declare.grid import Contender, Grid
from ..declare.terms import Amount

Opened = Callable[[Contender], Any]
"""A contender -> its images."""


def stand_ins(
    grid: Grid, recipes: dict[str, Recipe], one: Contender, amount: Amount, opened: Opened, folder: Path
) -> dict[str, Any]:
    """Recipe keys that name, in place of the runs that a contender learns from, such networks with random weights.

    Args:
        grid: the study.
        recipes: of every contender, by its name.
        one: who learns.
        amount: of training data.
        opened: says where a contender's images are.
        folder: to write them into.
    """
    found: dict[str, str] = {}
    for name in references(one.overrides).values():
        other = next(other for other in grid.contenders if other.name == name)
        recipe = with_overrides(recipes[name], amount.overrides)
        task = task_of(load_dataset(opened(other), recipe, grid.seeds[0]))
        wanted = recipe.section("student")
        found[name] = str(folder / str(len(found)))
        save(create_student(wanted.name, task, patch_size(wanted, task), wanted.options), Path(found[name]), task)
    return {**replaced(one.overrides, found), **grid.conditions}


def with_overrides(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """A recipe with overrides; neither's nested values are shared with it, because other cells read them, too."""
    return resolve(recipe.name, deepcopy(recipe.values), deepcopy(dict(overrides)))
