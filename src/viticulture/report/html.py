# SPDX-License-Identifier: Apache-2.0
"""The templates of this room, filled with plain data: every text is cleaned and escaped, but for finished HTML.

Jinja2 rather than our own f-strings: its autoescape leaves no text out, whoever adds a line to a template.
"""

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.cells import cell_len, set_cell_size

from ..text import clean

__all__ = ["Markup", "fill", "source"]


def fill(template: str, **values: Any) -> Markup:
    """A template of `templates/`, such as "figure.html", as finished HTML."""
    return Markup(_environment().get_template(f"{template}.j2").render(values))


def source(name: str) -> str:
    """A style sheet or script of `templates/` as it is."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("viticulture.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    made.filters |= {"pixels": lambda value: f"{value:.1f}", "short": _short, "json": _json, "lines": _lines}
    return made


def _short(words: str, cells: int) -> str:
    """Words cut to so many columns of a terminal; a wide letter takes two."""
    words = clean(words)
    return words if cell_len(words) <= cells else f"{set_cell_size(words, cells - 1).rstrip()}…"


def _json(value: Any) -> str:
    """For an attribute that a script reads."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _lines(words: str) -> Markup:
    """Words whose lines stay apart."""
    return Markup("&#10;").join(map(clean, words.split("\n")))
