# SPDX-License-Identifier: Apache-2.0
"""Attention within windows of a plain ViT's map, which keeps large images affordable, and relative positions.

    windows     tokens attend to those of their window of w x w places; the map's edge is padded with zeros
    global      some blocks attend to all tokens, which connects the windows
    relative    scores + q . R_h[down] + q . R_w[across], trained from zero

The layer is timm's of its ViT-SAM, with the weights of the layer that it replaces.

Paper: ViTDet (pyramid.py), Sec. 3; relative positions as in MViTv2, arXiv:2112.01526.
"""

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers.attention import Attention
from timm.models import VisionTransformer
from timm.models.vision_transformer_sam import Attention as MapAttention
from timm.models.vision_transformer_sam import window_partition, window_unpartition
from torch import Tensor, nn

from ...errors import UserError
from ..vit.attention import is_plain
from ..vit.patches import PatchGrid


class WindowAttention(MapAttention):
    """Attention over the places of a map, or of each of its windows. Shape: [B, P, D] -> [B, P, D].

    Args:
        layer: its parameters are used, not copied.
        grid: rows and columns of the P tokens.
        window: side of a window, tokens; 0 attends to all tokens.
        relative: train relative positions.
    """

    def __init__(self, layer: Attention, grid: PatchGrid, window: int, relative: bool) -> None:
        side = (window, window) if window else grid
        super().__init__(layer.qkv.in_features, layer.num_heads, use_rel_pos=relative, input_size=side)
        self.qkv, self.proj, self.q_norm, self.k_norm = layer.qkv, layer.proj, layer.q_norm, layer.k_norm
        self.attn_drop, self.proj_drop = layer.attn_drop, layer.proj_drop
        self.grid, self.window = grid, window

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        places = torch.unflatten(x, 1, self.grid)  # [B, rows, columns, D]
        if not self.window:
            return self._attend(places).flatten(1, 2)
        windows, padded = window_partition(places, self.window)
        return window_unpartition(self._attend(windows), self.window, self.grid, padded).flatten(1, 2)

    def _attend(self, places: Tensor) -> Tensor:
        return super().forward(places)  # type: ignore[no-untyped-call]


def open_windows(student: nn.Module, window: int, global_blocks: Sequence[int], relative: bool) -> None:
    """Give a plain ViT windowed attention, in place.

    Args:
        window: side of a window, tokens; 0 leaves all blocks global.
        global_blocks: numbers of the blocks that stay global.

    Raises: UserError for a student that has no such layers, or prefix tokens.
    """
    if not window and not relative:
        return
    vit: Any = student
    if type(student) is not VisionTransformer or not all(
        isinstance(block.attn, Attention) and is_plain(block.attn) for block in vit.blocks
    ):
        raise UserError(
            "method.window and method.relative_positions need a plain ViT, such as mae_tiny, "
            f"got a {type(student).__name__}"
        )
    if vit.num_prefix_tokens:
        raise UserError(
            "method.window and method.relative_positions need a ViT without class token; "
            "take student.options {class_token: false, global_pool: avg}"
        )
    if wrong := [number for number in global_blocks if not 0 <= number < len(vit.blocks)]:
        raise UserError(
            f"method.global_blocks must name blocks of the student, 0 to {len(vit.blocks) - 1}, got {wrong[0]}"
        )
    if window < 0 or window > max(vit.patch_embed.grid_size):
        rows, columns = vit.patch_embed.grid_size
        raise UserError(f"method.window must lie between 0 and the {rows}x{columns} tokens of an image, got {window}")
    for number, block in enumerate(vit.blocks):
        side = 0 if number in global_blocks else window
        block.attn = WindowAttention(block.attn, vit.patch_embed.grid_size, side, relative)
