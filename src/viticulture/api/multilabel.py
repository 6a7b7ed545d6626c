# SPDX-License-Identifier: Apache-2.0
"""The verbs on runs that learnt several labels an image."""

from typing import TYPE_CHECKING

from ..errors import UserError
from ..text import tell
from .shown import Shown

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..data.sources.source import Source
    from ..evaluation.multilabel.results import LabelEvaluations
    from ..training.rundir import RunDir


def measure_labels(run: "RunDir", dataset: "Dataset") -> "LabelEvaluations":
    """Ask a run's student about its images, keep what it says, and draw its page."""
    from ..analysis.label_pictures import gather_label_pictures
    from ..evaluation.multilabel.judge import judge_labels

    evaluated, shown = judge_labels(run, dataset), Shown(run.path)
    with shown.spared("evaluate"):
        gather_label_pictures(run, dataset, evaluated)
    shown.draw()
    return evaluated.evaluations


def evaluate_labels(run: "RunDir", data: "str | Source" = "", out: str = "") -> "LabelEvaluations":
    """Measure on the run's own images, or on others with the same labels; `out` of others is an .html page or .json."""
    from ..data.open import open_source
    from ..disk import write_whole
    from ..evaluation.evaluate import check_held_out
    from ..evaluation.multilabel.judge import judge_other
    from ..outputs import check_out
    from ..report.pages.other_page import other_labels_page
    from ..training.data import for_method
    from ..training.run_inputs import dataset_of, recipe_of, stands_for_own

    recipe = recipe_of(run)
    source = open_source(data) if data and isinstance(data, str) else data
    if stands_for_own(run, source):
        if out:
            raise UserError(f"--out is for other images; of its own, {run.path} keeps multilabel.json and report.html")
        measured = measure_labels(run, dataset_of(run, recipe, data))
        check_held_out(run, measured.results)
        return measured
    assert not isinstance(source, str)
    path = check_out(out, ".html", ".json") if out else None
    evaluated, notes = judge_other(run, for_method(recipe, source))
    for note in notes:
        tell(f"note     {note}")
    if path is not None:
        content = {"run": str(run.path), "images": source.name, "warnings": notes, **evaluated.evaluations.to_dict()}
        page = path.suffix.lower() == ".html"
        write_whole(path, other_labels_page(run, source.name, evaluated, notes) if page else content)
    return evaluated.evaluations
