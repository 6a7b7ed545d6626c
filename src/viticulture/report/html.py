# SPDX-License-Identifier: Apache-2.0
"""Pages as self-contained HTML files, their templates, and the parts that all pages share.

Every text is cleaned and escaped, except finished HTML: Jinja2's autoescape covers every line of a template.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.cells import cell_len, set_cell_size

from ..table import Spread, Table
from ..text import clean

__all__ = [
    "Head", "Markup", "Section", "Tile", "document", "fill", "html_table", "properties", "side_by_side", "source",
]  # fmt: skip

TERMS = {
    "AP": "average precision: the area under the curve of precision over recall, mean over classes",
    "balanced accuracy": "the mean over classes of the share of their images that are classified correctly",
    "CKA": "centered kernel alignment: how similar the features of two layers are, from 0 to 1",
    "calibration error": "mean difference between confidence and accuracy; 0 % is perfect",
    "KL": "Kullback-Leibler divergence: how far two predictions are apart; 0 is equal",
    "IoU": "intersection over union: the area that prediction and truth share, relative to the area of both",
    "macro-F1": "the mean over classes of F1, the harmonic mean of precision and recall",
    "MACs": "multiply-accumulate operations for one image: multiplications, each with an addition",
    "mAP": "mean average precision: average precision, mean over labels or classes",
    "mIoU": "mean over classes of the intersection over union of predicted and true pixels",
    "NLL": "negative log-likelihood of the true classes, mean over images; 0 is perfect, lower is better",
    "precision": "of what is predicted as a class, the share that belongs to it",
    "recall": "of what belongs to a class, the share that is predicted as it",
    "Wilson": "Wilson's score interval for a share of so many images",
}
"""Terms that pages explain under the pointer."""
_TERM = re.compile(rf"(?<![\w-])({'|'.join(sorted(TERMS, key=len, reverse=True))})(?![\w-])")


@dataclass(frozen=True)
class Section:
    """A part of a page; `html` is finished by a template (plain text is escaped). A folded one opens at a click."""

    title: str
    html: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Tile:
    """A number at the top of a page, with its label and a note; `wide` for the most important one."""

    label: str
    value: str
    note: str
    wide: bool = False


@dataclass(frozen=True)
class Head:
    """The top of a page."""

    title: str
    conclusion: str = ""
    sentence: str = ""
    warnings: Sequence[str] = ()  # what a reader must know before the numbers
    tiles: Sequence[Tile] = ()
    reloads: bool = False  # whether the page reloads itself every few seconds


def document(head: Head, sections: Sequence[Section]) -> str:
    """Return a page; sections without content are left out.

    Style, script, figures and pictures are inside. Its content security policy forbids every request and every
    script but the page's, so that nothing in a name, a recipe or a section can run.
    """
    script = source("page.js")
    page = fill(
        "page.html",
        head=head,
        sections=[section for section in sections if section.html],
        style=Markup(source("page.css")),
        script=Markup(script),
        digest=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
    )
    return str(page)


def html_table(table: Table, sortable: bool = False, frame: str = "", links: Sequence[str] = ()) -> Markup:
    """Return a table as HTML; percentages have a bar, a click on a heading sorts. `links`: target of each row's first
    cell; empty for none.
    """
    rows = [
        [
            (text, (value.mean if isinstance(value, Spread) else value) if not isinstance(value, str) else None)
            for value, text in zip(row, texts, strict=True)
        ]
        for row, texts in zip(table.rows, table.texts(), strict=True)
    ]
    linked = list(zip(rows, list(links) or [""] * len(rows), strict=True))
    values = {"table": table, "rows": linked, "sortable": sortable, "frame": frame}
    return fill("table.html", title=table.title, note=table.note, **values)


def properties(rows: Mapping[str, str]) -> Markup:
    """Return names and values, line by line."""
    return fill("properties.html", title="", note="", rows=rows) if rows else Markup()


def side_by_side(*parts: str) -> Markup:
    """Return parts in columns, as many as fit."""
    return Markup('<div class="grid-2">{}</div>').format(Markup().join(parts)) if any(parts) else Markup()


def fill(template: str, **values: Any) -> Markup:
    """Return a template of `templates/`, such as "figure.html", as finished HTML."""
    return Markup(_environment().get_template(f"{template}.j2").render(values))


def source(name: str) -> str:
    """Return a style sheet or script of `templates/`."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("viticulture.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {
        "pixels": lambda value: f"{value:.1f}",
        "short": _short,
        "json": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        "lines": lambda text: Markup("&#10;").join(map(clean, text.split("\n"))),
        "terms": _terms,
    }
    return environment


def _short(text: str, cells: int) -> str:
    """Cut a text to a number of columns of a terminal; a wide letter takes two."""
    text = clean(text)
    return text if cell_len(text) <= cells else f"{set_cell_size(text, cells - 1).rstrip()}…"


def _terms(text: str) -> Markup:
    """Add an explanation to the first term of a text."""
    text = clean(text)
    if (match := _TERM.search(text)) is None:
        return escape(text)
    term = Markup('<abbr title="{}">{}</abbr>').format(TERMS[match[0]], match[0])
    return escape(text[: match.start()]) + term + escape(text[match.end() :])
