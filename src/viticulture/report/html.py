# SPDX-License-Identifier: Apache-2.0
"""The templates of this room, filled with plain data: every text is cleaned and escaped, but for finished HTML.

Jinja2 rather than our own f-strings: its autoescape leaves no text out, whoever adds a line to a template.
"""

import json
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.cells import cell_len, set_cell_size

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
