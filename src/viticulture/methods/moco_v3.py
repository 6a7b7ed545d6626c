# SPDX-License-Identifier: Apache-2.0
"""Learn without labels by recognising an image in another view of it: MoCo v3.

Paper: Chen et al., "An Empirical Study of Training Self-Supervised Vision Transformers", ICCV 2021, arXiv:2104.02057;
for small ViTs "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes:
recipes/mae/moco-*.yaml.

    q = predictor(projector(student(view)))        k = the momentum encoder's projector(student(view))
    loss = ctr(q1, k2) + ctr(q2, k1)               ctr(q, k) = 2 T CE(cos(q, k) / T, own image)    [Sec. 3, Alg. 1]

Keys of all processes count as negatives, BatchNorm runs over all of them. The momentum encoder moves before it makes
keys: m <- 1 - (1 - m0) (1 + cos(pi t)) / 2, for t in [0, 1) of the training. The kept student is the one with gradient.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..errors import UserError
from ..guides.guide import Batch, Guide
from ..models.positions import choose_positions
from ..models.shared_batch_norm import gathered, normalised, perceptron, rank
from ..models.students import token_logits
from ..models.task import Task
from ..optim import Optim, Schedule
from .method import Method

FEW = 256  # images in a batch, below which a remark is made


class MoCoV3(Method):
    """Two views of every image (recipe sections `augment` and `augment2`): find each among all images of a batch.

    Args:
        temperature: T; smaller is stricter.
        momentum: m0, share of the momentum encoder that stays in the first step; it rises to 1.
        width: of queries and keys.
        hidden_width: of the projector's and the predictor's hidden layers.
        freeze_patches: leave the student's random patch embedding as it is, which keeps large ViTs stable.
        positions: `fixed` gives a plain ViT a table of sines and cosines and keeps it as it is; `learned` trains the
            student's own. Students without such a table keep what they have.
    """

    labelled: ClassVar[bool] = False
    views: ClassVar[int] = 2

    def __init__(
        self,
        student: nn.Module,
        task: Task,
        guides: Mapping[str, Guide],
        optim: Optim,
        schedule: Schedule,
        *,
        temperature: float = 0.2,
        momentum: float = 0.99,
        width: int = 256,
        hidden_width: int = 4096,
        freeze_patches: bool = False,
        positions: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        super().__init__(student, task, guides, optim, schedule)
        if temperature <= 0 or not 0 <= momentum < 1:
            raise UserError(
                "method.temperature must be positive and method.momentum lie in [0, 1), "
                f"got {temperature} and {momentum}"
            )
        if min(width, hidden_width) < 1:
            raise UserError(f"method.width and method.hidden_width must be positive, got {width} and {hidden_width}")
        choose_positions(student, positions)
        if freeze_patches:
            student.get_submodule("patch_embed").requires_grad_(False)
        self.temperature, self.momentum = temperature, momentum
        with torch.no_grad():
            features = token_logits(copy.deepcopy(student).eval()(torch.zeros(1, 3, *task.image_size)))[0]
        projector = perceptron([features.shape[1], hidden_width, hidden_width, width])
        self.aids["projector"] = projector
        self.aids["predictor"] = perceptron([width, hidden_width, width])
        self.aids["momentum"] = copy.deepcopy(nn.Sequential(student, projector)).requires_grad_(False)
        self.updates, self.waiting = 0, False  # steps of the momentum encoder; whether a batch's next portion is due

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        both = torch.cat([batch["image"], batch["image2"]])
        seen = self.taps(both)
        q1, q2 = (self._query(features) for features in seen.logits[0].chunk(2))
        if not self.waiting:
            self._move()
        self.waiting = not self.last_portion
        with torch.no_grad():
            student, projector = self.aids["momentum"].children()
            k1, k2 = (projector(features) for features in token_logits(student(both))[0].chunk(2))
        loss = self._contrast(q1, k2) + self._contrast(q2, k1)
        return {"contrast": loss, **self.guided({**batch, "image": both}, seen)}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """The loss between each image and its mirror image."""
        images, mirrored = batch["image"], batch["image"].flip(-1)
        q, k = self._query(self.student(images)), self.aids["momentum"](mirrored)
        return {"loss": 2 * self._contrast(q, k)}

    def remarks(self, batch_size: int) -> list[str]:
        if batch_size >= FEW:
            return []
        return [
            f"moco_v3 tells each image from the others of its batch, and {batch_size} are few: with fewer than {FEW} "
            "the task is easy and batch statistics are noisy; take a larger train.batch_size, or method mae"
        ]

    def _query(self, features: Tensor) -> Tensor:
        query: Tensor = self.aids["predictor"](self.aids["projector"](features))
        return query

    def _contrast(self, query: Tensor, key: Tensor) -> Tensor:
        logits = normalised(query) @ gathered(normalised(key)).T / self.temperature  # [B, world * B]
        own = torch.arange(len(query), device=query.device) + len(query) * rank()
        self.facts = {"instance_accuracy": (logits.detach().argmax(1) == own).float().mean()}
        return 2 * self.temperature * F.cross_entropy(logits, own)

    @torch.no_grad()
    def _move(self) -> None:
        """The momentum encoder's weights towards the student's and the projector's; buffers are its own."""
        keep = (
            1 - (1 - self.momentum) * (1 + math.cos(math.pi * self.updates / (self.steps_per_epoch * self.epochs))) / 2
        )
        theirs = list(self.aids["momentum"].parameters())
        ours = [*self.student.parameters(), *self.aids["projector"].parameters()]
        get_ema_multi_avg_fn(keep)(theirs, ours, None)  # type: ignore[no-untyped-call]
        self.updates += 1

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["momentum_updates"] = self.updates

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.updates = checkpoint["momentum_updates"]
