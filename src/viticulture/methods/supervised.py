# SPDX-License-Identifier: Apache-2.0
"""Learn from labels, and from whatever guides watch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ..guides.guide import Batch
from ..losses import cross_entropy
from ..models.cit.many_heads import every_head, head_switches
from ..models.weights.load_matching import classifiers
from .method import Method, Setup


class Supervised(Method):
    """Cross-entropy with hard, smoothed or mixed labels, plus the guides' terms.

    Args:
        smoothing: share of the label spread evenly over all classes, in [0, 1); left alone where `augment.mix`
            has made the labels distributions already.
        label_weight: factor of the label term; 0 leaves learning to the guides.
        every_head: average the label term over all token heads instead of taking the class token's alone, for a
            student with several heads that no guide teaches.
        eval_mode: keep the student in evaluation mode while it learns: batch statistics stay as they are, dropout and
            drop-path are off (DHVT's fine-tuning).
    """

    weighs_classes = True
    oblong = True
    asks_length = False

    def __init__(
        self,
        setup: Setup,
        *,
        smoothing: float = 0.0,
        label_weight: float = 1.0,
        every_head: bool = False,
        eval_mode: bool = False,
    ) -> None:
        super().__init__(setup)
        self.class_weights: Tensor | None
        if not 0 <= smoothing < 1:
            raise UserError(f"method.smoothing must lie in [0, 1), got {smoothing}")
        if label_weight < 0 or (label_weight == 0 and not setup.guides):
            raise UserError(f"method.label_weight must be positive unless a guide teaches, got {label_weight}")
        if setup.class_weights is not None and label_weight == 0:
            raise UserError("data.class_weights weighs the label term, which method.label_weight 0 leaves out")
        self.register_buffer("class_weights", setup.class_weights, persistent=False)
        self.smoothing, self.label_weight = smoothing, label_weight
        self.every_head, self.eval_mode = every_head, eval_mode

    @property
    def has_idle_heads(self) -> bool:
        return super().has_idle_heads and not self.every_head

    def warnings(self, batch_size: int) -> list[str]:
        """A sentence where answers are the mean of several heads of which all but the first stay as they began."""
        rule = next((layer.inference for layer in self.student.modules() if hasattr(layer, "inference")), "mean")
        if not self.has_idle_heads or rule != "mean":
            return []
        return [
            f"answers are the mean of {len(classifiers(self.student))} heads, and nothing teaches those beside the "
            "first, as no guide does and method.every_head is false; --method.every_head true teaches them the labels"
        ]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy with the labels, and what guides add.

            label = label_weight * mean over heads and images of CE(outputs, labels)        nats

        `outputs` [B, C] are the class token's alone unless `every_head`; labels are classes [B] or distributions
        [B, C]; `data.class_weights` are factors of classes. Where its weight is 0 there is no label term. Guides see
        the same images and the same pass.
        """
        if self.eval_mode:
            self.student.eval()
            for switch in head_switches(self.student):
                switch.training = True  # all heads are there to be taught
        readings = self.taps(batch["image"])
        heads = readings.outputs if self.every_head else readings.outputs[:1]
        label = batch["label"]
        if not label.is_floating_point():
            self.extra_logs = {"accuracy": (readings.outputs[0].detach().argmax(-1) == label).float().mean()}
        terms = {}
        if self.label_weight:
            losses = [cross_entropy(logits, label, self.smoothing, self.class_weights) for logits in heads]
            terms["label"] = self.label_weight * torch.stack(losses).mean()
        return {**terms, **self.guided(batch, readings)}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.student(batch["image"])
        right = (logits.argmax(-1) == batch["label"]).float()
        heads = every_head(self.student, batch["image"])[1:] if self.every_head else ()
        more = {
            f"head_{k}_accuracy": (head.argmax(-1) == batch["label"]).float().mean() for k, head in enumerate(heads, 2)
        }
        if "class_weight" in batch:  # their mean over all images is that over classes
            more["balanced_accuracy"] = (right * batch["class_weight"]).mean()
            of_class = F.one_hot(batch["label"], len(self.data_spec.classes)).float()  # [B, C]
            counts = torch.stack([right @ of_class, of_class.sum(0)])
            self.by_class = counts if self.by_class is None else self.by_class + counts
        return {"accuracy": right.mean(), "loss": cross_entropy(logits, batch["label"]), **more}
