# SPDX-License-Identifier: Apache-2.0
"""Train on a number an image: an age, a yield, a quality.

loss = mean over images of l(f(x) - (y - m) / s), m and s mean and standard deviation of the training images' numbers

with l(d) = |d| - 1/2, or d^2 / 2 where |d| < 1 (smooth L1), or d^2 (mse). Recipe: recipes/regression/photos.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ..guides.guide import Batch, Capability
from .method import BatchSpec, Method, Setup


class Regression(Method):
    """Predicts a number an image, standardized by `DataSpec.scale`. The lowest loss on validation images selects the
    best weights.

    Args:
        loss: smooth_l1, which a few wrong numbers move little; or mse.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset({Capability.FEATURES, Capability.PATCHES})
    task = "viticulture.tasks.regression.Regression"
    batch_spec: BatchSpec = BatchSpec(contents="numbers")
    takes_non_square = True
    depends_on_length = False

    def __init__(self, setup: Setup, *, loss: Literal["smooth_l1", "mse"] = "smooth_l1") -> None:
        super().__init__(setup)
        if loss not in ("smooth_l1", "mse"):
            raise UserError(f"method.loss must be smooth_l1 or mse, got {loss!r}")
        self.loss = F.smooth_l1_loss if loss == "smooth_l1" else F.mse_loss
        self.mean, self.deviation = setup.data_spec.scale or (0.0, 1.0)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        readings = self.taps(batch["image"])
        terms = [self.term(output, batch) for output in self.trained_on_labels(readings.outputs)]
        return {"number": torch.stack(terms).mean(), **self.guide_losses(batch, readings)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean absolute error in the labels' unit, and the loss."""
        output = self.student(batch["image"])
        errors = self.data_spec.probabilities(output)[:, 0] - batch["label"]
        return {"mae": errors.abs().mean(), "loss": self.term(output, batch)}

    def term(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss of outputs [B, 1]."""
        return self.loss(output[:, 0].float(), (batch["label"] - self.mean) / self.deviation)
