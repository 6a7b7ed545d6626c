# SPDX-License-Identifier: Apache-2.0
"""Multilabel classification: any number of labels an image."""

from collections.abc import Sequence
from pathlib import Path

from ..analysis.pictures import save_label_pictures
from ..data.dataset import Dataset
from ..data.open import open_source
from ..data.sources.source import Source
from ..evaluation.inputs import ImageInput
from ..evaluation.multilabel.judge import EvaluatedLabels, judge_labels, judge_other
from ..evaluation.multilabel.predict import LabelsPrediction, labels_csv, tell_labels
from ..evaluation.multilabel.results import LabelEvaluations, read_labels
from ..evaluation.predict import ENDINGS, write
from ..evaluation.results import Result
from ..outputs import check_out
from ..training.data import for_method
from ..training.run_inputs import config_of
from .classification import Classification, evaluated_of
from .task import Evaluated, OtherImages


class Multilabel(Classification):
    """Any number of labels an image."""

    name = "multilabel"
    does = "predicts several labels an image"
    unit = ("label", "labels")
    measure = "mAP"

    def evaluate(self, dataset: Dataset) -> Evaluated:
        evaluated = judge_labels(self.run, dataset)
        return evaluated_of(evaluated.evaluations, evaluated)

    def evaluate_other(self, data: str | Source) -> OtherImages:
        source = open_source(data) if isinstance(data, str) else data
        labels, warnings = judge_other(self.run, for_method(config_of(self.run), source))
        return OtherImages(source.name, evaluated_of(labels.evaluations, labels), warnings)

    def read_results(self) -> LabelEvaluations | None:  # type: ignore[override]
        return read_labels(self.run)

    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        results = {
            key: Result(evaluation, evaluated.predictions[key], evaluated.images[key])
            for key, evaluation in evaluated.results.items()
        }
        save_label_pictures(self.run, dataset, EvaluatedLabels(evaluated.results.counts, results))

    def predict(  # type: ignore[override]
        self, images: Sequence[ImageInput], weights: str = "", top: int = 1, out: str = ""
    ) -> list[LabelsPrediction]:
        if out:
            check_out(out, *ENDINGS)
        predictions = tell_labels(self.run, weights or self.run.which()[0], images, top)
        if out:
            write(predictions, Path(out), labels_csv)
        return predictions
