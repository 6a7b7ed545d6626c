# SPDX-License-Identifier: Apache-2.0
"""The page on which a person drops images."""

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

from ..evaluation.dense.draw import color_of
from ..evaluation.dense.objects import ObjectsEvaluation
from ..evaluation.dense.results import DenseEvaluations, read_dense
from ..evaluation.multilabel.results import LabelEvaluations, read_labels
from ..evaluation.results import Evaluations, read_evaluations
from ..report.html import Markup, fill, source
from ..training.rundir import RunDir
from .answerer import Answerer
from .limits import MAX_BYTES, MAX_FILES

Kept = Evaluations | LabelEvaluations | DenseEvaluations | None

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
    facts = run.read("run.json")
    sentence = f"{facts['student']['name']} {_what(answerer)}, learnt from {facts['data']['name']}"
    sentence += _how_well(run, weights)
    html = fill(
        "serve.html",
        title=f"{facts['student']['name']} on {facts['data']['name']}",
        sentence=f"{sentence}.",
        most=(MAX_FILES, MAX_BYTES - OVERHEAD),
        tells=answerer.tells,
        classes=answerer.task.classes,
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
    task, counted = answerer.task, f"{len(answerer.task.classes):,}"
    if answerer.tells == "objects":
        return f"finds objects of {counted} {'class' if len(task.classes) == 1 else 'classes'}"
    if answerer.tells == "pixels":
        return f"tells pixels of {counted} classes apart"
    return f"tells {counted} {'labels' if task.several else 'classes'} apart"


def _how_well(run: RunDir, weights: str) -> str:
    """The number that counts, of these weights if any are named, as the end of a sentence; "" where it is not known."""

    def counting(kept: Kept) -> tuple[Any, str]:
        of_these = kept.of_weights(weights) if kept is not None and weights else kept
        return (None, "") if of_these is None else (of_these.counting, of_these.counts)

    told, key = counting(read_evaluations(run))
    if told is not None:
        return f": {100 * told.top1:.1f} % right{_on(told.top1_interval, told.images, key)}"
    told, key = counting(read_labels(run))
    if told is not None:
        where = _on(told.interval, told.images, key)
        return f": mAP {100 * told.map:.1f} %{where}; labels from their thresholds on are bold"
    told, key = counting(read_dense(run))
    if isinstance(told, ObjectsEvaluation):
        where = _on(told.boxes.interval, told.images, key)
        return f": AP {100 * told.score:.1f} %{where}; drawn from a score of {told.threshold:.2f} on"
    return "" if told is None else f": mIoU {100 * told.score:.1f} %{_on(told.interval, told.images, key)}"


def _on(interval: tuple[float, float], images: int, key: str) -> str:
    low, high = (f"{100 * end:.1f}" for end in interval)
    split = {"val": "validation"}.get(split := key.partition("/")[2], split)
    return f" (95 % interval {low} to {high}) on {images:,} {split} images"


def _colors(answerer: Answerer) -> dict[str, str]:
    """By class, as they are drawn; of classes of whole images none."""
    if answerer.tells == "classes":
        return {}
    return {name: "#{:02x}{:02x}{:02x}".format(*color_of(label)) for label, name in enumerate(answerer.task.classes)}


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
