# SPDX-License-Identifier: Apache-2.0
"""Networks with several classification heads: all logits while training, one prediction in evaluation mode."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import UserError

Inference = Literal["class", "mean"]
"""Prediction in evaluation mode: that of the class token or first head, or the mean of all heads."""


def check_inference(inference: str) -> None:
    """Raises: UserError unless it is an `Inference`."""
    if inference not in ("class", "mean"):
        raise UserError(f"inference must be class or mean, got {inference!r}")


def combine(logits: Iterable[Tensor], inference: Inference) -> Tensor:
    """Combine one [B, C] per head into one: the first one, or the mean of all."""
    heads = tuple(logits)
    return heads[0] if inference == "class" else torch.stack(heads).mean(0)


def token_logits(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return a network's output as one [B, C] per token head, class token first."""
    return (output,) if isinstance(output, Tensor) else tuple(output)


class ClassifierHeads(nn.ModuleList):
    """Linear classifiers on the same features, the label's head first.

    Args:
        heads: at least 2.
        features: length of the features.
        classes: length of the logits.
        inference: prediction in evaluation mode.
    """

    def __init__(self, heads: int, features: int, classes: int, inference: Inference) -> None:
        super().__init__(nn.Linear(features, classes) for _ in range(heads))
        self.inference = inference

    def forward(self, features: Tensor) -> Any:
        logits = tuple(head(features) for head in self)
        return logits if self.training else combine(logits, self.inference)


def head_switches(student: nn.Module) -> list[nn.Module]:
    """Return the modules whose `training` flag decides whether a student returns every head's logits or one."""
    inner: list[nn.Module] = [module for module in student.modules() if isinstance(module, ClassifierHeads)]
    return inner or ([student] if hasattr(student, "set_distilled_training") else [])


def every_head(student: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """Return the logits of all heads, [B, C] each, class token first, in evaluation mode as well.

    Only the heads are switched to training: dropout and batch statistics stay as they are.
    """
    switches = head_switches(student)
    before = [module.training for module in switches]
    for module in switches:
        module.training = True
    try:
        return token_logits(student(images))
    finally:
        for module, training in zip(switches, before, strict=True):
            module.training = training
