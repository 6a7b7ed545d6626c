# SPDX-License-Identifier: Apache-2.0
"""How much the heads of a student agree with each other and with their teachers, on the same images.

Co-advise, arXiv:2106.12378, Table 5: KL(softmax(teacher) || softmax(head)), nats, mean over test images, at temperature
1 (the paper does not say which; its loss has 1). Beside it, on which images both are wrong and answer the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...losses import soft_distillation


@dataclass(frozen=True)
class Agreement:
    """Heads and teachers side by side; shares lie in [0, 1].

    Args:
        weights: best, last or ema.
        split: which images.
        images: how many.
        rule: which heads make the student's answer.
        heads: names of the student's heads, the class token's first.
        teachers: names of the teachers.
        accuracy: of the student, of each head and of each teacher, by name.
        divergence: for each head, nats from each teacher.
        both_wrong: share of images on which both are wrong, for all pairs in the order of `accuracy`.
        same_prediction: share of images on which both answer the same, right or wrong.
        missing: why there is nothing but `weights` and `split`; empty where there is.
        checksum: of these weights, see `kept.checksum_of`.
    """

    weights: str
    split: str
    images: int = 0
    rule: str = ""
    heads: tuple[str, ...] = ()
    teachers: tuple[str, ...] = ()
    accuracy: Mapping[str, float] | None = None
    divergence: tuple[tuple[float, ...], ...] = ()
    both_wrong: tuple[tuple[float, ...], ...] = ()
    same_prediction: tuple[tuple[float, ...], ...] = ()
    missing: str = ""
    checksum: str = ""


def divergences(heads: Tensor, teachers: Tensor) -> Tensor:
    """KL(teacher || head), nats, mean over images.

    Args:
        heads: logits, [M, N, C].
        teachers: logits, [K, N, C].

    Returns: [M, K].
    """
    each = [soft_distillation(head.double(), teacher.double()) for head in heads for teacher in teachers]
    return torch.stack(each).view(len(heads), len(teachers))


def both_wrong(predictions: Tensor, labels: Tensor) -> Tensor:
    """Share of images on which both of a pair are wrong: [M, N] classes, [N] -> [M, M]; the diagonal is the error."""
    wrong = (predictions != labels).double()
    return wrong @ wrong.mT / len(labels)


def same_prediction(predictions: Tensor) -> Tensor:
    """Share of images on which both of a pair answer the same: [M, N] classes -> [M, M], 1 on the diagonal."""
    return (predictions[:, None] == predictions[None]).double().mean(-1)


def rows(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """As plain numbers."""
    return tuple(map(tuple, matrix.tolist()))


def agree(
    student: Tensor, heads: Mapping[str, Tensor], teachers: Mapping[str, Tensor], labels: Tensor
) -> dict[str, Any]:
    """What an Agreement holds of logits on N images.

    Args:
        student: the student's, [N, C].
        heads: [N, C] each.
        teachers: [N, C] each, at least one.
        labels: [N].
    """
    both = len(set(heads) & set(teachers)) > 0
    tokens = {f"{name} token" if both else name: logits for name, logits in heads.items()}
    every = {"student": student, **(tokens if len(heads) > 1 else {}), **teachers}
    predictions = torch.stack([logits.argmax(-1) for logits in every.values()])
    right = (predictions == labels).double().mean(-1).tolist()
    return {
        "images": len(labels),
        "heads": tuple(tokens),
        "teachers": tuple(teachers),
        "accuracy": dict(zip(every, right, strict=True)),
        "divergence": rows(divergences(torch.stack([*heads.values()]), torch.stack([*teachers.values()]))),
        "both_wrong": rows(both_wrong(predictions, labels)),
        "same_prediction": rows(same_prediction(predictions)),
    }


def collected(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    """Batches of K answers [B, C] -> [K, N, C] float32 on the CPU."""
    return torch.cat([torch.stack(list(part)).float().cpu() for part in parts], 1)
