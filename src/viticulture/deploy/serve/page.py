# SPDX-License-Identifier: Apache-2.0
"""The page on which a person drops images."""

import base64
import hashlib
from dataclasses import dataclass

from ...errors import comma_separated, counted
from ...report.html import Markup, fill, source
from ...training.run_folder import RunFolder
from .answers import Answerer
from .limits import MAX_BYTES, MAX_FILES

OVERHEAD = 1024**2
"""Bytes of a request that the page leaves to what stands between the images."""


@dataclass(frozen=True)
class Page:
    """One page.

    Args:
        html: all of it; style and script are inside.
        policy: what a browser may do for it: run this very script and style, show images, ask this server.
    """

    html: str
    policy: str


def page(run: RunFolder, answerer: Answerer, weights: str = "") -> Page:
    """What a run's student is, how well it does, and a place to drop images; weights: those of the student."""
    script, style = source("serve.js"), source("page.css") + source("serve.css")
    facts = run.read("run.json")
    task, unit = answerer.task, counted(len(answerer.data_spec.classes), answerer.task.unit[0])
    sentence = f"{facts['student']['name']} {task.does} ({unit}), trained on {facts['data']['name']}"
    sentence += _how_well(answerer, weights)
    classes = answerer.data_spec.classes
    html = fill(
        "serve.html",
        title=f"{facts['student']['name']} on {facts['data']['name']}",
        sentence=f"{sentence}.",
        most=(MAX_FILES, MAX_BYTES - OVERHEAD),
        task=task,
        classes=comma_separated(classes),
        colors={name: "#{:02x}{:02x}{:02x}".format(*color) for name, color in task.colors(classes).items()},
        looks=answerer.predictor.draws,
        style=Markup(style),
        script=Markup(script),
    )
    policy = (
        f"default-src 'none'; img-src data: blob:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    return Page(str(html), policy)


def _how_well(answerer: Answerer, weights: str) -> str:
    """The number that counts, of these weights if any are named, as the end of a sentence; "" where it is not known."""
    headline = answerer.task.headline(weights)
    if headline is None:
        return ""
    more = answerer.task.caption
    number = f"{headline.written} right" if headline.name == "top-1" else str(headline)
    if headline.threshold is not None:
        more = f"drawn from a score of {headline.threshold:.2f} on"
    words = f": {number} (95 % interval {headline.written_interval}) on {headline.images:,} {headline.split} images"
    return f"{words}; {more}" if more else words


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
