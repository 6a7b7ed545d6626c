# SPDX-License-Identifier: Apache-2.0
"""Keep a trained network as it is, and train its classifier alone, to the optimum of logistic regression."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..guides.guide import Batch
from .method import Method, Setup
from .supervised import class_metrics


class LinearProbe(Method):
    """A linear classifier on a frozen network.

        minimize over W, b:  mean over images of CE(W z + b, label) + decay / 2 ||W||^2

    z are the classifier's inputs, standardized over the training images, which are cropped as in evaluation. The
    optimum is computed at once, without steps (training/linear_head.py); `losses` is its first term, for other loops.

    Args:
        decay: weight decay of the classifier; null chooses it by validation images, or without any by cross-validation
            over the training images.
    """

    provides = frozenset()
    closed_form = True

    def __init__(self, setup: Setup, *, decay: float | None = None) -> None:
        super().__init__(setup)
        self.decay = decay

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the student in evaluation mode, nats."""
        self.student.eval()
        return {"label": F.cross_entropy(self.taps(batch["image"]).outputs[0], batch["label"])}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            return class_metrics(self.student(batch["image"]), batch)
