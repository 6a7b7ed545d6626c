# SPDX-License-Identifier: Apache-2.0
"""Train without labels, by what guides add alone: label-free distillation.

Recipes: recipes/distill/; recipes/mae/seed-*.yaml, which are SEED (guides/feature_distillation.py).
"""

from typing import ClassVar

import torch
from torch import Tensor

from ..errors import UserError
from ..guides.guide import Batch, Capability
from .method import BatchSpec, Method, Setup


class Distillation(Method):
    """Match a frozen teacher's features; at least one guide teaches."""

    provides: ClassVar[frozenset[Capability]] = frozenset({Capability.FEATURES, Capability.PATCHES})
    batch_spec = BatchSpec(labels=False)
    capturable = True
    depends_on_length = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if not setup.guides:
            raise UserError(
                "method distillation trains by guides alone, and there are none: name a teacher, such as "
                "--guides.feature_distillation.teacher NET"
            )

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of guides."""
        return self.guide_losses(batch, self.taps(batch["image"]))

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of the same terms."""
        return {"loss": torch.stack(list(self.losses(batch).values())).sum()}
