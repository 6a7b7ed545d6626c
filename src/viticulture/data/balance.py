# SPDX-License-Identifier: Apache-2.0
"""Classes of unequal size: how unbalanced they are, and two ways to balance them: in the loss, in the sampling."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, unknown

UNBALANCED = 10  # times that the largest class may exceed the smallest without a warning


def balancing_options(labels: np.ndarray) -> str:
    """Name the options that balance classes; no sampling balances several labels an image, [N, C]."""
    ways = ["`--data.class_weights balanced`", *(["`--data.sampling balanced`"] if labels.ndim == 1 else [])]
    return f"{' or '.join(ways)} balances them"


def is_unbalanced(counts: Sequence[int] | np.ndarray) -> bool:
    """Return whether class sizes differ enough for a warning."""
    return len(counts) > 0 and max(counts) > UNBALANCED * min(counts)


def class_weights(weights: str | Mapping[str, float], classes: Sequence[str], counts: Tensor) -> Tensor:
    """Compute the factor of every class in the loss, scaled so that their mean over the training images is 1.

        w_c = N / (C n_c)                   balanced: every class weighs as much as any other
        w_c = N v_c / sum over k of n_k v_k of given values v; 1 for other classes

    The scale leaves the size of gradients, and so the learning rate, what it was.

    Args:
        weights: "balanced", or class -> value.
        counts: [C] training images n_c of each class.

    Returns: [C] float32.
    """
    if isinstance(weights, str):
        values = 1 / counts.double().clamp(min=1)
    else:
        values = torch.tensor(_values(weights, classes), dtype=torch.float64)
    return (values * counts.sum() / (values * counts).sum()).float()


def positive_weights(weights: str | Mapping[str, float], classes: Sequence[str], labels: Tensor) -> Tensor:
    """Compute the factor of every label in the loss of the images that have it; others count 1.

        w_c = (N - n_c) / n_c               balanced: showing a label weighs as much as not showing it
        w_c = v_c                           of given values v; 1 for other classes

    Args:
        weights: "balanced", or class -> value.
        labels: [N, C], 1 where a training image has a class; n_c are their sums.

    Returns: [C] float32.
    """
    if isinstance(weights, str):
        totals = labels.double().sum(0)
        return ((len(labels) - totals).clamp(min=1) / totals.clamp(min=1)).float()
    return torch.tensor(_values(weights, classes), dtype=torch.float32)


def _values(weights: Mapping[str, float], classes: Sequence[str]) -> list[float]:
    for name, value in weights.items():
        if name not in classes:
            raise unknown("class in data.class_weights", name, classes)
        if not value > 0:
            raise UserError(f"data.class_weights.{name} must be positive, got {value}")
    return [float(weights.get(name, 1.0)) for name in classes]


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Order N images at random, every class as often as any other (or one time more). A class with too few images
    repeats them, each as often as the others of its class (or one time more); of one with too many, an epoch has some.
    """
    classes = torch.unique(labels)  # ascending
    share, left = divmod(len(labels), len(classes))
    more = torch.randperm(len(classes), generator=generator) < left
    drawn = []
    for label, one_more in zip(classes, more.tolist(), strict=True):
        rows, quota = (labels == label).nonzero()[:, 0], share + one_more
        turns = [torch.randperm(len(rows), generator=generator) for _ in range(-(-quota // len(rows)))]
        drawn.append(rows[torch.cat(turns or [rows[:0]])[:quota]])
    order = torch.cat(drawn)
    return order[torch.randperm(len(order), generator=generator)]
