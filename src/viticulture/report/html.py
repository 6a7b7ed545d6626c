# SPDX-License-Identifier: Apache-2.0
"""The templates of this room, filled with plain data: every text is cleaned and escaped, but for finished HTML.

Jinja2 rather than our own f-strings: its autoescape leaves no text out, whoever adds a line to a template.
"""

# A page as one self-contained HTML file, and the parts that all pages share.
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

__all__ = ["Markup", "fill", "source"]

TERMS = {
    "AP": "average precision: the area under the curve of precision over recall, mean over classes",
    "balanced accuracy": "the mean over classes of the share of their images that are classified correctly",
    "CKA": "centered kernel alignment: how similar the features of two layers are, from 0 to 1",
    "calibration error": "mean difference between confidence and accuracy; 0 % is perfect",
    "IoU": "intersection over union: the area that prediction and truth share, relative to the area of both",
    "macro-F1": "the mean over classes of F1, the harmonic mean of precision and recall",
    "MACs": "multiply-accumulate operations for one image; a multiply-add each",
    "mAP": "mean average precision: average precision, mean over labels or classes",
    "mIoU": "mean over classes of the intersection over union of predicted and true pixels",
    "Multiply-adds": "multiplications, each with an addition, to compute the prediction for one image",
    "NLL": "negative log-likelihood of the true classes, mean over images; 0 is perfect, lower is better",
    "precision": "of what is predicted as a class, the share that belongs to it",
    "recall": "of what belongs to a class, the share that is predicted as it",
    "Wilson": "Wilson's score interval for a share of so many images",
}
"""Terms that pages explain under the pointer."""
_TERM = re.compile(rf"(?<![\w-])({'|'.join(sorted(TERMS, key=len, reverse=True))})(?![\w-])")


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
    made.filters |= {
        "pixels": lambda value: f"{value:.1f}",
        "short": _short,
        "json": _json,
        "lines": _lines,
        "terms": _terms,
    }
    return made


def _short(words: str, cells: int) -> str:
    """Words cut to so many columns of a terminal; a wide letter takes two."""
    words = clean(words)
    return words if cell_len(words) <= cells else f"{set_cell_size(words, cells - 1).rstrip()}…"


def _json(value: Any) -> str:
    """For an attribute that a script reads."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _terms(words: str) -> Markup:
    """Words with an explanation of their first term."""
    words = clean(words)
    if (found := _TERM.search(words)) is None:
        return escape(words)
    term = Markup('<abbr title="{}">{}</abbr>').format(TERMS[found[0]], found[0])
    return escape(words[: found.start()]) + term + escape(words[found.end() :])


def _lines(words: str) -> Markup:
    """Words whose lines stay apart."""
    return Markup("&#10;").join(map(clean, words.split("\n")))


@dataclass(frozen=True)
class Section:
    """A part of a page; its `html` is finished by a template (plain words are escaped, as any text is)."""

    title: str
    html: str = ""


@dataclass(frozen=True)
class Tile:
    """A number worth seeing first, with what it is and a note; `wide` for the most important one."""

    label: str
    value: str
    note: str
    wide: bool = False


@dataclass(frozen=True)
class Head:
    """What stands above a page's parts.

    Args:
        title: of the page.
        answer: the conclusion in a sentence or two.
        sentence: what it is about.
        warnings: what a reader must know before the numbers.
        tiles: numbers worth seeing first.
        renews: whether the page loads itself anew every few seconds.
    """

    title: str
    answer: str = ""
    sentence: str = ""
    warnings: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    renews: bool = False


def document(head: Head, sections: Sequence[Section]) -> str:
    """A page; parts without content are left out.

    Style, script, figures and pictures are inside. Its content security policy forbids every request and every
    script but its own, so that nothing in a name, a recipe or a section can run.
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
    """A table as an HTML table; shares carry a bar, a click on a heading sorts.

    Args:
        table: the table.
        sortable: whether its headings are buttons.
        frame: a class of the style sheet for what scrolls.
        links: where each row's first cell leads; empty for nowhere.
    """
    rows = [
        [
            (words, (value.mean if isinstance(value, Spread) else value) if not isinstance(value, str) else None)
            for value, words in zip(row, texts, strict=True)
        ]
        for row, texts in zip(table.rows, table.texts(), strict=True)
    ]
    places = list(links) or [""] * len(rows)
    values = {"table": table, "rows": list(zip(rows, places, strict=True)), "sortable": sortable, "frame": frame}
    return fill("table.html", title=table.title, note=table.note, **values)


def properties(rows: Mapping[str, str]) -> Markup:
    """Names and what they mean, line by line."""
    return fill("facts.html", title="", note="", rows=rows) if rows else Markup()


def side_by_side(*parts: str) -> Markup:
    """Parts in columns, as many as there is room for."""
    return Markup('<div class="grid-2">{}</div>').format(Markup().join(parts)) if any(parts) else Markup()
