# SPDX-License-Identifier: Apache-2.0
"""The numbers of classification: accuracy with its interval, calibration, confusion, scores of classes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix, multiclass_f1_score

from ..errors import UserError
from ..evaluation.model import ONE_HEAD
from ..evaluation.outputs import Predictions, check_finite
from ..keywords import rebuilt
from ..scores.calibration import calibration_interval
from ..scores.intervals import wilson

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class ClassScore:
    """One class; a number whose denominator is zero is None (no such image, never predicted, or both)."""

    name: str
    support: int
    precision: float | None  # TP / (TP + FP), in [0, 1]
    recall: float | None  # TP / (TP + FN), in [0, 1]
    f1: float | None  # 2 TP / (2 TP + FP + FN), in [0, 1]


@dataclass(frozen=True)
class ReliabilityBin:
    """Images whose confidence lies between two edges: their mean confidence, accuracy and number."""

    confidence: float
    accuracy: float
    images: int


@dataclass(frozen=True)
class WithoutCopies:
    """Accuracy on the images that have no near-duplicates among the training images."""

    copies: int  # how many images have some, and are left out here
    top1: float | None
    top1_interval: tuple[float, float] | None


@dataclass(frozen=True)
class Uncalibrated:
    """The numbers of a `ClassificationResult` that calibration changes, before it."""

    nll: float
    calibration_error: float
    calibration_interval: tuple[float, float]
    reliability: tuple[ReliabilityBin, ...]


@dataclass(frozen=True, eq=False)
class ClassificationResult:
    """The numbers of one set of weights on one split; shares lie in [0, 1]."""

    images: int
    top1: float  # share of images whose most probable class is the true one
    top1_interval: tuple[float, float]  # Wilson's 95 % interval of `top1` over images (not over seeds)
    k: int  # the k of `topk`, at most the number of classes (where `topk` is 1 by definition)
    topk: float  # share of images whose true class is among the k most probable
    macro_f1: float
    balanced_accuracy: float  # mean recall of the classes that occur among labels
    nll: float
    calibration_error: float  # expected calibration error, l1, over equal-width bins of confidence
    reliability: tuple[ReliabilityBin, ...]
    per_class: tuple[ClassScore, ...]
    confusion: NDArray[np.int64]  # [C, C] int64, images by true class (row) and predicted class (column)
    # What makes the predictions: the heads of a student with several, "class token" or "mean of 3 heads", and the
    # number of views of an image where it is not one.
    rule: str = ONE_HEAD
    # Accuracy without the images that have near-duplicates among the training images; None where none have, or none are
    # known.
    without_copies: WithoutCopies | None = None
    # 95 % interval of `calibration_error` over images, by bootstrap.
    calibration_interval: tuple[float, float] | None = None
    temperature: float = 1.0  # that divides the logits; 1 where they are not calibrated
    uncalibrated: Uncalibrated | None = None  # the numbers at temperature 1; None where they are not calibrated

    @property
    def score(self) -> float:
        """The number that counts: top-1."""
        return self.top1

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of `score`."""
        return self.top1_interval

    @property
    def resampled(self) -> tuple[float, ...]:
        """Empty: a share of images needs no bootstrap."""
        return ()

    @property
    def measures(self) -> dict[str, float | None]:
        """The number that networks are compared by."""
        return {"accuracy": self.top1}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the confusion matrix as [true, predicted, images] where images > 0."""
        cells = [
            [int(row), int(column), int(self.confusion[row, column])] for row, column in np.argwhere(self.confusion)
        ]
        return asdict(self) | {"confusion": cells}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "ClassificationResult":
        """Restore a result from `to_dict`."""
        classes = len(content["per_class"])
        confusion = np.zeros((classes, classes), np.int64)
        for row, column, images in content["confusion"]:
            confusion[row, column] = images
        return rebuilt(ClassificationResult, {**content, "confusion": confusion})


@dataclass(frozen=True)
class Mistake:
    """An image of another class than predicted; `label` and `predicted` are positions in the classes."""

    number: int
    name: str
    label: int
    predicted: int
    probability: float


def evaluate_predictions(predictions: Predictions, classes: Sequence[str], k: int = 5) -> ClassificationResult:
    """Compute the numbers of predictions. A tie goes to the class that comes first. Probabilities that underflow to
    zero count as the smallest normal float32 in the likelihood, so that it stays finite.
    """
    probabilities, labels, C = predictions.probabilities, predictions.labels, len(classes)
    _check(predictions, C)
    k = min(k, C)
    predicted = probabilities.argmax(-1)
    chunks = zip(torch.split(probabilities, 4096), torch.split(labels, 4096), strict=True)
    ranks = torch.cat([_rank(some, of) for some, of in chunks])
    confusion: NDArray[np.int64] = multiclass_confusion_matrix(predicted, labels, C).numpy()
    per_class = _per_class(confusion, classes)
    now = _likelihood(probabilities, labels)
    before = None if predictions.uncalibrated is None else _likelihood(predictions.uncalibrated, labels)
    right = int(confusion.trace())
    return ClassificationResult(
        images=len(labels),
        top1=right / len(labels),
        top1_interval=wilson(right, len(labels)),
        k=k,
        topk=float((ranks < k).double().mean()),
        macro_f1=float(multiclass_f1_score(predicted, labels, C, average="macro")),
        balanced_accuracy=float(np.mean([score.recall for score in per_class if score.recall is not None])),
        **vars(now),
        per_class=per_class,
        confusion=confusion,
        rule=predictions.rule,
        temperature=predictions.temperature[0] if predictions.temperature else 1.0,
        uncalibrated=before,
    )


def _likelihood(probabilities: Tensor, labels: Tensor) -> Uncalibrated:
    """Compute the numbers that calibration changes, of probabilities [N, C] and labels [N]."""
    confidence, predicted = probabilities.double().amax(-1).numpy(), probabilities.argmax(-1)
    right = (predicted == labels).numpy()
    likelihood = probabilities.gather(1, labels[:, None]).clamp_min(torch.finfo(torch.float32).tiny).double()
    bin_of = _bin_of(confidence)
    reliability = _reliability(confidence, right, bin_of)
    error = sum(each.images * abs(each.accuracy - each.confidence) for each in reliability) / len(labels)
    interval = calibration_interval(confidence, right, bin_of, error)
    return Uncalibrated(float(-likelihood.log().mean()), error, interval, reliability)


def without_copies(predictions: Predictions, copies: Collection[str]) -> WithoutCopies | None:
    """The accuracy without the images of these names; None where none of them is among the images."""
    names = set(copies)
    rest = torch.tensor([name not in names for name in predictions.names])
    if rest.all():
        return None
    right, images = int((predictions.probabilities.argmax(-1) == predictions.labels)[rest].sum()), int(rest.sum())
    share = (right / images, wilson(right, images)) if images else (None, None)
    return WithoutCopies(len(rest) - images, *share)


def most_confident_mistakes(predictions: Predictions, n: int) -> list[Mistake]:
    """The n labeled images with the most probable wrong predictions, highest first."""
    confidence, predicted = predictions.probabilities.amax(-1), predictions.probabilities.argmax(-1)
    wrong = ((predicted != predictions.labels) & (predictions.labels >= 0)).nonzero()[:, 0]
    worst = wrong[confidence[wrong].argsort(descending=True, stable=True)[:n]]
    return [
        Mistake(i, predictions.names[i], int(predictions.labels[i]), int(predicted[i]), float(confidence[i]))
        for i in worst.tolist()
    ]


def _check(predictions: Predictions, C: int) -> None:
    N, columns = predictions.probabilities.shape
    labeled = (predictions.labels >= 0) & (predictions.labels < C)
    if columns != C:
        raise UserError(f"one probability a class is needed, got {columns} probabilities and {C} classes")
    if not N or not labeled.all():
        unlabeled = int((~labeled).sum())
        raise UserError(
            f"an evaluation needs images with a label between 0 and {C - 1}, got {N} images, {unlabeled} without; "
            "use predict for images without labels"
        )
    check_finite(predictions.probabilities)


def _rank(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return how many classes come before the true one, [B, C], [B] -> [B]; equals keep the order of the classes."""
    true = probabilities.gather(1, labels[:, None])
    earlier = torch.arange(probabilities.shape[1]) < labels[:, None]
    return ((probabilities > true) | (probabilities == true) & earlier).sum(-1)


