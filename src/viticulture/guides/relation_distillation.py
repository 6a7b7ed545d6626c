# SPDX-License-Identifier: Apache-2.0
"""Relation distillation: within each image, the student's patches are as similar to each other as the teacher's.

    x: last map, one row of length 1 a patch; the student's is first resized to the teacher's rows and columns
    loss = weight KL(softmax(x_T x_T^T / T) || softmax(x_S x_S^T / T))       mean over patches (rows) and images, nats

Relations have no width, so nothing is trained besides the student. Compare Tung and Mori, "Similarity-Preserving
Knowledge Distillation", ICCV 2019, arXiv:1907.09682, which relates the images of a batch so. Recipes: recipes/distill/.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..models.data_spec import DataSpec
from ..models.taps import Readings, relations
from ..models.teachers.outputs import load_teacher
from .guide import Batch, Capability, Guide, check_positive, teacher_images


class RelationDistillation(Guide):
    """Match a teacher's similarities between the patches of an image; its classes do not matter.

    Args:
        student: a network whose blocks or stages can be read: a ViT, a hybrid, a CNN.
        teacher: a run; a timm name with pretrained weights; or ARCHITECTURE=FILE with weights from a file. It reads
            images of images.teacher_size, else the student's, enlarged to the size it was trained at.
        temperature: T; the smaller, the more a patch is similar to itself alone.
        weight: factor of this guide's term.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"blocks"})
    requires = frozenset({Capability.PATCHES})
    capturable = True

    def __init__(
        self,
        student: nn.Module,
        data_spec: DataSpec,
        *,
        teacher: str,
        temperature: float = 0.1,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature, weight=weight)
        self.teacher = load_teacher(teacher, data_spec, output="relations")
        self.grid = self.teacher.outputs.grid
        if self.grid == (1, 1):
            raise UserError(
                f"the last map of the teacher {teacher} is a single patch, without relations; a larger "
                "images.teacher_size makes more of them"
            )
        self.temperature, self.weight = temperature, weight

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return one term, `relation_distillation`, nats."""
        with torch.autocast(batch["image"].device.type, enabled=False):
            theirs = torch.unflatten(self.teacher(teacher_images(batch)), 1, (-1, self.grid[0] * self.grid[1]))
            loss = relation_loss(readings.maps[-1].float(), theirs, self.grid, self.temperature)
        return {"relation_distillation": self.weight * loss}


def relation_loss(maps: Tensor, teacher: Tensor, grid: tuple[int, int], temperature: float) -> Tensor:
    """Return the divergence of the student's relations between patches from the teacher's.

        loss = mean over images and rows of KL(softmax(r_T / T) || softmax(r_S / T)),    r = x x^T

    Args:
        maps: the student's last map, [B, D, rows, columns]; resized to `grid`, bilinear, antialiased.
        teacher: r_T, cosines between its P patches, [B, P, P]; receives no gradient.
        grid: rows and columns of the teacher's patches, P in all.
        temperature: T.

    Returns: scalar, nats, at least 0.
    """
    if maps.shape[-2:] != grid:
        maps = F.interpolate(maps, grid, mode="bilinear", antialias=True)
    ours = F.log_softmax(relations(maps) / temperature, -1).flatten(0, 1)
    theirs = F.log_softmax(teacher.detach() / temperature, -1).flatten(0, 1)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
