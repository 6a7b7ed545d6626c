# SPDX-License-Identifier: Apache-2.0
"""Students with several heads: what they are called, and which of them make its output."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config.resolve import Config
from ..config.schema import of_class
from ..models.co_advise.many_heads import every_head
from ..models.views import Views, told
from .accuracy import ONE_HEAD


@dataclass(frozen=True)
class OutputHeads:
    """The heads of a student.

    Args:
        names: class token first, then the teachers' as `guides.co_advise.teachers` calls them; one name for one head.
        rule: which of them make the student's output: "class token", or "mean of 3 heads"; "its one head" where there
            is but one.
    """

    names: tuple[str, ...]
    rule: str

    def told(self, views: Views) -> str:
        """What makes the student's answers, for a person: which heads, by how many views of an image."""
        if not (by_views := told(views)):
            return self.rule
        return by_views if self.rule == ONE_HEAD else f"{self.rule}, {by_views}"

    def combine(self, logits: Tensor) -> Tensor:
        """The student's output out of all heads' logits: [K, B, C] -> [B, C]."""
        return logits.mean(0) if self.rule.startswith("mean") else logits[0]


@torch.no_grad()
def heads_of(student: nn.Module, images: Tensor, recipe: Config) -> OutputHeads:
    """Find out which heads make a student's output by comparing them with it, whatever it says of itself.

    Args:
        student: in evaluation mode.
        images: [B, channels, H, W], a few.
        recipe: names the heads that teachers taught.
    """
    logits = all_logits(student, images)
    advisers = of_class(recipe.values["guides"], "co_advise").values()
    taught = tuple(teacher for guide in advisers for teacher in guide.get("teachers") or ())
    names = taught if len(taught) == len(logits) - 1 else tuple(f"head {k}" for k in range(2, len(logits) + 1))
    if len(logits) == 1:
        return OutputHeads(("class",), ONE_HEAD)
    output = student(images).float()
    distance = {
        "class token": (output - logits[0]).abs().max(),
        f"mean of {len(logits)} heads": (output - logits.mean(0)).abs().max(),
    }
    return OutputHeads(("class", *names), min(distance, key=lambda rule: float(distance[rule])))


def all_logits(student: nn.Module, images: Tensor) -> Tensor:
    """The logits of every head, [K, B, C] float32, class token first."""
    return torch.stack(every_head(student, images)).float()
