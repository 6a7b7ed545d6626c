# SPDX-License-Identifier: Apache-2.0
"""Learn from labels, and from whatever guides watch.

loss = label_weight * CE(student, label) + every term of every guide
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Guide
from ..losses import cross_entropy
from ..models.co_advise.many_heads import every_head
from ..models.task import Task
from ..optim import Optim, Schedule
from .method import Method


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

    def __init__(
        self,
        student: nn.Module,
        task: Task,
        guides: Mapping[str, Guide],
        optim: Optim,
        schedule: Schedule,
        *,
        smoothing: float = 0.0,
        label_weight: float = 1.0,
        every_head: bool = False,
        eval_mode: bool = False,
    ) -> None:
        super().__init__(student, task, guides, optim, schedule)
        if not 0 <= smoothing < 1:
            raise UserError(f"method.smoothing must lie in [0, 1), got {smoothing}")
        if label_weight < 0 or (label_weight == 0 and not guides):
            raise UserError(f"method.label_weight must be positive unless a guide teaches, got {label_weight}")
        self.smoothing, self.label_weight = smoothing, label_weight
        self.every_head, self.eval_mode = every_head, eval_mode

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if self.eval_mode:
            self.student.eval()
        seen = self.taps(batch["image"])
        heads = seen.logits if self.every_head else seen.logits[:1]
        label = batch["label"]
        if not label.is_floating_point():
            self.extra_logs = {"accuracy": (seen.logits[0].detach().argmax(-1) == label).float().mean()}
        terms = {}
        if self.label_weight:
            labels = [cross_entropy(logits, label, self.smoothing) for logits in heads]
            terms["label"] = self.label_weight * torch.stack(labels).mean()
        return {**terms, **self.guided(batch, seen)}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.student(batch["image"])
        right = (logits.argmax(-1) == batch["label"]).float().mean()
        heads = every_head(self.student, batch["image"])[1:] if self.every_head else ()
        tokens = {
            f"head_{k}_accuracy": (head.argmax(-1) == batch["label"]).float().mean() for k, head in enumerate(heads, 2)
        }
        return {"accuracy": right, "loss": cross_entropy(logits, batch["label"]), **tokens}
