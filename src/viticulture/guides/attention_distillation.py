# SPDX-License-Identifier: Apache-2.0
"""Attention distillation: a small ViT matches the attention of a larger one (distilled MAE).

Paper: "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443, Sec. 5. Recipe:
recipes/mae/cifar100-distilled.yaml. For each chosen block

    L = weight * MSE(A_teacher, M A_student)                            Eq. (3)

with A = q k^T / sqrt(d) before the softmax, class token included, and M a 1x1 convolution over heads that is trained
with the student. The paper writes softmax; the authors' code takes the scores before it. The teacher processes the
student's patches and stops at the last layer needed.
"""

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..models.data_spec import DataSpec
from ..models.layout import layout
from ..models.taps import Readings
from ..models.teachers.patches import PatchReadings, freeze, load_patch_teacher
from ..models.vit.patches import check, finish
from .guide import Batch, Guide


class AttentionDistillation(Guide):
    """Match a teacher's attention scores, block by block; with `mae` on the visible patches, else on all of them.

    Args:
        student: a ViT of timm's layout.
        teacher: a run; a timm name with pretrained weights, such as vit_base_patch16_224.mae; or ARCHITECTURE=FILE,
            such as mae_base=mae_pretrain_vit_base.pth.
        blocks: the student's blocks to train, counted from 0; null: the last one. Each is matched with the teacher's
            block at the same share of its depth; a shallower teacher's block may serve more than once.
        weight: factor of this guide's attention term.
        hidden_weight: factor of a second term, the mean squared distance between the teacher's output tokens and the
            student's, mapped linearly to its width; 0 leaves it out, as the paper does.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"attention", "blocks"})
    capturable = True

    def __init__(
        self,
        student: nn.Module,
        data_spec: DataSpec,
        *,
        teacher: str,
        blocks: list[int] | None = None,
        weight: float = 1.0,
        hidden_weight: float = 0.0,
    ) -> None:
        super().__init__()
        if weight <= 0 or hidden_weight < 0:
            raise UserError(f"weight must be positive and hidden_weight not negative, got {weight} and {hidden_weight}")
        where, name = layout(student), type(student).__name__
        depth = len(where.attention)
        if not depth:
            raise UserError(
                f"it reads attention, which this {name} lacks or lays out differently; take a ViT, such as "
                "--student vit_micro"
            )
        self.blocks = sorted(set(blocks if blocks is not None else [depth - 1]))
        if not self.blocks or not 0 <= self.blocks[0] <= self.blocks[-1] < depth:
            raise UserError(f"blocks must lie in 0 to {depth - 1}, got {blocks}")
        if any(where.pooling[block] != 1 for block in self.blocks):
            raise UserError(
                f"blocks must have a token for every patch of the first one, got {self.blocks} of a {name}, which pools"
            )
        vit, reads = load_patch_teacher(teacher, data_spec, where.grid(data_spec.image_size))
        if vit.num_prefix_tokens != where.prefix:
            raise UserError(
                "teacher and student must have as many tokens before the patches, "
                f"{teacher} has {vit.num_prefix_tokens}, the student {where.prefix}"
            )
        teacher_blocks = [max(round((block + 1) * len(vit.blocks) / depth), 1) - 1 for block in self.blocks]
        teacher_heads = layout(vit).heads
        self.heads = nn.ModuleList(
            nn.Conv2d(where.heads[ours], teacher_heads[theirs], 1, bias=False)
            for ours, theirs in zip(self.blocks, teacher_blocks, strict=True)
        )
        self.weight, self.hidden_weight = weight, hidden_weight
        if hidden_weight:
            plain = check(student)
            self.widen, self.finish = nn.Linear(plain.embed_dim, vit.embed_dim, bias=False), partial(finish, plain)
        self.teacher = freeze(vit, reads, data_spec, teacher_blocks, to_the_end=hidden_weight > 0)

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return `attention`, the sum over blocks of means over everything, and `hidden` if it has a weight."""
        theirs: PatchReadings = self.teacher(batch["image"], batch.get("visible"))
        distances = [self._attention(k, readings, theirs) for k in range(len(self.blocks))]
        terms = {"attention": self.weight * torch.stack(distances).sum()}
        if theirs.output is not None:
            ours = self.widen(self.finish(readings.blocks[-1]))
            terms["hidden"] = self.hidden_weight * F.mse_loss(ours.float(), theirs.output.float())
        return terms

    def _attention(self, which: int, readings: Readings, theirs: PatchReadings) -> Tensor:
        """Compare prefix tokens and patches; tokens after them, such as DHVT's head tokens, the teacher lacks."""
        reading = readings.attention[self.blocks[which]]
        tokens = reading.prefix + reading.patches
        ours = self.heads[which](reading.scores()[..., :tokens, :tokens])
        return F.mse_loss(ours.float(), theirs.scores[which].float())
