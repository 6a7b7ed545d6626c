# SPDX-License-Identifier: Apache-2.0
"""Classification: one class an image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..analysis.pictures import save_pictures
from ..data.dataset import Dataset
from ..data.sources.source import Source
from ..evaluation.evaluate import EvaluatedRun, evaluate_run
from ..evaluation.inputs import ImageInput
from ..evaluation.other import evaluate_other
from ..evaluation.predict import ENDINGS, Prediction, as_csv, classify, write
from ..evaluation.reference import evaluate_references
from ..evaluation.results import Evaluations, Result, read_evaluations
from ..models.weights.files import load
from ..outputs import check_out
from .task import Evaluated, OtherImages, Task


class Classification(Task):
    """One class an image."""

    name = "classification"
    does = "classifies images"
    measure = "top-1"

    def evaluate(self, dataset: Dataset) -> Evaluated:
        evaluated = evaluate_run(self.run, dataset)
        return evaluated_of(evaluated.evaluations, evaluated)

    def evaluate_other(self, data: str | Source) -> OtherImages:
        other = evaluate_other(self.run, data)
        numbers = {key: result.evaluation for key, result in other.results.items()}
        results = Evaluations(next(iter(numbers), ""), numbers)
        return OtherImages(other.name, evaluated_of(results, other.results), other.warnings)

    def read_results(self) -> Evaluations | None:
        return read_evaluations(self.run)

    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        evaluate_references(self.run, dataset)
        results = {
            key: Result(evaluation, evaluated.predictions[key], evaluated.images[key])
            for key, evaluation in evaluated.results.items()
        }
        save_pictures(self.run, dataset, EvaluatedRun(evaluated.results.counts, results))

    def predict(self, images: Sequence[ImageInput], weights: str = "", top: int = 1, out: str = "") -> list[Prediction]:
        if out:
            check_out(out, *ENDINGS)
        predictions = classify(self.run, weights or self.run.which()[0], images, top)
        if out:
            write(predictions, Path(out), as_csv)
        return predictions

    def network(self, weights: str = "") -> nn.Module:
        return load(self.run.weights(weights or self.run.which()[0]))[0]


def evaluated_of(results: Any, behind: Any) -> Evaluated:
    """Results with predictions and images by key."""
    predictions = {key: result.predictions for key, result in behind.items()}
    return Evaluated(results, predictions, {key: result.images for key, result in behind.items()})
