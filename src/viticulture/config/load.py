# SPDX-License-Identifier: Apache-2.0
"""Recipes as files: those in the package and the user's. Imports PyTorch only to check their values."""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..disk import read_text
from ..errors import UserError, unknown
from ..text import read_yaml
from ..user_code import of_a_file

if TYPE_CHECKING:
    from .resolve import Config


def load_config(name: str, overrides: Mapping[str, Any] | None = None) -> "Config":
    """Return the config of a shipped recipe, or of a YAML file, with dotted overrides (`{"train.epochs": 3}`)."""
    from .resolve import resolve

    return resolve(name, read(name), overrides)


def saved_config(name: str, file: Path | Mapping[str, Any], folder: Path, guides: bool = True) -> "Config":
    """Return a config from a run, study or budget, which may name code only if the user has.

    Args:
        name: of the recipe that it began from.
        file: its YAML file, or its values.
        folder: of the run, study or budget, for the error.
        guides: whether every guide is needed, as for training; else guides of code that cannot be imported are left
            out, which a trained student works without.
    """
    from .resolve import resolve
    from .schema import is_here

    with of_a_file(folder):
        values = dict(parse(read_text(file, "recipe"), str(file)) if isinstance(file, Path) else file)
        if not guides:
            values["guides"] = {
                key: entry for key, entry in (values.get("guides") or {}).items() if is_here(key, entry)
            }
        return resolve(name, values)


def shipped() -> dict[str, Path]:
    """Return name -> file of every recipe in the package, `PAPER/NAME`."""
    root = Path(str(resources.files("viticulture"))) / "recipes"
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.yaml"))}


def read(name: str) -> dict[str, Any]:
    """Return the raw values of a shipped recipe, or of a YAML file by its path."""
    from .references import where_they_lie

    files = shipped()
    if name not in files and not name.endswith((".yaml", ".yml")):
        raise unknown("recipe", name, files, "viticulture recipes")
    path = files.get(name, Path(name))
    return where_they_lie(path.parent, parse(read_text(path, "recipe"), name))


def parse(text: str, name: str) -> dict[str, Any]:
    """Return YAML text as raw recipe values."""
    raw = read_yaml(text, f"recipe {name}")
    if not isinstance(raw, dict):
        raise UserError(f"recipe {name} must hold sections such as 'student:' and 'train:', got {type(raw).__name__}")
    return raw


def about(name: str) -> dict[str, str]:
    """Return a shipped recipe's header comment: `What` it trains, then Command, Published, Hardware, Result, Note."""
    lines = shipped()[name].read_text(encoding="utf-8").splitlines()
    sections, key = {"What": ""}, "What"
    for line in (line[1:].strip() for line in lines if line.startswith("#")):
        if match := re.match(r"([A-Z][a-z]+):\s+(.*)", line):
            key, line = match[1], match[2]
        sections[key] = f"{sections.get(key, '')} {line}".strip()
    return sections
