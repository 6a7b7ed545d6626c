# SPDX-License-Identifier: Apache-2.0
"""Untrained doubles of the candidates that another one learns from, so that its pace can be measured beforehand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...config.references import references, replaced
from ...config.resolve import Config
from ...models.weights.files import save
from ...training.assemble import data_spec_of, student_of
from ...training.data import load_dataset
from ..declare.grid import Candidate, Grid
from ..declare.terms import Subset

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
        recipe = recipes[name].with_keys(subset.overrides)
        data_spec = data_spec_of(load_dataset(opened(other), recipe, grid.seeds[0]))
        folders[name] = str(folder / str(len(folders)))
        save(student_of(recipe, data_spec), Path(folders[name]), data_spec)
    return {**replaced(candidate.overrides, folders), **grid.conditions}
