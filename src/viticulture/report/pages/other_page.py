# SPDX-License-Identifier: Apache-2.0
"""The page of a run on other images than its own."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ...analysis.pictures import label_mistakes, mistakes
from ...evaluation.accuracy import Evaluation
from ...evaluation.multilabel.labels import LabelsEvaluation
from ...evaluation.results import Result
from ...tasks.task import OtherImages, Task
from ..page import RunPage, render
from ..sections.dense import dense_answer, dense_sections
from ..sections.multilabel import labels_answer, labels_sections
from ..tables.results import Evaluated
from .run_page import costs_of, judged_headline


def other_page(task: Task, other: OtherImages) -> str:
    """The page as HTML text: results and mistakes on these images, and where it comes from."""
    results: Any = other.evaluated.results
    facts, first = task.run.read("run.json"), results.counting
    classes = facts["data"]["classes"]
    page = RunPage(
        title=f"{task.run.path.name} on {other.name}",
        sentence=(
            f"{facts['student']['name']}, trained on {facts['data']['name']} by recipe {facts['recipe']}, seed "
            f"{facts['seed']}, judged by {first.images:,} images of {other.name}."
        ),
        costs=costs_of(facts),
        warnings=other.warnings,
        reproduce={
            "run": str(task.run.path),
            "trained by": facts["command"],
            "data fingerprint of the run": facts["data"]["fingerprint"],
            "judged": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    behind: Any = other.evaluated.predictions.get(results.counts), other.evaluated.images.get(results.counts)
    if isinstance(first, Evaluation):
        every = [Evaluated(key.partition("/")[0], other.name, result) for key, result in results.items()]
        wrong = mistakes(Result(first, *behind), classes)
        return render(replace(page, evaluations=every, mistakes=wrong))
    page = replace(page, headline=judged_headline(results))
    if isinstance(first, LabelsEvaluation):
        wrong, parts = label_mistakes(Result(first, *behind), classes), labels_sections(results)
        return render(replace(page, answer=labels_answer(results), sections=parts, mistakes=wrong))
    return render(replace(page, answer=dense_answer(results), sections=dense_sections(results, ())))
