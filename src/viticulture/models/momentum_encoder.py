# SPDX-License-Identifier: Apache-2.0
"""A moving average of a network: the momentum encoder of MoCo v3, the teacher of DINO."""

import copy
import math

import torch
from timm.layers.drop import DropBlock2d, DropPath
from timm.layers.patch_dropout import PatchDropout
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from .heads import token_logits

PROBABILITIES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.Dropout, "p"),
    (nn.Dropout2d, "p"),
    (DropPath, "drop_prob"),
    (DropBlock2d, "drop_prob"),
    (PatchDropout, "prob"),
    (nn.Module, "drop_rate"),  # which timm's CNNs hand to a function before their head
)
"""Layer that drops, and the attribute of its rate."""


class MomentumEncoder(nn.Sequential):
    """A copy of a student and of its head, without gradient and dropout, whose weights move towards theirs.

        theirs <- m theirs + (1 - m) ours,    m = 1 - (1 - m0) (1 + cos(pi t)) / 2    for t in [0, 1) of the training

    The first update finds equal weights and changes nothing.

    Shape: views [B, 3, H, W], as one batch -> the head's output of each. Buffers are not averaged.

    Args:
        student: first part.
        head: second part.
        momentum: m0, share that stays at the first update; it rises to 1.
        lag: updates by which t is late: 0 for an update that opens a step (MoCo v3), 1 for one that closes the step
            before (DINO).
    """

    def __init__(self, student: nn.Module, head: nn.Module, momentum: float, lag: int = 0) -> None:
        super().__init__(copy.deepcopy(student), copy.deepcopy(head))
        self.requires_grad_(False)
        for module in self.modules():
            for kind, name in PROBABILITIES:
                if isinstance(module, kind) and hasattr(module, name):
                    setattr(module, name, 0.0)
        self.momentum, self.lag = momentum, lag
        self.updates = 0

    @torch.no_grad()
    def forward(self, *views: Tensor) -> list[Tensor]:
        student, head = self
        return [head(features) for features in token_logits(student(torch.cat(views)))[0].chunk(len(views))]

    @torch.no_grad()
    def update(self, student: nn.Module, head: nn.Module, steps: int) -> None:
        """Update once a step; student and head are the copied ones, `steps` those of the whole training."""
        done = max(self.updates - self.lag, 0) / steps
        keep = 1 - (1 - self.momentum) * (1 + math.cos(math.pi * done)) / 2
        ours = [*student.parameters(), *head.parameters()]
        get_ema_multi_avg_fn(keep)(list(self.parameters()), ours, None)  # type: ignore[no-untyped-call]
        self.updates += 1

    def get_extra_state(self) -> Tensor:
        """The clock, for checkpoints."""
        return torch.tensor(self.updates)

    def set_extra_state(self, state: Tensor) -> None:
        self.updates = int(state)
