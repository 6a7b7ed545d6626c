# SPDX-License-Identifier: Apache-2.0
"""The verbs on runs that learnt several labels an image."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..text import tell
from .shown import Shown

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..evaluation.multilabel.predict import LabelsPrediction
    from ..evaluation.multilabel.results import LabelEvaluations
    from ..training.rundir import RunDir


def measure_labels(run: "RunDir", dataset: "Dataset") -> "LabelEvaluations":
    """Ask a run's student about its images, keep what it says, and draw its page."""
    from ..analysis.label_pictures import gather_label_pictures
    from ..evaluation.multilabel.judge import judge_labels

    judged, shown = judge_labels(run, dataset), Shown(run.path)
    with shown.spared("evaluate"):
        gather_label_pictures(run, dataset, judged)
    shown.draw()
    return judged.evaluations


def evaluate_labels(run: "RunDir", data: Any = "", out: str = "") -> "LabelEvaluations":
    """Measure on the run's own images, or on others with the same labels; `out` of others is an .html page or .json."""
    from ..data.open import open_source
    from ..data.sources.source import Source
    from ..disk import replacing
    from ..evaluation.multilabel.judge import judge_other
    from ..outputs import check_out
    from ..report.pages.other_page import other_labels_page
    from ..training.session import dataset_of, for_method, is_own, recipe_of

    recipe = recipe_of(run)
    source = data if isinstance(data, Source) else open_source(data) if not isinstance(data, str) or data else None
    if source is None or is_own(run, source):
        if out:
            raise UserError(f"--out is for other images; of its own, {run.path} keeps multilabel.json and report.html")
        return measure_labels(run, dataset_of(run, recipe, data))
    path = check_out(out, ".html", ".json") if out else None
    judged, notes = judge_other(run, for_method(recipe, source))
    for note in notes:
        tell(f"note     {note}")
    if path is not None:
        content = {"run": str(run.path), "images": source.name, "warnings": notes, **judged.evaluations.to_dict()}
        page = path.suffix.lower() == ".html"
        text = other_labels_page(run, source.name, judged, notes) if page else json.dumps(content, indent=1) + "\n"
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    return judged.evaluations


def predict_labels(run: "RunDir", weights: str, images: Any, out: str, top: int) -> "list[LabelsPrediction]":
    """Tell the labels of images; `out` is a .csv or .json file to write as well."""
    from ..evaluation.given import as_images
    from ..evaluation.multilabel.predict import labels_csv, tell_labels
    from ..evaluation.predict import ENDINGS, write
    from ..outputs import check_out

    if out:
        check_out(out, *ENDINGS)
    predictions = tell_labels(run, weights or run.which()[0], as_images(images), top)
    if out:
        write(predictions, Path(out), labels_csv)
    return predictions
