# SPDX-License-Identifier: Apache-2.0
"""From what a person asks for to a declared grid."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from ...data.open import open_source
from ...data.sources.source import Source
from ...errors import UserError, unknown
from ...training.session import default_recipe
from ...training.table import read_table
from .grid import CONDITIONS, Contender, Grid, of_recipes, of_table
from .terms import Amounts, Terms

BUDGET = "1h"
"""Of a study that names neither recipes nor a length."""


def of_own_images(
    data: str, recipes: Sequence[str], amounts: Amounts, seeds: int, terms: Terms, overrides: dict[str, Any]
) -> Grid:
    """Recipes on a person's images; without recipes the field for images of their size, within an hour."""
    overrides, epochs = _length(overrides)
    contenders = of_recipes(recipes)
    if not contenders:
        contenders = field(open_source(data))
        if not terms.budget and epochs is None:
            terms = replace(terms, budget=BUDGET)
    conditions = {**CONDITIONS, **overrides}
    return Grid(data, contenders, amounts, _seeds(seeds), conditions, terms, epochs)


def of_a_table(name: str, data: str, amounts: Amounts, seeds: int, terms: Terms, overrides: dict[str, Any]) -> Grid:
    """A paper's table, every row as the paper trains it; `data` replaces its data sets.

    `student.init` among the overrides may be a mapping: row -> weights that it starts from.
    """
    overrides, epochs = _length(overrides)
    contenders = of_table(read_table(name))
    if isinstance(weights := overrides.get("student.init"), Mapping):
        contenders = _started(contenders, weights)
        overrides = {key: value for key, value in overrides.items() if key != "student.init"}
    sets = list(dict.fromkeys(one.data for one in contenders))
    if data or len(sets) == 1:
        data = data or sets[0]
        contenders = tuple(replace(one, data="") for one in contenders)
    return Grid(data or sets[0], contenders, amounts, _seeds(seeds), overrides, terms, epochs, name)


def field(source: Source) -> tuple[Contender, ...]:
    """The shipped field for images of a source's size: a table named as the default recipe is."""
    return tuple(replace(one, data="") for one in of_table(read_table(default_recipe(source))))


def _started(contenders: tuple[Contender, ...], weights: Mapping[str, str]) -> tuple[Contender, ...]:
    """Rows that start from weights which a person names, by their names or by a pattern such as DHVT-T*; rows that are
    trained alike share them."""
    names = [contender.name for contender in contenders]
    given: list[tuple[list[Any], str]] = []
    for pattern, path in weights.items():
        alike = [contender.training for contender in contenders if fnmatchcase(contender.name, pattern)]
        if not alike:
            raise unknown("row to start from weights", pattern, names)
        given += [(training, path) for training in alike]
    starts = [next((path for training, path in given if training == one.training), None) for one in contenders]
    return tuple(
        contender if path is None else replace(contender, overrides={**contender.overrides, "student.init": path})
        for contender, path in zip(contenders, starts, strict=True)
    )


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
