"""Attention transfer as a guide outside the package: where a CNN's maps are strong, the student's tokens shall be.

Paper: Zagoruyko and Komodakis, "Paying More Attention to Attention", ICLR 2017, arXiv:1612.03928.

    L = weight * mean over images of || Q_s / ||Q_s|| - Q_t / ||Q_t|| ||,   Q = sum over channels of F^2     Eq. (2)
"""

import torch.nn.functional as F
from torch import Tensor, nn

from viticulture.plugins import Batch, Capability, DataSpec, Guide, Readings, UserError, layout, load_maps


class AttentionTransfer(Guide):
    """Draw the energy of the last block's tokens to that of the last stage of a CNN.

    Args:
        student: any that attends to patches.
        data_spec: its input.
        teacher: a run, a timm name with pretrained weights, or ARCHITECTURE=FILE.
        weight: factor of the term.

    Raises: UserError for a student without attention, or a teacher that has no map of its patches' size.
    """

    needs = frozenset({"blocks"})
    requires = frozenset({Capability.PATCHES})

    def __init__(self, student: nn.Module, data_spec: DataSpec, *, teacher: str, weight: float = 0.1) -> None:
        super().__init__()
        known = layout(student)
        if not known.attention:
            raise UserError(f"student: {type(student).__name__} attends to nothing; take a ViT or a hybrid")
        self.grid, self.prefix, self.weight = known.grids(data_spec.image_size)[-1], known.prefix, weight
        self.teacher = load_maps(teacher, data_spec, {self.grid}).frozen

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        last = readings.blocks[-1]  # of a hybrid a map, [B, D, rows, columns]
        tokens = last.flatten(2).mT if last.ndim == 4 else last[:, self.prefix :]  # [B, P, D]
        maps = self.teacher(batch["image"])[self.grid][-1]  # [B, C, rows, columns]
        ours, theirs = tokens.square().sum(2), maps.square().sum(1).flatten(1)
        apart = F.normalize(ours.float()) - F.normalize(theirs.float())
        return {"transfer": self.weight * apart.norm(dim=1).mean()}
