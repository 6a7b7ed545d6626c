# SPDX-License-Identifier: Apache-2.0
"""The numbers of multilabel classification: average precision, and F1 at thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..evaluation.outputs import Predictions, check_finite
from ..scores.intervals import centered, interval_of
from ..scores.labels import average_precisions, mean_average_precision, resampled

FREQUENCY = "label frequency"


@dataclass(frozen=True)
class LabelScore:
    """One label; a number whose denominator is zero is None."""

    name: str
    images: int
    training_images: int | None  # that show it; None where that is not known
    ap: float | None
    threshold: float  # probability from which the label is predicted
    precision: float | None  # TP / (TP + FP), from the threshold on
    recall: float | None  # TP / (TP + FN)
    f1: float | None  # 2 TP / (2 TP + FP + FN)


@dataclass(frozen=True)
class MultilabelResult:
    """The numbers of one set of weights on N images; shares lie in [0, 1]."""

    images: int
    labels: float
    map: float  # mean over labels that occur of average precision
    interval: tuple[float, float]  # 95 % interval of `map` over images (not over seeds), by bootstrap, see `resampled`
    micro_f1: float  # F1 of all labels of all images together, at the thresholds
    macro_f1: float  # mean F1 of the labels that are true or predicted
    exact: float  # share of images with every label right
    nll: float  # mean over images of the negative log-likelihood of all their labels, nats
    per_label: tuple[LabelScore, ...]
    baselines: dict[str, float]  # methods without trained features -> mAP
    # `map` over images drawn with replacement, by which two networks are compared on the same images; their mean is
    # `map`, see `intervals.centered`.
    resampled: tuple[float, ...] = field(repr=False, default=())
    views: str = ""  # of an image that were averaged, in words; "" for one
    nll_uncalibrated: float | None = None  # `nll` before calibration; None where they are not calibrated

    @property
    def score(self) -> float:
        """The number that counts: mAP."""
        return self.map

    @property
    def measures(self) -> dict[str, float | None]:
        """Numbers that students can be compared by; the first counts."""
        return {"map": self.map, "micro_f1": self.micro_f1, "macro_f1": self.macro_f1, "exact": self.exact}


def evaluate_labels(
    predictions: Predictions,
    classes: Sequence[str],
    thresholds: Sequence[float],
    training_images: Sequence[int] | None = None,
    baselines: Mapping[str, float] | None = None,
) -> MultilabelResult:
    """Compute the numbers of predictions."""
    check_finite(predictions.probabilities)
    probabilities, true = predictions.probabilities.double().numpy(), predictions.labels.numpy() > 0
    predicted = probabilities >= np.array(thresholds)
    right, shown, counts = (predicted & true).sum(0), true.sum(0), predicted.sum(0)
    precisions, score = average_precisions(probabilities, true), mean_average_precision(probabilities, true)
    drawn = centered(resampled(probabilities, true), score)
    before = predictions.uncalibrated
    scores = tuple(
        LabelScore(
            name,
            images=int(shown[c]),
            training_images=None if training_images is None else int(training_images[c]),
            ap=None if np.isnan(precisions[c]) else float(precisions[c]),
            threshold=float(thresholds[c]),
            precision=_share(right[c], counts[c]),
            recall=_share(right[c], shown[c]),
            f1=_share(2 * right[c], shown[c] + counts[c]),
        )
        for c, name in enumerate(classes)
    )
    known = [score.f1 for score in scores if score.f1 is not None]
    return MultilabelResult(
        images=len(true),
        labels=float(true.sum(1).mean()),
        map=score,
        interval=interval_of(drawn),
        micro_f1=_share(2 * right.sum(), shown.sum() + counts.sum()) or 0.0,
        macro_f1=float(np.mean(known)) if known else 0.0,
        exact=float((predicted == true).all(1).mean()),
        nll=_nll(probabilities, true),
        nll_uncalibrated=None if before is None else _nll(before.double().numpy(), true),
        per_label=scores,
        baselines={FREQUENCY: mean_average_precision(np.zeros(true.shape), true), **(baselines or {})},
        resampled=tuple(drawn.round(6).tolist()),
    )


def _nll(probabilities: NDArray[np.float64], true: NDArray[np.bool_]) -> float:
    least = np.finfo(np.float64).epsneg  # the smallest distance to 1, for labels that are true as well
    return float(-np.log(np.where(true, probabilities, 1 - probabilities).clip(least)).sum(1).mean())


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
