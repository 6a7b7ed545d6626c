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
    """A paper's table or figure."""

    name: str
    title: str
    rows: tuple[Candidate, ...]

    def row(self, name: str) -> Candidate:
        """Return a row by its name. Raises: UserError naming the nearest."""
        if row := next((row for row in self.rows if row.name == name), None):
            return row
        raise unknown(f"row of table {self.name}", name, (row.name for row in self.rows))


def tables() -> dict[str, Path]:
    """Return name -> file of every table in the package."""
    root = Path(str(resources.files("viticulture"))) / "tables"
    files = {str(path.relative_to(root).with_suffix("")): path for path in root.rglob("*.yaml")}
    return {name: files[name] for name in sorted(files, key=natural)}


def read_table(name: str) -> PaperTable:
    """Read a table by its name, or a YAML file of that form. Raises: UserError if it is unknown or malformed.

    A row may list further published numbers under `also`: measure -> number. Each becomes a row `NAME, MEASURE`; rows
    that train the same thing share their cells in a study.
    """
    if name not in (files := tables()) and not name.endswith((".yaml", ".yml")):
        raise unknown("table", name, files)
    content = read_yaml(read_text(files.get(name, Path(name)), "table"), f"table {name}")
    rows: list[Candidate] = []
    try:
        for keys in content["rows"]:
            row: dict[str, Any] = {"recipe": content.get("recipe"), "data": content.get("data"), **keys}
            more = [
                {"name": f"{row['name']}, {measure}", "measure": measure, "published": number}
                for measure, number in row.pop("also", {}).items()
            ]
            rows += [
                Candidate(**known_keys(Candidate, {**row, **changes}, f"table {name}, rows")) for changes in ({}, *more)
            ]
        return PaperTable(name, content["title"], tuple(rows))
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"table {name} is malformed: {' '.join(str(error).split())}") from error
