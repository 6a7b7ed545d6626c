# SPDX-License-Identifier: Apache-2.0
"""The page on which images are dropped."""

import base64
import hashlib
from dataclasses import dataclass

from ...errors import comma_separated
from ...report.html import Markup, fill, source
from ...tasks.task import Task
from .limits import MAX_BYTES, MAX_FILES
from .predictor import Predictor

OVERHEAD = 1024**2  # bytes of a request that the page reserves for form data between the images


@dataclass(frozen=True)
class Page:
    """One page."""

    html: str
    policy: str


def page(task: Task, predictor: Predictor, weights: str = "") -> Page:
    """Return the page of a run, with the accuracy of these weights."""
    script, style = source("serve.js"), source("page.css") + source("serve.css")
    metadata = task.run.read("run.json")
    name, data = metadata["student"]["name"], metadata["data"]["name"]
    classes = predictor.data_spec.classes
    trained = f"It was trained on {data} ({task.annotation(classes)})."
    html = fill(
        "serve.html",
        title=f"{name} on {data}",
        sentence=f"{name} {task.does}. {trained}{_accuracy(task, weights)}",
        limits=(MAX_FILES, MAX_BYTES - OVERHEAD),
        predictor=predictor,
        classes=comma_separated(classes),
        style=Markup(style),
        script=Markup(script),
    )
    policy = (
        f"default-src 'none'; img-src data: blob:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    return Page(str(html), policy)


def _accuracy(task: Task, weights: str) -> str:
    """Return a sentence with the number that counts; "" before it was evaluated."""
    headline = task.headline(weights)
    if headline is None:
        return ""
    more = task.caption
    if headline.threshold is not None:
        more = f"boxes with a score of at least {headline.threshold:.2f} are drawn"
    value = f"{headline} (95 % interval {headline.written_interval})"
    return f" Result: {value} on {headline.images:,} {headline.split} images{f'; {more}' if more else ''}."


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
