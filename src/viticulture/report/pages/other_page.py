# SPDX-License-Identifier: Apache-2.0
"""A run on other images than its own: a page of its own."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from ...analysis.pictures import label_mistakes, mistakes
from ...evaluation.multilabel.judge import EvaluatedLabels
from ...evaluation.other import OtherImages
from ...training.run_folder import RunFolder
from ..sections.multilabel import labels_answer, labels_sections
from ..tables.results import Evaluated
from .page import RunPage, render
from .run_page import costs_of, judged_headline


def other_page(run: RunFolder, other: OtherImages) -> str:
    """The page as HTML text: accuracy, confusion, classes and mistakes on these images, and where it comes from."""
    first = next(iter(other.results.values()))
    return render(
        replace(
            _page(run, other.name, len(first.images), other.warnings),
            evaluations=[
                Evaluated(key.partition("/")[0], other.name, result.evaluation) for key, result in other.results.items()
            ],
            mistakes=mistakes(first, run.read("run.json")["data"]["classes"]),
        )
    )


def other_labels_page(run: RunFolder, name: str, evaluated: EvaluatedLabels, warnings: Sequence[str]) -> str:
    """The same of several labels an image."""
    first = evaluated.results[evaluated.counts]
    return render(
        replace(
            _page(run, name, len(first.images), warnings),
            headline=judged_headline(evaluated.evaluations),
            answer=labels_answer(evaluated.evaluations),
            sections=labels_sections(evaluated.evaluations),
            mistakes=label_mistakes(first, run.read("run.json")["data"]["classes"]),
        )
    )


def _page(run: RunFolder, name: str, images: int, warnings: Sequence[str]) -> RunPage:
    """What the page says of the run and of the images, before any result."""
    facts = run.read("run.json")
    return RunPage(
        title=f"{run.path.name} on {name}",
        sentence=(
            f"{facts['student']['name']}, trained on {facts['data']['name']} by recipe {facts['recipe']}, seed "
            f"{facts['seed']}, judged by {images:,} images of {name}."
        ),
        costs=costs_of(facts),
        warnings=warnings,
        reproduce={
            "run": str(run.path),
            "trained by": facts["command"],
            "data fingerprint of the run": facts["data"]["fingerprint"],
            "judged": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
