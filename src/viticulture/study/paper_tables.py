# SPDX-License-Identifier: Apache-2.0
"""A table of a paper as a file: rows of recipe, overrides and published number."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..data.sources.labels import natural
from ..disk import read_text
from ..errors import UserError, unknown
from ..text import read_yaml
from .grid import Candidate, known_keys


@dataclass(frozen=True)
class PaperTable:
    """A paper's table or figure.

    Args:
        name: PAPER/tableN, the file's name.
        title: what it shows and in which unit.
        rows: in the paper's order, by the names that it prints.
    """

    name: str
    title: str
    rows: tuple[Candidate, ...]

    def row(self, name: str) -> Candidate:
        """A row by its name. Raises: UserError naming the nearest."""
        for row in self.rows:
            if row.name == name:
                return row
        raise unknown(f"row of table {self.name}", name, (row.name for row in self.rows))


def tables() -> dict[str, Path]:
    """Name -> file of every table in the package."""
    root = Path(str(resources.files("viticulture"))) / "tables"
    files = {str(path.relative_to(root).with_suffix("")): path for path in root.rglob("*.yaml")}
    return {name: files[name] for name in sorted(files, key=natural)}


def read_table(name: str) -> PaperTable:
    """A table by its name, or a YAML file of that form. Raises: UserError for an unknown name or a malformed file."""
    if name not in (files := tables()) and not name.endswith((".yaml", ".yml")):
        raise unknown("table", name, files)
    content = read_yaml(read_text(files.get(name, Path(name)), "table"), f"table {name}")
    try:
        shared = {"recipe": content.get("recipe"), "data": content.get("data")}
        rows = [row for keys in content["rows"] for row in _rows(f"table {name}, rows", {**shared, **keys})]
        return PaperTable(name, content["title"], tuple(rows))
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"table {name} is malformed: {' '.join(str(error).split())}") from error


def _rows(where: str, keys: dict[str, Any]) -> list[Candidate]:
    """A row of a file, and one more for each measure that the file says `also` has a published number: `NAME, MEASURE`.
    They are trained alike, so a study trains them once."""
    also = keys.pop("also", {})
    more = [{"name": f"{keys['name']}, {name}", "measure": name, "published": value} for name, value in also.items()]
    return [Candidate(**known_keys(Candidate, {**keys, **own}, where)) for own in ({}, *more)]