def _per_class(confusion: NDArray[np.int64], classes: Sequence[str]) -> tuple[ClassScore, ...]:
    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    right, support, predicted = confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist()
    return tuple(
        ClassScore(name, n, precision=share(tp, count), recall=share(tp, n), f1=share(2 * tp, n + count))
        for name, tp, n, count in zip(classes, right, support, predicted, strict=True)
    )


def _bin_of(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin [m/M, (m+1)/M) of each confidence, the last one closed.

    Source: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, arXiv:1706.04599, Eq. (3).
    Deviation: lower edges are inside, as in torchmetrics, which has a separate bin for a confidence of exactly 1.
    """
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1, dtype=np.float32)
    return np.clip(np.searchsorted(edges, confidence.astype(np.float32), side="right") - 1, 0, CALIBRATION_BINS - 1)


def _reliability(
    confidence: NDArray[np.float64], right: NDArray[np.bool_], bin_of: NDArray[np.int64]
) -> tuple[ReliabilityBin, ...]:
    """Compute the bins that hold images."""
    bins = []
    for number in range(CALIBRATION_BINS):
        inside = bin_of == number
        if inside.any():
            n = int(inside.sum())
            bins.append(ReliabilityBin(float(confidence[inside].mean()), float(right[inside].mean()), n))
    return tuple(bins)


def joined(bins: Sequence[ReliabilityBin], least: int) -> list[ReliabilityBin]:
    """Neighboring bins put together, from the most confident down, until each holds so many images.

    The last, least confident one may hold fewer where it is the only one; elsewhere what is left joins its neighbor.
    """
    groups: list[list[ReliabilityBin]] = [[]]
    for each in reversed(bins):
        if sum(member.images for member in groups[-1]) >= least:
            groups.append([])
        groups[-1].append(each)
    if len(groups) > 1 and sum(member.images for member in groups[-1]) < least:
        rest = groups.pop()
        groups[-1] += rest
    return [_together(members) for members in reversed(groups) if members]


def _together(bins: Sequence[ReliabilityBin]) -> ReliabilityBin:
    images = sum(each.images for each in bins)
    confidence = sum(each.confidence * each.images for each in bins) / images
    return ReliabilityBin(confidence, sum(each.accuracy * each.images for each in bins) / images, images)
