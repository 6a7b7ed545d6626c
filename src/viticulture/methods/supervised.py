# SPDX-License-Identifier: Apache-2.0
"""Train on labels, and with whatever guides add."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ..guides.guide import Batch
from ..losses import cross_entropy, partial_cross_entropy
from ..models.cpu.folding import folded_batch_norms
from ..models.heads import every_head, head_switches
from ..models.weights.load_matching import classifiers
from .method import Method, Setup


def check_label_term(setup: Setup, smoothing: float, label_weight: float) -> None:
    """Raises: UserError for settings of the label term that are out of range."""
    if not 0 <= smoothing < 1:
        raise UserError(f"method.smoothing must lie in [0, 1), got {smoothing}")
    if label_weight < 0 or (label_weight == 0 and not setup.guides):
        raise UserError(f"method.label_weight must be positive unless a guide teaches, got {label_weight}")
    if setup.class_weights is not None and label_weight == 0:
        raise UserError("data.class_weights weighs the label term, which method.label_weight 0 leaves out")


class Supervised(Method):
    """Cross-entropy with hard, smoothed or mixed labels, plus the guides' terms.

    Args:
        smoothing: share of the label spread evenly over all classes, in [0, 1); not applied where `augment.mix` has
            made the labels distributions already.
        label_weight: factor of the label term; 0 trains by the guides alone.
        every_head: average the label term over all token heads instead of the class token's alone, for a student with
            several heads that no guide trains.
        eval_mode: train the student in evaluation mode: batch statistics stay constant, dropout and drop-path are off
            (DHVT's fine-tuning).
    """

    takes_class_weights = True
    takes_non_square = True
    capturable = True
    depends_on_length = False

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
        check_label_term(setup, smoothing, label_weight)
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", setup.class_weights, persistent=False)
        self.smoothing, self.label_weight = smoothing, label_weight
        self.every_head, self.eval_mode = every_head, eval_mode
        self.labeled_share = setup.labeled_share

    @property
    def has_idle_heads(self) -> bool:
        return super().has_idle_heads and not self.every_head

    def warnings(self, batch_size: int) -> list[str]:
        """Warn of predictions that are the mean of several heads, of which all but the first are untrained."""
        rule = next((layer.inference for layer in self.student.modules() if hasattr(layer, "inference")), "mean")
        if not self.has_idle_heads or rule != "mean":
            return []
        return [
            f"predictions are the mean of {len(classifiers(self.student))} heads, of which only the first is trained, "
            "as no guide trains the others and method.every_head is false; --method.every_head true trains them on the "
            "labels"
        ]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy with the labels and the terms of guides, which read the same images and pass.

            label = label_weight * mean over heads and images of CE(outputs, labels)        nats

        `outputs` [B, C] are the class token's alone unless `every_head`; labels are classes [B] or distributions
        [B, C]; `data.class_weights` are factors of classes. With label_weight 0 there is no label term. Images of
        `data.unlabeled` have none (`partial_cross_entropy`).
        """
        folded: AbstractContextManager[None] = nullcontext()
        if self.eval_mode:
            self.student.eval()
            if not (self.guides or self.taps.compiled):  # a guide may read what a convolution returns
                folded = folded_batch_norms(self.student, batch["image"])
            for switch in head_switches(self.student):
                switch.training = True  # all heads are trained
        with folded:
            readings = self.taps(batch["image"])
        outputs, label = readings.outputs, batch["label"]
        if self.labeled_share < 1:
            correct, labeled = outputs[0].detach().argmax(-1) == label, label >= 0
            self.logs["accuracy"] = correct.sum() / labeled.sum()  # nan without any, which an epoch's mean leaves out
        elif not label.is_floating_point():
            self.logs["accuracy"] = (outputs[0].detach().argmax(-1) == label).float().mean()
        terms = {}
        if self.label_weight:
            heads = outputs if self.every_head else outputs[:1]
            losses = [
                cross_entropy(logits, label, self.smoothing, self.class_weights)
                if self.labeled_share == 1
                else partial_cross_entropy(logits, label, self.labeled_share, self.smoothing)
                for logits in heads
            ]
            terms["label"] = self.label_weight * (torch.stack(losses).mean() if len(losses) > 1 else losses[0])
        return {**terms, **self.guide_losses(batch, readings)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return `class_metrics`, and the accuracy of every head that the labels train."""
        values = class_metrics(self.student(batch["image"]), batch)
        for k, head in enumerate(every_head(self.student, batch["image"])[1:] if self.every_head else (), 2):
            values[f"head_{k}_accuracy"] = (head.argmax(-1) == batch["label"]).float().mean()
        return values


def class_metrics(logits: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return accuracy and loss of predictions [B, C]; with class weights also the balanced accuracy and, as `recalls`
    [2, C], how many images of each class are correct and how many there are."""
    label = batch["label"]
    correct = (logits.argmax(-1) == label).float()
    values = {"accuracy": correct.mean(), "loss": cross_entropy(logits, label)}
    if "class_weight" in batch:  # their mean over all images is that over classes
        values["balanced_accuracy"] = (correct * batch["class_weight"]).mean()
        of_class = F.one_hot(label, logits.shape[-1]).float()  # [B, C]
        values["recalls"] = torch.stack([correct @ of_class, of_class.sum(0)])
    return values
