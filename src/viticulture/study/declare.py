# SPDX-License-Identifier: Apache-2.0
"""Grids from the arguments of `compare`: recipes on the user's images, or a paper's table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from ..config.keys import FINE_TUNE, PROBE, flat
from ..config.references import from_anywhere
from ..config.start import LARGEST_SIDE, load_started
from ..data.open import open_source
from ..errors import UserError, counted, unknown
from ..training.data import default_recipe
from .grid import CONDITIONS, Candidate, Grid, of_recipes
from .paper_tables import read_table
from .terms import AUTO, Subsets, Terms

SEEDS = 3  # default of a study without folds


def grid_of_recipes(
    data: str, recipes: Sequence[str], subsets: Subsets, seeds: int | None, terms: Terms, overrides: dict[str, Any]
) -> Grid:
    """Compare recipes on the user's images; without recipes, the default candidates for images of their size."""
    overrides, epochs = _without_epochs(overrides)
    candidates = of_recipes(recipes)
    if not candidates:
        candidates = default_candidates(data)
        if "student.init" in overrides and all(each.recipe.startswith("default/") for each in candidates):
            source = str(overrides.pop("student.init"))
            candidates = (*candidates, _of_network(Candidate("pre-trained", FINE_TUNE), source, overrides))
        if not terms.budget and epochs is None:
            terms = replace(terms, budget=AUTO)
    elif "student.init" in overrides and any(each.recipe in (FINE_TUNE, PROBE) for each in candidates):
        source = from_anywhere({"student.init": overrides.pop("student.init")})["student.init"]
        candidates = _with_weights(candidates, {"*": source}, overrides)
    conditions = from_anywhere({**CONDITIONS, **overrides})
    if subsets.folds and seeds is not None:
        raise UserError(
            f"every fold is trained once, got {subsets.folds} folds and {counted(seeds, 'seed')}; leave one of them out"
        )
    numbers = _seeds(subsets.folds or (SEEDS if seeds is None else seeds))
    return Grid(data, candidates, subsets, numbers, conditions, terms, epochs)


def grid_of_table(name: str, data: str, subsets: Subsets, seeds: int, terms: Terms, overrides: dict[str, Any]) -> Grid:
    """Train a paper's table, every row as the paper does; `data` replaces its data sets.

    `student.init` among the overrides may be a mapping: row -> initial weights.
    """
    if subsets.folds:
        raise UserError(f"{name} is trained on the splits of its paper; leave --folds {subsets.folds} out")
    overrides, epochs = _without_epochs(overrides)
    candidates = read_table(name).rows
    if isinstance(weights := overrides.get("student.init"), Mapping):
        overrides = {key: value for key, value in overrides.items() if key != "student.init"}
        candidates = _with_weights(candidates, weights, overrides)
    sets = list(dict.fromkeys(candidate.data for candidate in candidates))
    if data or len(sets) == 1:
        data = data or sets[0]
        candidates = tuple(replace(candidate, data="") for candidate in candidates)
    candidates = tuple(replace(each, overrides=from_anywhere(each.overrides)) for each in candidates)
    conditions = from_anywhere(overrides)
    return Grid(data or sets[0], candidates, subsets, _seeds(seeds), conditions, terms, epochs, name)


def default_candidates(data: str) -> tuple[Candidate, ...]:
    """Return the shipped candidates for a data set: by its annotations, or else by the size of its images."""
    source = open_source(data, annotations_first=True)
    return tuple(replace(candidate, data="") for candidate in read_table(default_recipe(source)).rows)


def _of_network(row: Candidate, source: str, overrides: Mapping[str, Any]) -> Candidate:
    """Return a row that fine-tunes or probes a trained network with its architecture, colors and image size."""
    config = load_started(row.recipe, {**row.overrides, **overrides, "student.init": source})
    values = flat(config.values)
    brought = {key: values[key] for key, by in config.changes.items() if by == "init"}
    if isinstance(side := brought.get("images.image_size"), int):
        brought["images.image_size"] = min(side, LARGEST_SIDE)
    return replace(row, overrides={**row.overrides, "student.init": source, **brought})


def _with_weights(
    candidates: tuple[Candidate, ...], weights: Mapping[str, str], overrides: Mapping[str, Any]
) -> tuple[Candidate, ...]:
    """Set the initial weights of rows by name or by a pattern such as DHVT-T*; rows that train the same thing share
    them. `overrides`: of all rows, before which a network's own image size and colors stand back."""
    starts: list[tuple[list[Any], str]] = []
    for pattern, path in weights.items():
        same = [candidate.training for candidate in candidates if fnmatchcase(candidate.name, pattern)]
        if not same:
            raise unknown("row to start from weights", pattern, [candidate.name for candidate in candidates])
        starts += [(training, path) for training in same]

    def started(row: Candidate) -> Candidate:
        path = next((path for training, path in starts if training == row.training), None)
        if path is None:
            return row
        if row.recipe in (FINE_TUNE, PROBE):
            return _of_network(row, path, overrides)
        return replace(row, overrides={**row.overrides, "student.init": path})

    return tuple(map(started, candidates))


def _without_epochs(overrides: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Split overrides into those of recipes and the number of epochs, which belongs to the grid."""
    rest = dict(overrides)
    epochs = rest.pop("train.epochs", None)
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool)):
        raise UserError(f"epochs must be a whole number, got {epochs!r}")
    return rest, epochs


def _seeds(count: int) -> tuple[int, ...]:
    if not 1 <= count <= 1000:
        raise UserError(f"a study needs at least one seed and at most 1000, got {count}; three give a spread")
    return tuple(range(count))
