# SPDX-License-Identifier: Apache-2.0
"""DHVT: a ViT that convolves in its patch embedding and feed-forward layers and connects its heads through tokens.

Paper: Lu et al., "Bridging the Gap Between Vision Transformers and Convolutional Neural Networks on Small Datasets",
NeurIPS 2022, arXiv:2210.05958; its supplement is cited as [S]. Recipes: recipes/dhvt/.
Layers: layers.py. Students under timm names: students.py. Ablations: ablations.py.

Equal to the authors' code, whose checkpoints load. Deviations: maps need not be square, images may have any size, any
number of prefix tokens is treated like the class token.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers.drop import DropPath
from timm.models._features import feature_take_indices  # noqa: PLC2701  what timm's own networks use
from torch import Tensor, nn

from ...errors import UserError
from ..vit.patches import PatchGrid
from .layers import DAFF, HIMHSA, SOPE, Pointwise, split_prefix


@dataclass(frozen=True)
class Shape:
    """Sizes that [S, Table 11] varies from model to model."""

    patch_size: int = 4  # pixels on a side, a power of two
    embed_dim: int = 192  # width D of a token
    depth: int = 12  # number of blocks
    num_heads: int = 4  # heads of attention in each block
    mlp_ratio: int = 4  # hidden width of a feed-forward layer in multiples of D


@dataclass(frozen=True)
class Parts:
    """Layers of a model; the defaults are the paper's, ablations.py has others."""

    # (patch_size, D, channels) -> layer, [B, C, H, W] -> [B, H, W, D].
    patch_embed: Callable[[int, int, int], nn.Module] = SOPE
    # (D, heads, prefix tokens) -> layer, [B, T, D] -> [B, T, D].
    attention: Callable[[int, int, int], nn.Module] = HIMHSA
    feed_forward: Callable[[int, int], nn.Module] = DAFF  # (D, hidden) -> layer, ([B, T, D], grid) -> [B, T, D]
    # (D, grid at the training size, prefix tokens) -> layer, ([B, T, D], grid) -> [B, T, D]; none if None.
    positions: Callable[[int, PatchGrid, int], nn.Module] | None = None


class DHVTBlock(nn.Module):
    """One pre-norm layer: x = x + attention(LN(x)); x = x + feed_forward(LN(x)). Shape: [B, T, D] -> [B, T, D].

    Args:
        shape: widths and heads.
        parts: which attention and which feed-forward layer.
        prefix_tokens: number of the T tokens that are not patches.
        drop_path: probability that an image skips a branch while training.
    """

    def __init__(self, shape: Shape, parts: Parts, prefix_tokens: int = 1, drop_path: float = 0.0) -> None:
        super().__init__()
        dim = shape.embed_dim
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = parts.attention(dim, shape.num_heads, prefix_tokens)
        self.mlp = parts.feed_forward(dim, shape.mlp_ratio * dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x), grid))


