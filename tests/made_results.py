# SPDX-License-Identifier: Apache-2.0
"""Results and predictions without training."""

from collections.abc import Mapping
from functools import partial

from viticulture.evaluation.outputs import Predictions
from viticulture.tasks.classification import Classification
from viticulture.tasks.detection import Detection
from viticulture.tasks.multilabel import Multilabel
from viticulture.tasks.results import Results, save_predictions
from viticulture.tasks.segmentation import Segmentation
from viticulture.training.run_folder import RunFolder

classified = partial(Results, task=Classification)
labeled = partial(Results, task=Multilabel)
detected = partial(Results, task=Detection)
segmented = partial(Results, task=Segmentation)


def save_classes(run: RunFolder, counts: str, predictions: Mapping[str, Predictions]) -> None:
    """Write predictions.npz of a classifier."""
    task = Classification(run)
    save_predictions(run, counts, {key: task.saved(each, None) for key, each in predictions.items()})
