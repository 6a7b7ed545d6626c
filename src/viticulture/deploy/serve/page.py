# SPDX-License-Identifier: Apache-2.0
"""The page on which a person drops images."""

import base64
import hashlib
from dataclasses import dataclass

from ...errors import comma_separated
from ...evaluation.dense.draw import color_of
from ...evaluation.headline import read_headline
from ...report.html import Markup, fill, source
from ...training.run_folder import RunFolder
from .answerer import Answerer
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
    sentence = f"{facts['student']['name']} {_what(answerer)}, learnt from {facts['data']['name']}"
    sentence += _how_well(run, weights)
    html = fill(
        "serve.html",
        title=f"{facts['student']['name']} on {facts['data']['name']}",
        sentence=f"{sentence}.",
        most=(MAX_FILES, MAX_BYTES - OVERHEAD),
        tells=answerer.tells,
        classes=comma_separated(answerer.data_spec.classes),
        colors=_colors(answerer),
        looks=answerer.looks,
        style=Markup(style),
        script=Markup(script),
    )
    policy = (
        f"default-src 'none'; img-src data: blob:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    return Page(str(html), policy)


def _what(answerer: Answerer) -> str:
    """What a network does, beside so many classes."""
    data_spec, counted = answerer.data_spec, f"{len(answerer.data_spec.classes):,}"
    if answerer.tells == "objects":
        return f"finds objects of {counted} {'class' if len(data_spec.classes) == 1 else 'classes'}"
    if answerer.tells == "pixels":
        return f"tells pixels of {counted} classes apart"
    return f"tells {counted} {'labels' if data_spec.several else 'classes'} apart"


def _how_well(run: RunFolder, weights: str) -> str:
    """The number that counts, of these weights if any are named, as the end of a sentence; "" where it is not known."""
    headline = read_headline(run, weights)
    if headline is None:
        return ""
    low, high = (f"{100 * end:.1f}" for end in headline.interval)
    number = f"{100 * headline.value:.1f} %"
    number = f"{number} right" if headline.name == "top-1" else f"{headline.name} {number}"
    more = "; labels from their thresholds on are bold" if headline.name == "mAP" else ""
    if headline.threshold is not None:
        more = f"; drawn from a score of {headline.threshold:.2f} on"
    return f": {number} (95 % interval {low} to {high}) on {headline.images:,} {headline.split} images{more}"


def _colors(answerer: Answerer) -> dict[str, str]:
    """By class, as they are drawn; of classes of whole images none."""
    if answerer.tells == "classes":
        return {}
    return {
        name: "#{:02x}{:02x}{:02x}".format(*color_of(label)) for label, name in enumerate(answerer.data_spec.classes)
    }


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
