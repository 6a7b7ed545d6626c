# SPDX-License-Identifier: Apache-2.0
"""A run on other images than its own: a page of its own."""

from datetime import UTC, datetime

from ...analysis.pictures import mistakes
from ...evaluation.other import OtherImages
from ...training.rundir import RunDir
from ..tables.results import Evaluated
from .page import RunPage, render
from .run_page import costs_of


def other_page(run: RunDir, other: OtherImages) -> str:
    """The page as HTML text: accuracy, confusion, classes and mistakes on these images, and where it comes from."""
    facts = run.read("run.json")
    student, first = facts["student"], next(iter(other.results.values()))
    return render(
        RunPage(
            title=f"{run.path.name} on {other.name}",
            sentence=(
                f"{student['name']}, trained on {facts['data']['name']} by recipe {facts['recipe']}, seed "
                f"{facts['seed']}, judged by {len(first.images):,} images of {other.name}."
            ),
            evaluations=[
                Evaluated(key.partition("/")[0], other.name, result.evaluation) for key, result in other.results.items()
            ],
            costs=costs_of(facts),
            mistakes=mistakes(first, facts["data"]["classes"]),
            warnings=other.warnings,
            reproduce={
                "run": str(run.path),
                "trained by": facts["command"],
                "data fingerprint of the run": facts["data"]["fingerprint"],
                "judged": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
    )
