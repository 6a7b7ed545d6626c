# SPDX-License-Identifier: Apache-2.0
"""Temperatures that make probabilities match how often they are right.

One temperature T divides all logits, p = softmax(z / T), or one per label, p = sigmoid(z / T): the most probable class
stays. T minimizes the negative log-likelihood of validation images. Their labels are smoothed as if two more images had
been seen, one of them wrong: n images that are all right do not support more confidence than (n + 1) / (n + 2).

Sources: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, arXiv:1706.04599, Section 4.2; smoothed
targets: Platt, "Probabilistic outputs for support vector machines", 1999, Section 2.2.
"""

from collections.abc import Callable, Sequence
from math import exp, log

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor

from .intervals import ENDS, REPLICATES, centered

MIN_IMAGES = 30  # validation images from which a temperature is fitted
MIN_OF_LABEL = 10  # validation images that show a label, and that do not, from which its temperature is fitted
LIMIT = 20.0  # largest temperature; the smallest is its inverse

Array = NDArray[np.float64]


def fit_temperature(probabilities: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return the temperature of probabilities [N, C] of classes [N]; () where there are too few images."""
    N, C = probabilities.shape
    if N < MIN_IMAGES or C < 2:
        return ()
    logits = _logits(probabilities, several=False).numpy()
    wrong = 1 / (N + 2)
    targets = np.full((N, C), wrong / (C - 1))
    targets[np.arange(N), labels.numpy()] = 1 - wrong
    matched = float((targets * logits).sum(1).mean())
    return (_minimized(lambda scale: float(logsumexp(scale * logits, axis=1).mean()) - scale * matched),)


def fit_temperatures(probabilities: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return the temperature of each label of probabilities [N, C] for labels [N, C], 1 for labels with too few images;
    () where all have."""
    logits, shown = _logits(probabilities, several=True).numpy(), labels.numpy() > 0
    positives = shown.sum(0)
    enough = (positives >= MIN_OF_LABEL) & (len(shown) - positives >= MIN_OF_LABEL)
    temperatures = np.ones(len(positives))
    for label in np.flatnonzero(enough):
        temperatures[label] = _of_label(logits[:, label], shown[:, label])
    return tuple(temperatures.tolist()) if enough.any() else ()


def _of_label(logits: Array, shown: NDArray[np.bool_]) -> float:
    positives, negatives = int(shown.sum()), int((~shown).sum())
    targets = np.where(shown, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    matched = float((targets * logits).mean())
    return _minimized(lambda scale: float(np.logaddexp(0, scale * logits).mean()) - scale * matched)


def calibrated(probabilities: Tensor, temperature: Sequence[float], several: bool) -> Tensor:
    """Return probabilities [N, C] at a temperature, or at one per label, float64; without one the same."""
    if not temperature:
        return probabilities
    logits = _logits(probabilities, several) / torch.tensor(temperature, dtype=torch.float64)
    return logits.sigmoid() if several else logits.softmax(-1)


def calibration_interval(
    confidence: Array, right: NDArray[np.bool_], bin_of: NDArray[np.int64], error: float
) -> tuple[float, float]:
    """Return the 95 % interval over images of an expected calibration error, by bootstrap.

    The sums of right - confidence by bin over N images with replacement are drawn from the normal distribution with the
    mean and covariance of this resampling, so that the cost does not grow with N.
    """
    gaps = np.zeros((len(right), int(bin_of.max()) + 1))
    gaps[np.arange(len(right)), bin_of] = right - confidence
    mean = gaps.mean(0)
    covariance = (gaps.T @ gaps / len(gaps) - np.outer(mean, mean)) / len(gaps)
    drawn = np.random.default_rng(0).multivariate_normal(mean, covariance, REPLICATES, method="eigh")
    low, high = np.clip(np.percentile(centered(np.abs(drawn).sum(1), error), ENDS), 0, 1).tolist()
    return low, high


def _logits(probabilities: Tensor, several: bool) -> Tensor:
    """Return logits of probabilities, up to a number per image, float64; zeros count as the smallest float32."""
    p = probabilities.double().clamp_min(torch.finfo(torch.float32).tiny)
    if not several:
        return p.log()
    return p.log() - (1 - probabilities.double()).clamp_min(torch.finfo(torch.float64).eps / 2).log()


def _minimized(loss: Callable[[float], float]) -> float:
    """Return the temperature T at which a convex loss of 1 / T is lowest."""
    found = minimize_scalar(lambda t: loss(exp(-t)), bounds=(-log(LIMIT), log(LIMIT)), method="bounded")
    return float(exp(found.x))
