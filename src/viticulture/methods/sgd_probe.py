# SPDX-License-Identifier: Apache-2.0
"""Train a linear classifier on a frozen network's features of augmented images, as MAE's linear probe.

    logits = W (f(x) - mean) / sqrt(var + eps) + b        f frozen; mean and var of the batch of all processes

Only W and b are trained. After every step the student's own classifier becomes the same function with the running
statistics, so that the saved student is a plain one. Recipe: recipes/mae/linear-probe. `viticulture probe` solves the
same problem exactly, without augmentation, in minutes; so does method `linear_probe`.

Paper: He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377, Appendix A.1.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Capability
from ..models.shared_batch_norm import SharedBatchNorm
from ..models.taps import Taps
from .method import Method, Setup
from .supervised import class_metrics

EPSILON = 1e-6


class SGDProbe(Method):
    """Cross-entropy of a linear classifier behind a batch norm without scale, on frozen features."""

    provides: ClassVar[frozenset[Capability]] = frozenset()
    depends_on_length = False

    def __init__(self, setup: Setup) -> None:
        if setup.guides:
            raise UserError(f"method sgd_probe trains a classifier alone; take guides.{next(iter(setup.guides))} out")
        super().__init__(setup)
        head = getattr(setup.student, "get_classifier", nn.Identity)()
        if not isinstance(head, nn.Linear):
            raise UserError(
                "method sgd_probe needs a student with one linear classifier, such as mae_tiny, "
                f"got a {type(setup.student).__name__}"
            )
        setup.student.requires_grad_(False)
        self.taps = Taps(setup.student, frozenset({"features"}))
        self.auxiliary["norm"] = SharedBatchNorm(head.in_features, EPSILON, affine=False)
        self.auxiliary["classifier"] = nn.Linear(head.in_features, head.out_features)
        nn.init.trunc_normal_(self._classifier().weight, std=0.01)
        nn.init.zeros_(self._classifier().bias)

    def warnings(self, batch_size: int) -> list[str]:
        """Warn of features of random weights."""
        return (
            [] if self.start else ["the network that is probed has random weights; name a trained one: --init NETWORK"]
        )

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        self.student.eval()
        with torch.no_grad():
            features = self.taps(batch["image"]).features[0]
        logits = self._classifier()(self.auxiliary["norm"](features.float()))
        if not batch["label"].is_floating_point():  # mixed images have no one class
            self.logs["accuracy"] = (logits.detach().argmax(-1) == batch["label"]).float().mean()
        return {"label": F.cross_entropy(logits, batch["label"])}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        return class_metrics(self.student(batch["image"]), batch)

    @torch.no_grad()
    def after_step(self) -> None:
        """Write the classifier, with the running mean and variance inside, into the student's."""
        student: Any = self.student
        norm: Any = self.auxiliary["norm"]
        trained, head = self._classifier(), student.get_classifier()
        weight = trained.weight / (norm.running_var + EPSILON).sqrt()
        head.weight.copy_(weight)
        head.bias.copy_(trained.bias - weight @ norm.running_mean)

    def _classifier(self) -> nn.Linear:
        classifier = self.auxiliary["classifier"]
        assert isinstance(classifier, nn.Linear)
        return classifier
