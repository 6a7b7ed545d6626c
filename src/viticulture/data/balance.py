# SPDX-License-Identifier: Apache-2.0
"""Classes of unequal size: how uneven they are, and two ways to make up for it: in the loss, in the order of images."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, unknown

UNEVEN = 10
"""Times that the largest class may exceed the smallest before a person is told."""


def mends(labels: np.ndarray) -> str:
    """What makes up for uneven classes; of images with several labels each, [N, C], no order shows all as often."""
    ways = ["`--data.class_weights balanced`", *(["`--data.sampling balanced`"] if labels.ndim == 1 else [])]
    return f"{' or '.join(ways)} makes up for it"


def is_uneven(counts: Sequence[int] | np.ndarray) -> bool:
    """Whether a person should know how many images the classes have."""
    return len(counts) > 0 and max(counts) > UNEVEN * min(counts)


def class_weights(wanted: str | Mapping[str, float], classes: Sequence[str], counts: Tensor) -> Tensor:
    """The factor of every class in the loss, scaled so that their mean over the training images is 1.

        w_c = N / (C n_c)                   balanced: every class weighs as much as any other
        w_c = N v_c / sum over k of n_k v_k of values v that are given; 1 where none is

    The scale leaves the size of gradients, and so the learning rate, what it was.

    Args:
        wanted: "balanced", or class -> value.
        classes: C names.
        counts: [C] training images n_c of each class.

    Returns: [C] float32.
    Raises: UserError for a class that there is none of, or a value that is not positive.
    """
    if isinstance(wanted, str):
        values = 1 / counts.double().clamp(min=1)
    else:
        values = torch.tensor(_values(wanted, classes), dtype=torch.float64)
    return (values * counts.sum() / (values * counts).sum()).float()


def positive_weights(wanted: str | Mapping[str, float], classes: Sequence[str], labels: Tensor) -> Tensor:
    """The factor of every label in the loss of the images that show it; those that do not count 1.

        w_c = (N - n_c) / n_c               balanced: showing a label weighs as much as not showing it
        w_c = v_c                           of values v that are given; 1 where none is

    Args:
        wanted: "balanced", or class -> value.
        classes: C names.
        labels: [N, C], 1 where a training image shows a class; n_c are their sums.

    Returns: [C] float32.
    Raises: UserError for a class that there is none of, or a value that is not positive.
    """
    if isinstance(wanted, str):
        shown = labels.double().sum(0)
        return ((len(labels) - shown).clamp(min=1) / shown.clamp(min=1)).float()
    return torch.tensor(_values(wanted, classes), dtype=torch.float32)


def _values(wanted: Mapping[str, float], classes: Sequence[str]) -> list[float]:
    for name, value in wanted.items():
        if name not in classes:
            raise unknown("class in data.class_weights", name, classes)
        if not value > 0:
            raise UserError(f"data.class_weights.{name} must be positive, got {value}")
    return [float(wanted.get(name, 1.0)) for name in classes]


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of N images, every class as often as any other (or one time more), in random order.

    A class that has too few images repeats them, each as often as the others of its class (or one time more); of one
    that has too many, an epoch shows some.

    Args:
        labels: [N] class of each image.
        generator: of all that is random.
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
