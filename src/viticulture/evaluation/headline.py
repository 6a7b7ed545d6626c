# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of being measured, whatever it learns: the number that counts, and draws of images where that is no
accuracy."""

from dataclasses import dataclass

from ..training.run_folder import RunFolder
from .accuracy import Evaluation
from .dense.pixels import PixelsEvaluation
from .dense.results import DenseEvaluations, read_dense
from .multilabel.labels import LabelsEvaluation
from .multilabel.results import LabelEvaluations, read_labels
from .results import read_evaluations


@dataclass(frozen=True)
class Headline:
    """The number that counts of a run.

    Args:
        name: top-1, mAP, AP or mIoU.
        value: of it, in [0, 1].
        interval: its 95 % interval over images.
        images: on how many.
        split: whose they are, as a person calls it.
        threshold: of a detector, the score from which most of what it finds is right; None for others.
    """

    name: str
    value: float
    interval: tuple[float, float]
    images: int
    split: str
    threshold: float | None = None


def named(key: str) -> tuple[str, str]:
    """`best/val`, by which a result is kept -> its weights and split as a person calls them: best, validation."""
    weights, _, split = key.partition("/")
    return weights, "validation" if split == "val" else split


def read_judged(run: RunFolder) -> DenseEvaluations | LabelEvaluations | None:
    """Of a detector, a segmenter or a student of several labels; None for others, or before anything was measured.

    Raises: UserError if it is damaged.
    """
    dense = read_dense(run)
    return dense if dense is not None else read_labels(run)


def read_headline(run: RunFolder, weights: str = "") -> Headline | None:
    """Of the weights that count, or of others by their name; None before they were measured. Raises: as above."""
    kept = read_evaluations(run) or read_judged(run)
    if kept is not None and weights:
        kept = kept.of_weights(weights)
    if kept is None or (result := kept.counting) is None:
        return None
    split = named(kept.counts)[1]
    if isinstance(result, Evaluation):
        return Headline("top-1", result.top1, result.top1_interval, result.images, split)
    name = {LabelsEvaluation: "mAP", PixelsEvaluation: "mIoU"}.get(type(result), "AP")
    return Headline(name, result.score, result.interval, result.images, split, getattr(result, "threshold", None))
