# SPDX-License-Identifier: Apache-2.0
"""From what a person asks for to a declared grid."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from ..config.references import from_anywhere
from ..data.open import open_source
from ..errors import UserError, counted, unknown
from ..training.data import default_recipe
from .grid import CONDITIONS, Candidate, Grid, of_recipes
from .paper_tables import read_table
from .terms import AUTO, Subsets, Terms

DENSE = {"objects": "detection/photos", "pixels": "segmentation/photos"}
"""What a path holds -> the shipped field for it."""

SEEDS = 3
"""Of a study that is told neither seeds nor folds."""


def of_own_images(
    data: str, recipes: Sequence[str], subsets: Subsets, seeds: int | None, terms: Terms, overrides: dict[str, Any]
) -> Grid:
    """Recipes on a person's images; without recipes the field for images of their size."""
    overrides, epochs = _length(overrides)
    candidates = of_recipes(recipes)
    if not candidates:
        candidates = field(data)
        if not terms.budget and epochs is None:
            terms = replace(terms, budget=AUTO)
    conditions = from_anywhere({**CONDITIONS, **overrides})
    if subsets.folds and seeds is not None:
        raise UserError(
            f"every fold is trained once, got {subsets.folds} folds and {counted(seeds, 'seed')}; leave one of them out"
        )
    numbers = _seeds(subsets.folds or (SEEDS if seeds is None else seeds))
    return Grid(data, candidates, subsets, numbers, conditions, terms, epochs)


def of_a_table(name: str, data: str, subsets: Subsets, seeds: int, terms: Terms, overrides: dict[str, Any]) -> Grid:
    """A paper's table, every row as the paper trains it; `data` replaces its data sets.

    `student.init` among the overrides may be a mapping: row -> weights that it starts from.
    """
    if subsets.folds:
        raise UserError(f"{name} is trained on the splits of its paper; leave --folds {subsets.folds} out")
    overrides, epochs = _length(overrides)
    candidates = read_table(name).rows
    if isinstance(weights := overrides.get("student.init"), Mapping):
        candidates = _started(candidates, weights)
        overrides = {key: value for key, value in overrides.items() if key != "student.init"}
    sets = list(dict.fromkeys(candidate.data for candidate in candidates))
    if data or len(sets) == 1:
        data = data or sets[0]
        candidates = tuple(replace(candidate, data="") for candidate in candidates)
    conditions = from_anywhere(overrides)
    return Grid(data or sets[0], _from_anywhere(candidates), subsets, _seeds(seeds), conditions, terms, epochs, name)


def field(data: str) -> tuple[Candidate, ...]:
    """The shipped field for a person's images: by what a path holds besides, or named as the default recipe for images
    of their size."""
    source = open_source(data, annotations_first=True)
    name = DENSE.get(source.contents) or default_recipe(source)
    return tuple(replace(candidate, data="") for candidate in read_table(name).rows)


def _started(candidates: tuple[Candidate, ...], weights: Mapping[str, str]) -> tuple[Candidate, ...]:
    """Rows that start from weights which a person names, by their names or by a pattern such as DHVT-T*; rows that are
    trained alike share them."""
    names = [candidate.name for candidate in candidates]
    given: list[tuple[list[Any], str]] = []
    for pattern, path in weights.items():
        alike = [candidate.training for candidate in candidates if fnmatchcase(candidate.name, pattern)]
        if not alike:
            raise unknown("row to start from weights", pattern, names)
        given += [(training, path) for training in alike]
    starts = [next((path for training, path in given if training == row.training), None) for row in candidates]
    return tuple(
        candidate if path is None else replace(candidate, overrides={**candidate.overrides, "student.init": path})
        for candidate, path in zip(candidates, starts, strict=True)
    )


def _from_anywhere(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Candidates whose weights are found from any working folder."""
    return tuple(replace(candidate, overrides=from_anywhere(candidate.overrides)) for candidate in candidates)


def _length(overrides: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Overrides without the number of epochs, which is a study's own affair, and that number."""
    rest = dict(overrides)
    epochs = rest.pop("train.epochs", None)
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool)):
        raise UserError(f"epochs must be a whole number, got {epochs!r}")
    return rest, epochs


def _seeds(count: int) -> tuple[int, ...]:
    if not 1 <= count <= 1000:
        raise UserError(f"a study needs at least one seed and at most 1000, got {count}; three give a spread")
    return tuple(range(count))
