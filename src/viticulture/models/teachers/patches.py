# SPDX-License-Identifier: Apache-2.0
"""A frozen ViT on the student's patches, run up to the last layer that is read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models import VisionTransformer
from torch import Tensor, nn

from ...errors import UserError
from ..data_spec import DataSpec
from ..vit.attention import is_plain
from ..vit.patches import PatchGrid, check, embed, finish
from ..weights.sources import open_network
from .frozen import Adapted, Frozen, check_channels


@dataclass(frozen=True)
class PatchReadings:
    """Attention scores and output of a teacher in one forward pass."""

    # Q k^T / sqrt(d) before the softmax, [B, h, T, T], prefix tokens first; one entry per requested layer, repeated
    # where a layer is.
    scores: list[Tensor]
    output: Tensor | None  # after its last norm, [B, T, D]; None where it was not requested


class PartialViT(nn.Module):
    """Runs a ViT's blocks up to the last required layer; of that one no more than its queries and keys.

    Shape: images [B, 3, H, W] and numbers [B, K] of the patches to embed (None: all) -> `PatchReadings`.

    Args:
        vit: checked by `vit.patches.check`; blocks that are not needed are cut off.
        layers: numbers of layers from 0, never falling.
        to_the_end: whether to return its output too.
    """

    def __init__(self, vit: VisionTransformer, layers: Sequence[int], to_the_end: bool) -> None:
        super().__init__()
        self.vit, self.layers, self.to_the_end = vit, tuple(layers), to_the_end
        if not to_the_end:
            vit.blocks = vit.blocks[: layers[-1] + 1]

    def forward(self, images: Tensor, kept: Tensor | None = None) -> PatchReadings:
        by_layer = {}
        x = embed(self.vit, images, kept)
        for number, block in enumerate(self.vit.blocks):
            if number in self.layers:
                by_layer[number] = scores(block, x)
            if number < self.layers[-1] or self.to_the_end:
                x = block(x)
        return PatchReadings(
            [by_layer[number] for number in self.layers], finish(self.vit, x) if self.to_the_end else None
        )


def scores(block: nn.Module, x: Tensor) -> Tensor:
    """Compute a timm block's attention before its softmax, [B, h, T, T], from the block's input."""
    attention = block.attn
    assert isinstance(attention, Attention)
    assert isinstance(block.norm1, nn.Module)
    D, bias = attention.attn_dim, attention.qkv.bias
    qk = F.linear(block.norm1(x), attention.qkv.weight[: 2 * D], None if bias is None else bias[: 2 * D])
    q, k = qk.reshape(*qk.shape[:2], 2, attention.num_heads, -1).permute(2, 0, 3, 1, 4)  # 2 x [B, h, T, d]
    return (attention.scale * attention.q_norm(q)) @ attention.k_norm(k).mT


def load_patch_teacher(source: str, data_spec: DataSpec, grid: PatchGrid) -> tuple[VisionTransformer, DataSpec]:
    """Load a trained ViT for the student's number of patches, with its `DataSpec`.

    Args:
        source: as for `teachers.load_teacher`; classes do not matter.
        grid: rows and columns of the student's patches. A teacher trained with others is fed the image in a size with
            these, and its positions are resampled.

    Raises: UserError if it is no plain ViT.
    """
    net, spec, _ = open_network(source)
    check_channels(source, spec, data_spec)
    try:
        vit = check(net)
    except UserError as error:
        raise UserError(f"the teacher {source} cannot be run on single patches: {error}") from error
    if not all(is_plain(getattr(block, "attn", None)) for block in vit.blocks):
        raise UserError(f"the teacher {source} has an attention layer that cannot be read")
    if vit.patch_embed.grid_size != grid:
        height, width = vit.patch_embed.patch_size
        size = (grid[0] * height, grid[1] * width)
        vit.set_input_size(img_size=size)
        spec = replace(spec, image_size=size)
    return vit, spec


def freeze(
    vit: VisionTransformer, spec: DataSpec, data_spec: DataSpec, layers: Sequence[int], to_the_end: bool = False
) -> Frozen:
    """Freeze the teacher: `teacher(images, kept)` returns `PatchReadings` of the student's images."""
    return Frozen(Adapted(PartialViT(vit, layers, to_the_end), data_spec, spec))