class DHVT(nn.Module):
    """Dynamic Hybrid Vision Transformer: SOPE, blocks of HI-MHSA and DAFF, LayerNorm, linear head on the class token.

    Needs no position table, hence takes images of any size. Has the interface of timm's models. With `distilled`, a
    second prefix token has a second head: two logits while `set_distilled_training` is on and the model trains, else
    their mean, as in DeiT.

    Args:
        img_size: height and width in training, pixels; only a position table depends on it.
        num_classes: length of the logits; zero leaves the features.
        drop_path_rate: of the last block; it grows linearly from zero at the first.
        distilled: add a distillation token.
    """

    def __init__(
        self,
        shape: Shape = Shape(),
        parts: Parts = Parts(),
        img_size: int | PatchGrid = 32,
        in_chans: int = 3,
        num_classes: int = 1000,
        drop_path_rate: float = 0.0,
        distilled: bool = False,
    ) -> None:
        super().__init__()
        dim, height_width = shape.embed_dim, (img_size, img_size) if isinstance(img_size, int) else img_size
        self.num_features = self.head_hidden_size = self.embed_dim = dim
        self.num_prefix_tokens = 1 + distilled
        self.num_classes = num_classes
        self.distilled_training = False
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": dim, "reduction": shape.patch_size} for i in range(shape.depth)
        ]
        grid = tuple(math.ceil(pixels / shape.patch_size) for pixels in height_width)
        self.patch_embed = parts.patch_embed(shape.patch_size, dim, in_chans)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, dim)) if distilled else None
        self.positions = parts.positions(dim, (grid[0], grid[1]), self.num_prefix_tokens) if parts.positions else None
        rates = [drop_path_rate * i / max(1, shape.depth - 1) for i in range(shape.depth)]
        self.blocks = nn.ModuleList(DHVTBlock(shape, parts, self.num_prefix_tokens, rate) for rate in rates)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.reset_classifier(num_classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw linear layers and tokens from a truncated normal; convolutions, 1x1 included, keep PyTorch's weights."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and not isinstance(module, Pointwise):
                init_linear(module)
        for token in (self.cls_token, self.dist_token):
            if token is not None:
                nn.init.trunc_normal_(token, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return {"cls_token", "dist_token", "positions.table"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        blocks = r"^blocks\.(\d+)" if coarse else [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": r"^cls_token|dist_token|positions|patch_embed", "blocks": blocks}

    def set_distilled_training(self, enable: bool = True) -> None:
        self.distilled_training = enable

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        return self.head if self.dist_token is None else (self.head, self.head_dist)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool not in (None, "token"):
            raise UserError(f"DHVT reads its class token; global_pool must be 'token', got {global_pool!r}")
        self.num_classes = num_classes
        self.head = self._classifier()
        if self.dist_token is not None:
            self.head_dist = self._classifier()

    def _classifier(self) -> nn.Module:
        like = self.cls_token
        if not self.num_classes:
            return nn.Identity()
        return init_linear(nn.Linear(self.embed_dim, self.num_classes, device=like.device, dtype=like.dtype))

    def embed(self, images: Tensor) -> tuple[Tensor, PatchGrid]:
        """Return the tokens before the first block, [B, T, D], prefix tokens first, and the grid of their patches."""
        maps = self.patch_embed(images)  # [B, H, W, D]
        grid = (maps.shape[1], maps.shape[2])
        tokens = [t.expand(maps.shape[0], -1, -1) for t in (self.cls_token, self.dist_token) if t is not None]
        x = torch.cat([*tokens, maps.flatten(1, 2)], dim=1)
        return x if self.positions is None else self.positions(x, grid), grid

    def forward_features(self, images: Tensor) -> Tensor:
        x, grid = self.embed(images)
        for block in self.blocks:
            x = block(x, grid)
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return outputs of chosen blocks as timm's ViTs do: [B, D, H, W], or [B, N, D] where output_fmt is NLC."""
        take, last = feature_take_indices(len(self.blocks), indices)
        x, grid = self.embed(x)
        taken = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = block(x, grid)
            if i in take:
                prefix, patches = split_prefix(self.norm(x) if norm else x, grid)
                patches = torch.unflatten(patches.mT, -1, grid).contiguous() if output_fmt == "NCHW" else patches
                taken.append((patches, prefix) if return_prefix_tokens else patches)
        return taken if intermediates_only else (self.norm(x), taken)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        if self.dist_token is None:
            return x[:, 0] if pre_logits else self.head(x[:, 0])
        if pre_logits:
            return (x[:, 0] + x[:, 1]) / 2
        logits, distilled = self.head(x[:, 0]), self.head_dist(x[:, 1])
        return (logits, distilled) if self.distilled_training and self.training else (logits + distilled) / 2

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return self.forward_head(self.forward_features(images))


def init_linear(layer: nn.Linear) -> nn.Linear:
    """Initialize a linear layer as a ViT's: truncated normal weights, biases 0."""
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def checkpoint_filter_fn(state: dict[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Return a checkpoint's weights, the authors' or ours: names agree, kernels of 1x1 convolutions become matrices."""
    weights: dict[str, Tensor] = state.get("model", state)
    ours = model.state_dict()
    return {
        name: weight.flatten(1) if weight.ndim == 4 and name in ours and ours[name].ndim == 2 else weight
        for name, weight in weights.items()
    }
