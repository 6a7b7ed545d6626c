# SPDX-License-Identifier: Apache-2.0
"""A plain ViT patch by patch: some of them embedded, tokens made ready for its blocks and finished behind them.

What methods and teachers need that show a ViT some of an image's patches (`methods.mae`), something in their place
(`methods.simmim`), or images of another size (`any_size`). The steps are those of timm's `forward_features`.

Deviation that changes no result: a patch lists its pixels channel by channel, as a patch embedding's kernel does, where
MAE's targets list them pixel by pixel.
"""

from typing import Any

import torch
from timm.layers.patch_embed import PatchEmbed
from timm.models import VisionTransformer
from torch import Tensor, nn

from ...errors import UserError

PatchGrid = tuple[int, int]
"""Rows and columns of patches."""


def patchify(images: Tensor, patch: PatchGrid) -> Tensor:
    """[B, C, H, W] -> [B, P, C p p]: patches row by row, inside them channels, rows, columns."""
    parts = torch.unflatten(torch.unflatten(images, 3, (-1, patch[1])), 2, (-1, patch[0]))  # [B, C, rows, p, cols, p]
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, grid: PatchGrid, patch: PatchGrid) -> Tensor:
    """The inverse of `patchify`, for so many rows and columns of patches."""
    parts = torch.unflatten(torch.unflatten(patches, 2, (-1, *patch)), 1, grid)  # [B, rows, columns, C, p, p]
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def rows(table: Tensor, numbers: Tensor) -> Tensor:
    """Some rows of each image's table: [B, P, V] and [B, K] -> [B, K, V]."""
    B, P = table.shape[:2]
    first = torch.arange(0, B * P, P, device=table.device)[:, None]
    return torch.unflatten(table.flatten(0, 1).index_select(0, (numbers + first).flatten()), 0, (B, -1))


def check(student: Any) -> VisionTransformer:
    """The student as a ViT that can be shown some of its patches. Raises: UserError for any other network."""
    own = ("forward_features", "_pos_embed")
    if not isinstance(student, VisionTransformer) or any(
        getattr(type(student), name) is not getattr(VisionTransformer, name) for name in own
    ):
        raise UserError(f"masking needs a plain ViT, such as mae_tiny or vit_tiny, got a {type(student).__name__}")
    if type(student.patch_embed) is not PatchEmbed or student.dynamic_img_size or student.pos_embed is None:
        raise UserError("masking needs a ViT with one linear patch embedding, a position table and a fixed image size")
    if isinstance(student.patch_drop, nn.Module) and not isinstance(student.patch_drop, nn.Identity):
        raise UserError("masking takes patches away itself; leave patch_drop_rate out of the student's options")
    return student


def embed(student: VisionTransformer, images: Tensor, kept: Tensor | None = None) -> Tensor:
    """Tokens before the first block, prefix tokens first: [B, C, H, W] -> [B, prefix + K, D].

    Args:
        student: checked by `check`.
        images: normalized.
        kept: [B, K] numbers of the patches to look at; None takes all. Others are not computed.
    """
    patches = patchify(images, student.patch_embed.patch_size)
    prefix_table, table = position_tables(student)
    if kept is not None:
        patches, table = rows(patches, kept), nn.functional.embedding(kept, table[0])
    return begin(student, project(student, patches) + table, prefix_table)


def position_tables(student: VisionTransformer) -> tuple[Tensor, Tensor]:
    """Positions of the prefix tokens, [1, 0 or prefix, D], and of the patches, [1, P, D]."""
    table: Any = student.pos_embed
    own = 0 if student.no_embed_class else student.num_prefix_tokens
    return table[:, :own], table[:, own:]


def project(student: VisionTransformer, patches: Tensor) -> Tensor:
    """The patch embedding of patches as `patchify` gives them: [B, K, C p p] -> [B, K, D]."""
    conv = student.patch_embed.proj
    return student.patch_embed.norm(nn.functional.linear(patches, conv.weight.flatten(1), conv.bias))


def begin(student: VisionTransformer, x: Tensor, prefix_table: Tensor) -> Tensor:
    """Tokens before the first block, [B, prefix + K, D], from patches with positions and positions of the prefix."""
    tokens: list[Tensor] = [token for token in (student.cls_token, student.reg_token) if token is not None]
    if tokens:
        prefix = torch.cat(tokens, dim=1)
        prefix = prefix + prefix_table if prefix_table.shape[1] else prefix
        x = torch.cat([prefix.expand(len(x), -1, -1), x], dim=1)
    x = student.norm_pre(student.pos_drop(x))
    assert isinstance(x, Tensor)
    return x


def finish(student: VisionTransformer, x: Tensor) -> Tensor:
    """What follows the last block: its norm, wherever the student keeps it, [B, T, D]."""
    return student.fc_norm(student.norm(x))
