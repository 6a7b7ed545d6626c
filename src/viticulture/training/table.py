# SPDX-License-Identifier: Apache-2.0
"""A table of a paper as a file: rows of recipe, overrides and published number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ..data.sources.labels import natural
from ..disk import read_text
from ..errors import UserError, unknown
from ..keywords import check_fields
from ..text import read_yaml

OF_CLASSES = "accuracy", "loss", "top5", "divergence", "robustness", "localization", "probe"
OF_OBJECTS_PIXELS_LABELS = "ap", "ap50", "ap75", "ap_masks", "miou", "pixels", "map", "micro_f1", "macro_f1", "exact"
MEASURES = *OF_CLASSES, *OF_OBJECTS_PIXELS_LABELS
"""What a row's number may be, by the first word of its measure; besides, whatever a guide or a head measures on
held-out images in training, such as `bootstrap_agent_accuracy`: words joined by underscores."""


@dataclass(frozen=True)
class Row:
    """One row of a paper's table: the published number, and the recipe with overrides that reproduces it.

    Args:
        name: as the paper prints it.
        recipe: name of a shipped recipe.
        data: data set that `viticulture train` reads.
        overrides: dotted recipe keys that differ from the recipe; `row:NAME` is the run of another row.
        published: the paper's number, in percent unless the table says otherwise; None where it prints none.
        seeds: trainings behind the published number.
        seed_offset: added to the seed, for a second training of the same thing, such as another teacher.
        measure: what the number is; accuracy is the student's, others are listed in `study.run.measures.other_measure`.
    """

    name: str
    recipe: str
    data: str
    overrides: dict[str, Any]
    published: float | None
    seeds: int
    measure: str
    seed_offset: int = 0

    def __post_init__(self) -> None:
        check_fields(f"row {self.name}", self)
        check_measure(f"row {self.name}", self.measure)


@dataclass(frozen=True)
class Table:
    """A paper's table or figure.

    Args:
        name: PAPER/tableN, the file's name.
        title: what it shows and in which unit.
        rows: in the paper's order.
        left_out: what of it no row trains, with its published numbers -> why.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def row(self, name: str) -> Row:
        """A row by its name. Raises: UserError naming the nearest."""
        for row in self.rows:
            if row.name == name:
                return row
        raise unknown(f"row of table {self.name}", name, (row.name for row in self.rows))


def check_measure(owner: str, measure: str) -> None:
    """Raises: UserError, naming the nearest, where nothing measures what someone's number is said to be."""
    kind, slash, _ = measure.partition("/")
    if kind not in MEASURES and (slash or "_" not in kind):
        raise unknown(f"measure of {owner}", kind, MEASURES)


def tables() -> dict[str, Path]:
    """Name -> file of every table in the package."""
    root = Path(str(resources.files("viticulture"))) / "tables"
    files = {str(path.relative_to(root).with_suffix("")): path for path in root.rglob("*.yaml")}
    return {name: files[name] for name in sorted(files, key=natural)}


def read_table(name: str) -> Table:
    """A table by its name, or a YAML file of that form. Raises: UserError for an unknown name or a malformed file."""
    if name not in (files := tables()) and not name.endswith((".yaml", ".yml")):
        raise unknown("table", name, files)
    content = read_yaml(read_text(files.get(name, Path(name)), "table"), f"table {name}")
    try:
        shared = {"recipe": content.get("recipe"), "data": content.get("data"), "seeds": 1, "measure": "accuracy"}
        given = [{"overrides": {}, "published": None, **shared, **row} for row in content["rows"]]
        return Table(
            name, content["title"], tuple(row for keys in given for row in _rows(keys)), content.get("left_out", {})
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"table {name} is malformed: {' '.join(str(error).split())}") from error


def _rows(keys: dict[str, Any]) -> list[Row]:
    """A row of a file, and one more for each measure that the file says `also` has a published number: `NAME, MEASURE`.
    They are trained alike, so a study trains them once."""
    also = keys.pop("also", {})
    more = [{"name": f"{keys['name']}, {name}", "measure": name, "published": value} for name, value in also.items()]
    return [Row(**{**keys, **own}) for own in ({}, *more)]
