# SPDX-License-Identifier: Apache-2.0
"""Fixed positions: sines and cosines of a patch's column and row."""

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from ...errors import UserError


def sincos(grid: tuple[int, int], width: int, prefix: int = 1) -> Tensor:
    """Position table of a ViT, [1, prefix + P, D].

        row of patch (y, x) = [sin(x w), cos(x w), sin(y w), cos(y w)],    w_i = 10000^(-4 i / D), i < D / 4

    Patches row by row; prefix tokens (class, registers) have zeros. Source: MAE's `get_2d_sincos_pos_embed`; MoCo-v3
    uses the same numbers with the halves swapped, which makes no difference to a network with random weights.

    Args:
        width: D, a multiple of 4.
        prefix: tokens before the patches.
    """
    if width % 4:
        raise UserError(f"sine and cosine positions need a width that is a multiple of 4, got {width}")
    rows, columns = grid
    omega = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    y, x = (torch.arange(count, dtype=torch.float64)[:, None] * omega for count in grid)
    across = torch.cat([x.sin(), x.cos()], dim=1).expand(rows, -1, -1)
    down = torch.cat([y.sin(), y.cos()], dim=1)[:, None].expand(-1, columns, -1)
    patches = torch.cat([across, down], dim=2).flatten(0, 1)  # [P, D]
    return torch.cat([patches.new_zeros(prefix, width), patches]).float()[None]


def choose_positions(student: nn.Module, positions: str) -> None:
    """Apply a recipe's `method.positions`: `fixed` sets a frozen table of sines and cosines, `learned`
    changes nothing. Raises: UserError for another value."""
    if positions not in ("fixed", "learned"):
        raise UserError(f"method.positions must be fixed or learned, got {positions!r}")
    if positions == "fixed":
        fix_positions(student)


def fix_positions(student: nn.Module) -> None:
    """Give a plain ViT this table and freeze it; other networks stay as they are."""
    if isinstance(student, VisionTransformer) and student.pos_embed is not None:
        prefix = 0 if student.no_embed_class else student.num_prefix_tokens
        table = sincos(student.patch_embed.grid_size, student.embed_dim, prefix)
        student.pos_embed.requires_grad_(False).copy_(table)
