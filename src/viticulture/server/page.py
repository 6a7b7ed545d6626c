# SPDX-License-Identifier: Apache-2.0
"""The page on which a person drops images."""

import base64
import hashlib
from dataclasses import dataclass

from ..evaluation.multilabel.results import read_labels
from ..evaluation.results import read_evaluations
from ..report.html import Markup, fill, source
from ..training.rundir import RunDir
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


def page(run: RunDir, answerer: Answerer, weights: str = "") -> Page:
    """What a run's student is, how well it does, and a place to drop images; weights: those of the student."""
    script, style = source("serve.js"), source("page.css") + source("serve.css")
    facts, task = run.read("run.json"), answerer.subject.task
    evaluations = read_evaluations(run)
    if evaluations is not None and weights:
        evaluations = evaluations.of_weights(weights)
    sentence = (
        f"{facts['student']['name']} tells {len(task.classes):,} {'labels' if task.several else 'classes'} apart, "
        f"learnt from {facts['data']['name']}"
    )
    if evaluations is not None and (result := evaluations.counting) is not None:
        low, high = (f"{100 * end:.1f}" for end in result.top1_interval)
        split = {"val": "validation"}.get(split := evaluations.counts.partition("/")[2], split)
        sentence += (
            f": {100 * result.top1:.1f} % right (95 % interval {low} to {high}) on {result.images:,} {split} images"
        )
    labels = read_labels(run)
    if labels is not None and weights:
        labels = labels.of_weights(weights)
    if labels is not None and (told := labels.counting) is not None:
        low, high = (f"{100 * end:.1f}" for end in told.interval)
        split = {"val": "validation"}.get(split := labels.counts.partition("/")[2], split)
        sentence += (
            f": mAP {100 * told.map:.1f} % (95 % interval {low} to {high}) on {told.images:,} {split} images; labels "
            "from their thresholds on are bold"
        )
    html = fill(
        "serve.html",
        title=f"{facts['student']['name']} on {facts['data']['name']}",
        sentence=f"{sentence}.",
        most=(MAX_FILES, MAX_BYTES - OVERHEAD),
        classes=task.classes,
        looks=answerer.taps is not None,
        style=Markup(style),
        script=Markup(script),
    )
    policy = (
        f"default-src 'none'; img-src data: blob:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    return Page(str(html), policy)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
