# SPDX-License-Identifier: Apache-2.0
"""A page as one self-contained HTML file, and the pieces that all pages share."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from .charts.marks import text


@dataclass(frozen=True)
class Section:
    """A part that a method adds: `html` is made with `report.figures`, where every text is escaped."""

    title: str
    html: str


def document(title: str, header: str, found: Sequence[Section], more: Sequence[str] = ()) -> str:
    """A page of finished parts; those without content are left out.

    Style, script, figures and pictures are inside. Its content security policy forbids every request and every
    script but its own, so that nothing in a name, a recipe or a section can run.

    Args:
        title: of the page.
        header: finished HTML below the title.
        found: the parts, which the page links to.
        more: style sheets (.css) and scripts (.js) of this package beside the page's own.
    """
    names = ("page.css", "page.js", *more)
    folder = resources.files("viticulture.report") / "templates"
    files = {name: folder.joinpath(name).read_text("utf-8") for name in names}
    style, script = ("\n".join(words for name, words in files.items() if name.endswith(end)) for end in (".css", ".js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    sections = [section for section in found if section.html]
    links = "".join(f'<a href="#part-{i}">{text(section.title)}</a>' for i, section in enumerate(sections))
    parts = "".join(f'<h2 id="part-{i}">{text(s.title)}</h2>{s.html}' for i, s in enumerate(sections))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body>'
        f"<header><h1>{text(title)}</h1>{header}"
        f"<nav>{links}</nav></header><main>{parts}</main><script>{script}</script></body></html>\n"
    )


def tile(label: str, value: str, note: str, kind: str = "") -> str:
    """A number worth seeing first."""
    return f'<div class="{kind}"><dt>{text(label)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>'


def warning_box(title: str, warnings: Sequence[str]) -> str:
    """Sentences in a frame that catches the eye; nothing where there are none."""
    items = "".join(f"<li>{text(warning)}</li>" for warning in warnings)
    return f'<div class="warnings"><strong>{text(title)}</strong><ul>{items}</ul></div>' if items else ""


def scaled(value: float | None) -> str:
    """5717416 -> 5.72 M, 1.26e9 -> 1.26 G."""
    if value is None:
        return "n/a"
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == ' k' else limit):.3g}{unit}"
    return f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """8042 -> 2 h 14 min."""
    if seconds is None:
        return "n/a"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
