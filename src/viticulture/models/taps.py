# SPDX-License-Identifier: Apache-2.0
"""A read-only view of a student's inside; the only file that knows how timm's ViTs are laid out.

Interface (to be completed by the models work): `Taps(student, needs)` runs the student once and returns `Seen`.
"""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Seen:
    """What one forward pass showed.

    Args:
        logits: one [B, C] per token head, class token first.
        blocks: output of every block in order, [B, T, D] with prefix tokens first (or [B, D, H, W]), if tapped.
    """

    logits: tuple[Tensor, ...]
    blocks: list[Tensor] = field(default_factory=list)
