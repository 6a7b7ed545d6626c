# SPDX-License-Identifier: Apache-2.0
"""AAL: a CNN's activation maps regularize a ViT's class-token attention, through links that are trained with the ViT.

Paper: Jin and Choi, "Adaptive Attention Link-based Regularization for Vision Transformers" (AAL), arXiv:2211.13852.
Recipes: recipes/attention_link/. The attention maps are read by models/taps.py (Eq. 3), the CNN's maps come from
models/teachers/feature_maps.py, the links are in models/links.py (Eq. 4), and analysis/link_extraction.py selects
among trained ones (Algorithm 1).

    A+ = links(A)                                                           Eq. (4)
    L_att = || A+_c / ||A+_c||  -  B_c / ||B_c|| ||^2                       Eq. (5)
    L = L_CE + lambda L_att                                                 Eq. (6)

The authors published no code. Where the paper is silent, we read it so:

- Attention is scaled by 1 / sqrt(d) as in Eq. (2), and its softmax runs over the patches alone, without class and
  distillation token.
- B_c are the outputs of the CNN's stages, for EfficientNet-B3 all seven: 952 maps, the paper's 68,544 links from 72.
- L_att is the mean over images, maps and positions: only then does lambda = 2000 start near 20.
- lambda changes at the end of every epoch.
- A student whose maps have several sizes (PiT) is linked in each of them, and the CNN's maps are resized to each.
- A student with two heads and no label teacher trains both on its labels: set `method.every_head`.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..keywords import check_fields
from ..models.data_spec import DataSpec
from ..models.layout import layout
from ..models.links import Links, read_link_set
from ..models.taps import Readings
from ..models.teachers.feature_maps import load_maps
from .guide import Batch, Capability, Guide, check_positive, teacher_images


@dataclass(frozen=True)
class Decay:
    """Decay of the weight from epoch to epoch, by two factors in turn.

    Args:
        rate: factor an epoch, in (0, 1]; 1 leaves the weight constant.
        late_rate: factor an epoch later on.
        late_from: number of epochs with the first rate.
    """

    rate: float = 0.99
    late_rate: float = 0.98
    late_from: int = 200

    def __post_init__(self) -> None:
        check_fields("decay", self)
        if not (0 < self.rate <= 1 and 0 < self.late_rate <= 1):
            raise UserError(f"decay needs rates in (0, 1], got rate={self.rate}, late_rate={self.late_rate}")

    def scale(self, epoch: int) -> float:
        """Return the factor of the weight in an epoch, counted from 0."""
        return self.rate ** min(epoch, self.late_from) * self.late_rate ** max(0, epoch - self.late_from)


@dataclass(frozen=True)
class TeacherView:
    """Input of the teacher and the maps taken from it.

    Args:
        image_size: side of the teacher's input, pixels; null: images.teacher_size, else the student's images unchanged.
        stages: names of the teacher's modules whose outputs are taken; null: the outputs of its stages.
    """

    image_size: int | None = None
    stages: list[str] | None = None


class AttentionLink(Guide):
    """Move weighted sums of the class token's attention maps towards a frozen CNN's activation maps.

    The CNN may have been trained on other images and classes than the student's.

    Args:
        student: a ViT with a class token.
        teacher: a run; a timm name with pretrained weights; or ARCHITECTURE=FILE with weights from a file.
        links: full links every map to every head; alpha and beta are those of the paper's Table 1; a YAML file holds
            those that `viticulture links` extracted from a run.
        weight: lambda at the start.
        decay: of the weight.
        teacher_view: input of the teacher and the maps taken from it.
    """

    needs = frozenset({"class_attention"})
    requires = frozenset({Capability.PATCHES})
    capturable = True

    def __init__(
        self,
        student: nn.Module,
        data_spec: DataSpec,
        *,
        teacher: str,
        links: str = "full",
        weight: float = 2000.0,
        decay: Decay = Decay(),
        teacher_view: TeacherView = TeacherView(),
    ) -> None:
        super().__init__()
        check_positive(weight=weight)
        where = layout(student)
        if not (where.class_token and where.attention):
            raise UserError(
                f"it reads the class token's attention, which this {type(student).__name__} lacks; take a student that "
                "has one, such as --student vit_micro or dhvt_micro"
            )
        grids = where.grids(data_spec.image_size)
        maps = load_maps(teacher, data_spec, dict.fromkeys(grids), teacher_view.image_size, teacher_view.stages)
        self.teacher = maps.frozen
        linked = read_link_set(links, len(maps.channels), len(where.heads))
        self.links = Links(maps.channels, where.heads, grids, linked)
        self.start, self.decay = weight, decay
        self.weight = weight  # at this epoch
        self.magnitudes: list[Tensor] = []  # of the links at the start of every epoch so far

    def start_epoch(self, epoch: int, epochs: int) -> None:
        self.weight = self.start * self.decay.scale(epoch)
        if len(self.magnitudes) == epoch:  # not where a run resumes inside an epoch
            self.magnitudes.append(self.links.magnitudes().cpu())

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return one term, `attention_link`: lambda L_att, no unit."""
        targets = self.teacher(teacher_images(batch))
        with torch.autocast(batch["image"].device.type, enabled=False):
            augmented = self.links([maps.float() for maps in readings.class_attention])
            pairs = [
                (ours, torch.cat([targets[group.grid][block] for block in group.blocks], 1))
                for ours, group in zip(augmented, self.links.groups, strict=True)
            ]
            return {"attention_link": self.weight * link_loss(pairs)}

    def after_backward(self) -> dict[str, Tensor]:
        """Return lambda."""
        return {"weight": torch.tensor(self.weight)}

    def get_extra_state(self) -> dict[str, Any]:
        """Return the layout of the links and their magnitudes epoch by epoch, for checkpoints."""
        return {"links": self.links.about(), "magnitudes": self.magnitudes}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.magnitudes = list(state["magnitudes"])


def link_loss(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the mean squared difference of maps of unit length.

        L_att = mean over images, maps c and positions of (A+_c / ||A+_c|| - B_c / ||B_c||)^2        Eq. (5)
              = mean over images and maps of (2 - 2 cos(A+_c, B_c)) / positions

    The second line is computed. A map that is zero everywhere has no direction; its cosine counts as 0.

    Args:
        pairs: A+ and B, both [B, maps, rows, columns]; one pair for each part of the maps.

    Returns: scalar from 0 to 4 / positions of a map, no unit.
    """
    total = torch.stack([(2 - 2 * cosines(ours, theirs)).sum() for ours, theirs in pairs]).sum()
    return total / sum(prod(ours.shape) for ours, _ in pairs)


def cosines(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the cosines between the maps of two stacks, [B, maps, rows, columns] twice -> [B, maps]."""
    ours, theirs = ours.flatten(2), theirs.flatten(2)
    lengths = ours.norm(dim=-1) * theirs.norm(dim=-1)
    return (ours * theirs).sum(-1) / lengths.clamp_min(1e-12)
