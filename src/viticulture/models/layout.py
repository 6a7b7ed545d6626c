# SPDX-License-Identifier: Apache-2.0
"""Where blocks, attention and patches are in a student; the only file that depends on timm's module names.

Students need timm's interface: a `feature_info` that names their blocks, `num_prefix_tokens`, and in each block an
attention module with `qkv`, `num_heads` and `scale`. An attention layer of ours whose scores are scale * q k^T and
nothing more declares it by an attribute `plain_scores = True`.

In a PiT, every stage has a different grid. In a ConViT, only the last two layers are listed: those before the class
token is added mix gated positions into their attention.
"""

import math
from dataclasses import dataclass

import torch
from timm.layers.bottleneck_attn import BottleneckAttn
from timm.models.pit import PoolingVisionTransformer
from torch import Tensor, nn

from ..errors import UserError
from .vit.attention import is_plain
from .vit.patches import PatchGrid


@dataclass(frozen=True)
class Layout:
    """Structure of a student."""

    blocks: tuple[str, ...]  # module names of its blocks, or of a CNN's stages, first to last
    attention: tuple[str, ...]  # module names of its attention layers, first to last; empty in a CNN
    heads: tuple[int, ...]  # heads of each attention layer
    prefix: int  # number of tokens before the patches: class, distillation and register tokens
    patch: int  # pixels between neighboring tokens of the first block
    overlap: int  # pixels that neighboring patches share
    # For each attention layer, the distance of its neighboring tokens, in tokens of the first block.
    pooling: tuple[int, ...]
    class_token: bool  # whether the first token is a class token
    channels_last: bool = False  # maps of blocks are [B, H, W, D], as of a Swin

    def grid(self, image_size: tuple[int, int]) -> PatchGrid:
        """Return rows and columns of patch tokens in the first block, for an image's height and width in pixels."""
        if self.overlap:
            return (image_size[0] - self.overlap) // self.patch, (image_size[1] - self.overlap) // self.patch
        return math.ceil(image_size[0] / self.patch), math.ceil(image_size[1] / self.patch)

    def as_map(self, block: Tensor, image_size: tuple[int, int]) -> Tensor:
        """Return the patches of a block's output as a map, [B, D, rows, columns]: of maps themselves, of tokens those
        after the prefix. For an image's height and width in pixels."""
        if block.ndim == 4:
            return block.movedim(-1, 1) if self.channels_last else block
        grid = self.grid(image_size)
        return torch.unflatten(block[:, self.prefix : self.prefix + math.prod(grid)].mT, -1, grid)

    def grids(self, image_size: tuple[int, int]) -> list[PatchGrid]:
        """Return rows and columns of patch tokens in every attention layer."""
        rows, columns = self.grid(image_size)
        return [(math.ceil(rows / pooled), math.ceil(columns / pooled)) for pooled in self.pooling]


def layout(student: nn.Module) -> Layout:
    """Return the structure of a student with timm's interface.

    Raises: UserError for a network without `feature_info`.
    """
    info = getattr(student, "feature_info", None)
    stages = getattr(info, "info", info)  # a list, or timm's object around it
    if not stages:
        raise UserError(
            f"{type(student).__name__} does not name its blocks (timm's feature_info), so nothing can be read"
        )
    reductions = {stage["module"]: _pixels(stage["reduction"]) for stage in stages}
    in_blocks = tuple(f"{block}." for block in reductions)
    attention = {n: module for n, module in student.named_modules() if n.startswith(in_blocks) and _is_read(module)}
    patch = next(iter(reductions.values()))
    prefix, overlap = getattr(student, "num_prefix_tokens", 0), 0
    if isinstance(student, PoolingVisionTransformer):
        prefix, overlap = student.num_tokens, student.patch_embed.patch_size[0] - patch
    return Layout(
        blocks=tuple(reductions),
        attention=tuple(attention),
        heads=tuple(module.num_heads for module in attention.values()),
        prefix=prefix,
        patch=patch,
        overlap=overlap,
        pooling=tuple(_around(name, reductions) // patch for name in attention),
        class_token=isinstance(getattr(student, "cls_token", None), Tensor),
        channels_last=getattr(student, "output_fmt", None) == "NHWC",
    )


def _is_read(layer: nn.Module) -> bool:
    """Return whether a layer's attention follows from its queries and keys."""
    return is_plain(layer) or type(layer) is BottleneckAttn


def _around(layer: str, reductions: dict[str, int]) -> int:
    """Return the pixels between tokens in a layer's block."""
    return next(pixels for block, pixels in reductions.items() if layer.startswith(f"{block}."))


def _pixels(reduction: int | tuple[int, int]) -> int:
    if isinstance(reduction, int):
        return reduction
    if reduction[0] != reduction[1]:
        raise UserError(f"taps need square patches, got {reduction[0]}x{reduction[1]} pixels")
    return reduction[0]
