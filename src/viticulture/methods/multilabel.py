# SPDX-License-Identifier: Apache-2.0
"""Train on several labels an image: is there a cat, is there a dog.

loss = sum over labels of binary cross-entropy, mean over images

or the asymmetric loss (`losses.asymmetric_binary`). Recipe: recipes/multilabel/photos.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..errors import UserError
from ..guides.guide import Batch, Capability
from ..losses import asymmetric_binary, binary_cross_entropy
from ..scores.labels import mean_average_precision
from .method import BatchSpec, Method, Setup
from .supervised import check_label_term


class Multilabel(Method):
    """A sigmoid for every label, plus the guides' terms.

    The lowest loss on validation images selects the best weights: the mAP of few images is at its highest for many
    epochs.

    Args:
        loss: bce; or asymmetric, which gives the many labels that an image lacks less weight than those it has.
        smoothing: share of a label left undecided, in [0, 1): 1 becomes 1 - smoothing / 2, 0 smoothing / 2.
        label_weight: factor of the label term; 0 trains by the guides alone.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset({Capability.CLASSES, Capability.FEATURES, Capability.PATCHES})
    task = "viticulture.tasks.multilabel.Multilabel"
    batch_spec: BatchSpec = BatchSpec(contents="labels")
    takes_class_weights = True
    takes_non_square = True
    depends_on_length = False

    def __init__(
        self,
        setup: Setup,
        *,
        loss: Literal["bce", "asymmetric"] = "bce",
        smoothing: float = 0.0,
        label_weight: float = 1.0,
    ) -> None:
        super().__init__(setup)
        if loss not in ("bce", "asymmetric"):
            raise UserError(f"method.loss must be bce or asymmetric, got {loss!r}")
        check_label_term(setup, smoothing, label_weight)
        if loss == "asymmetric" and (smoothing or setup.class_weights is not None):
            raise UserError(
                "method.loss asymmetric sets its weights itself; leave smoothing and data.class_weights out"
            )
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", setup.class_weights, persistent=False)
        self.asymmetric = loss == "asymmetric"
        self.smoothing, self.label_weight = smoothing, label_weight

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        readings = self.taps(batch["image"])
        terms = {}
        if self.label_weight:
            labels = batch["label"]
            losses = [
                asymmetric_binary(logits, labels)
                if self.asymmetric
                else binary_cross_entropy(logits, labels, self.smoothing, self.class_weights)
                for logits in self.trained_on_labels(readings.outputs)
            ]
            terms["label"] = self.label_weight * torch.stack(losses).mean()
        return {**terms, **self.guide_losses(batch, readings)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return mAP of the batch, and cross-entropy without weights or smoothing."""
        logits = self.student(batch["image"]).detach().float()
        score = mean_average_precision(logits.cpu().numpy(), batch["label"].cpu().numpy())
        return {
            "map": torch.tensor(score, dtype=torch.float32, device=logits.device),
            "loss": binary_cross_entropy(logits, batch["label"]),
        }
