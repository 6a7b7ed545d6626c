# SPDX-License-Identifier: Apache-2.0
"""Learn several labels an image, each by itself: is there a cat, is there a dog.

loss = sum over labels of binary cross-entropy, mean over images

or the asymmetric loss (`losses.asymmetric_binary`). Recipe: recipes/multilabel/photos.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..errors import UserError
from ..guides.guide import Batch, Given
from ..losses import asymmetric_binary, binary_cross_entropy
from ..scores.labels import mean_average_precision
from .method import BatchSpec, Method, Setup


class Multilabel(Method):
    """A sigmoid for every label, plus the guides' terms.

    The lowest loss on validation images chooses the best weights: the mAP of few images is at its highest for many
    epochs.

    Args:
        loss: bce, or asymmetric, which heeds the many labels that an image does not show less than those that it shows.
        smoothing: share of a label that is left undecided, in [0, 1): 1 becomes 1 - smoothing / 2, 0 smoothing / 2.
        label_weight: factor of the label term; 0 leaves learning to the guides.
    """

    gives: ClassVar[frozenset[Given]] = frozenset({Given.CLASSES, Given.PATCHES})
    task = "viticulture.tasks.multilabel.Multilabel"
    batch_spec: BatchSpec = BatchSpec(contents="labels")
    weighs_classes = True
    oblong = True
    asks_length = False

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
        if not 0 <= smoothing < 1:
            raise UserError(f"method.smoothing must lie in [0, 1), got {smoothing}")
        if label_weight < 0 or (label_weight == 0 and not setup.guides):
            raise UserError(f"method.label_weight must be positive unless a guide teaches, got {label_weight}")
        if loss == "asymmetric" and (smoothing or setup.class_weights is not None):
            raise UserError("method.loss asymmetric has weights of its own; leave smoothing and data.class_weights out")
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", setup.class_weights, persistent=False)
        self.asymmetric = loss == "asymmetric"
        self.smoothing, self.label_weight = smoothing, label_weight

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        readings = self.taps(batch["image"])
        logits, labels = readings.outputs[0], batch["label"]
        terms = {}
        if self.label_weight and self.asymmetric:
            terms["label"] = self.label_weight * asymmetric_binary(logits, labels)
        elif self.label_weight:
            terms["label"] = self.label_weight * binary_cross_entropy(
                logits, labels, self.smoothing, self.class_weights
            )
        return {**terms, **self.guided(batch, readings)}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """mAP of the batch, and cross-entropy without weights or smoothing."""
        logits = self.student(batch["image"]).detach().float()
        score = mean_average_precision(logits.cpu().numpy(), batch["label"].cpu().numpy())
        return {
            "map": torch.tensor(score, dtype=torch.float32, device=logits.device),
            "loss": binary_cross_entropy(logits, batch["label"]),
        }
