# SPDX-License-Identifier: Apache-2.0
"""Training in double precision, where sums in another order and a mistake are eight digits apart."""

from typing import Any

import torch
from torch import Tensor, nn

from viticulture.training.session import Session

CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}
"""Far above the rounding of doubles over a few steps (1e-12), far below what a mistake leaves (1e-3 of a weight)."""


def in_double(session: Session) -> Session:
    """Make every number of a session's method float64, images and mixed labels included."""
    method = session.method.double()
    losses, metrics = method.losses, method.all_metrics
    method.losses = lambda batch: losses(doubled(batch))  # type: ignore[method-assign]
    method.all_metrics = lambda batch: metrics(doubled(batch))  # type: ignore[method-assign]
    return session


def doubled(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch with images and mixed labels in float64."""
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


def never_single() -> None:
    """Make conversions to single precision give double, in a child; monkeypatch does it in a test itself."""
    Tensor.float = Tensor.double  # type: ignore[method-assign]


def check_same_gradients(gradients: dict[str, Tensor], module: nn.Module) -> None:
    """Check gradients of one of several processes against those of a single one, in double precision."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, **CLOSE)
