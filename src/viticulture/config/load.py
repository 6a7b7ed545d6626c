# SPDX-License-Identifier: Apache-2.0
"""Recipes as files: those in the package and the user's own."""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ..disk import read_text
from ..errors import UserError, unknown
from ..text import read_yaml
from .references import where_they_lie
from .resolve import Config, resolve


def load_config(name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the config of a shipped recipe, or of a YAML file, with dotted overrides (`{"train.epochs": 3}`)."""
    return resolve(name, read(name), overrides)


def shipped() -> dict[str, Path]:
    """Name -> file of every recipe in the package, `PAPER/NAME`."""
    root = Path(str(resources.files("viticulture"))) / "recipes"
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.yaml"))}


def read(name: str) -> dict[str, Any]:
    """The raw values of a shipped recipe, or of a YAML file given by its path."""
    files = shipped()
    if name not in files and not name.endswith((".yaml", ".yml")):
        raise unknown("recipe", name, files, "viticulture recipes")
    path = files.get(name, Path(name))
    return where_they_lie(path.parent, parse(read_text(path, "recipe"), name))


def parse(text: str, name: str) -> dict[str, Any]:
    """YAML text as raw recipe values."""
    raw = read_yaml(text, f"recipe {name}")
    if not isinstance(raw, dict):
        raise UserError(f"recipe {name} must hold sections such as 'student:' and 'train:', got {type(raw).__name__}")
    return raw


def about(name: str) -> dict[str, str]:
    """A shipped recipe's header comment: `What` it trains, then Command, Published, Hardware, Result, Note as given."""
    lines = shipped()[name].read_text(encoding="utf-8").splitlines()
    sections, key = {"What": ""}, "What"
    for line in (line[1:].strip() for line in lines if line.startswith("#")):
        if match := re.match(r"([A-Z][a-z]+):\s+(.*)", line):
            key, line = match[1], match[2]
        sections[key] = f"{sections.get(key, '')} {line}".strip()
    return sections
