# SPDX-License-Identifier: Apache-2.0
"""A page as one self-contained HTML file, and the parts that all pages share."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..table import Spread, Table
from .html import Markup, fill, source


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


def table(sheet: Table, sortable: bool = False, frame: str = "", links: Sequence[str] = ()) -> Markup:
    """A sheet as an HTML table; shares carry a bar, a click on a heading sorts.

    Args:
        sheet: the table.
        sortable: whether its headings are buttons.
        frame: a class of the style sheet for what scrolls.
        links: where each row's first cell leads; empty for nowhere.
    """
    rows = [
        [
            (words, (value.mean if isinstance(value, Spread) else value) if not isinstance(value, str) else None)
            for value, words in zip(row, texts, strict=True)
        ]
        for row, texts in zip(sheet.rows, sheet.texts(), strict=True)
    ]
    places = list(links) or [""] * len(rows)
    values = {"sheet": sheet, "rows": list(zip(rows, places, strict=True)), "sortable": sortable, "frame": frame}
    return fill("table.html", title=sheet.title, note=sheet.note, **values)


def facts(rows: Mapping[str, str]) -> Markup:
    """Names and what they mean, line by line."""
    return fill("facts.html", title="", note="", rows=rows) if rows else Markup()


def beside(*parts: str) -> Markup:
    """Parts in columns, as many as there is room for."""
    return Markup('<div class="grid-2">{}</div>').format(Markup().join(parts)) if any(parts) else Markup()
