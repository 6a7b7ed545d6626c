# SPDX-License-Identifier: Apache-2.0
"""Which labels images show: what can be read is judged, the rest listed with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...data.sources.several import JOINT
from ...outputs import csv_text
from ...training.run_folder import RunFolder
from ..inputs import ImageInput, OpenedItems
from ..model import EvaluatedModel
from ..predict import check_readable, class_columns, in_batches, opened_subject, probabilities_of
from .results import thresholds_of


@dataclass(frozen=True)
class LabelsPrediction:
    """What a student says of one image.

    Args:
        name: the file; bytes of its name that are no text as Python escapes.
        labels: that it shows, the most certain first: those from their thresholds on, or as many as were asked for.
        probabilities: of every label.
        error: why the image could not be read.
    """

    name: str
    labels: tuple[str, ...]
    probabilities: dict[str, float] = field(repr=False)
    error: str = ""


def tell_labels(run: RunFolder, weights: str, images: Sequence[ImageInput], top: int) -> list[LabelsPrediction]:
    """Judge files, the images in folders, and pixels, in the order given, as the run's test images were looked at.

    Args:
        run: a run with weights.
        weights: best, last or ema.
        images: as for `classify`.
        top: labels to name of each image, from 2 on, whatever their thresholds; 1 names those from their thresholds on.

    Raises: UserError as `classify`.
    """
    subject, items = opened_subject(run, weights, images, top)
    thresholds = thresholds_of(run, weights, len(subject.data_spec.classes))
    predictions = in_batches(subject, items, lambda opened: ask_labels(subject, opened, thresholds, top))
    check_readable([(prediction.name, prediction.error) for prediction in predictions])
    return predictions


def ask_labels(
    subject: EvaluatedModel, opened: OpenedItems, thresholds: Sequence[float], top: int = 1
) -> list[LabelsPrediction]:
    """One prediction an item, in their order; thresholds in the order of the classes."""
    probabilities = iter(probabilities_of(subject, opened))
    return [
        LabelsPrediction(name, (), {}, error)
        if error
        else _one(name, subject.data_spec.classes, next(probabilities), thresholds, top)
        for name, error in zip(opened.names, opened.errors, strict=True)
    ]


def _one(
    name: str, classes: Sequence[str], probabilities: list[float], thresholds: Sequence[float], top: int
) -> LabelsPrediction:
    order = sorted(range(len(classes)), key=lambda c: -probabilities[c])
    chosen = order[:top] if top > 1 else [c for c in order if probabilities[c] >= thresholds[c]]
    return LabelsPrediction(name, tuple(classes[c] for c in chosen), dict(zip(classes, probabilities, strict=True)))


def labels_csv(predictions: Sequence[LabelsPrediction], classes: Sequence[str] = ()) -> str:
    """A row an image: its labels, joined as a list to learn from has them, their probabilities, then a column a class;
    the classes are those of the first answer where none are named."""
    classes = classes or next((list(each.probabilities) for each in predictions if each.probabilities), [])
    first = ["name", "label", "probability"]
    rows: list[list[object]] = [[*first, *class_columns(classes, [*first, "error"]), "error"]]
    for each in predictions:
        sure = JOINT.join(f"{each.probabilities[label]:.4f}" for label in each.labels)
        every = [each.probabilities.get(name) for name in classes]
        rows.append([each.name, JOINT.join(each.labels), sure, *every, each.error])
    return csv_text(rows)
