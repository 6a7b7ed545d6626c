# SPDX-License-Identifier: Apache-2.0
"""What every figure is made of: safe words, written numbers, an SVG frame, a figure with its caption."""

from html import escape

from rich.cells import cell_len, set_cell_size

from ...text import clean


def text(words: object) -> str:
    """Words safe inside HTML, in an attribute too; characters that steer the reader are replaced."""
    return escape(clean(str(words)))


def short(words: str, cells: int) -> str:
    """Words cut to so many columns of a terminal (a wide letter takes two); the whole as a tooltip."""
    words = clean(words)
    if cell_len(words) <= cells:
        return escape(words)
    return f"{escape(set_cell_size(words, cells - 1).rstrip())}…<title>{escape(words)}</title>"


def number(value: float) -> str:
    """A number for an axis: 4 digits at most, 3e-4 rather than 0.0003."""
    if value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.6g}" if abs(value) >= 1000 else f"{value:.4g}"


def figure(title: str, inside: str, note: str = "") -> str:
    """A figure of finished HTML under a caption and above a note."""
    caption = f"<figcaption>{text(title)}</figcaption>" if title else ""
    return f"<figure>{caption}{inside}" + (f'<p class="note">{text(note)}</p>' if note else "") + "</figure>"


def svg(kind: str, width: float, height: float, label: str, inside: str, data: str = "") -> str:
    """A drawing of finished shapes that scales with the page; `label` is what a screen reader says."""
    size = f'viewBox="0 0 {width:g} {height:g}" style="--natural:{width:g}px"'
    return f'<svg class="{kind}" {size} role="img" aria-label="{text(label)}" {data}>{inside}</svg>'
