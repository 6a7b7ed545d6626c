# SPDX-License-Identifier: Apache-2.0
"""DHVT: a ViT that convolves in its patch embedding and feed-forward layers and lets its heads talk through tokens.

Paper: Lu et al., "Bridging the Gap Between Vision Transformers and Convolutional Neural Networks on Small Datasets",
NeurIPS 2022, arXiv:2210.05958; its supplement is cited as [S]. Recipes: recipes/dhvt/.
Names that timm knows: dhvt_models.py. Ablations: dhvt_ablations.py.

Equal to the authors' code, whose checkpoints load. Deviations: maps need not be square, images may have any size, any
number of prefix tokens is treated like the class token, and 1x1 convolutions are linear layers on tokens, which keeps
one memory layout (channels last) from the image to the logits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.drop import DropPath
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ...errors import UserError
from ..recompute import recompute
from ..vit.patches import PatchGrid


def on_map(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer for [B, D, H, W] to [B, H, W, D]: the same memory under another name, nothing is copied."""
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Affine(nn.Module):
    """alpha * x + beta, one pair for each channel. Shape: [B, D, H, W]. Source: [S, Sec. 1.2]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, dim, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, dim, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.alpha + self.beta


class SOPE(nn.Module):
    """Sequential overlapping patch embedding: halve the image with 3x3 convolutions until a pixel is a patch.

        affine -> [conv 3x3, stride 2 -> norm] with GELU in between -> affine           [S, Sec. 1.2]

    Every step doubles the width, up to D. Patch size 2 has one step only, and ends with the GELU.
    Shape: [B, 3, H, W] -> [B, H / P, W / P, D] for patch size P, rounded up.
    Deviation from the listing, as in the authors' code: convolutions have no bias.

    Args:
        patch_size: a power of two, pixels.
        embed_dim: D, a multiple of P / 2.
        in_chans: channels of the image.
        norm: a layer for [B, D, H, W], made from D.
    """

    def __init__(
        self, patch_size: int, embed_dim: int, in_chans: int = 3, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
    ) -> None:
        super().__init__()
        steps = patch_size.bit_length() - 1
        if patch_size < 2 or patch_size != 2**steps:
            raise UserError(
                f"patch_size must be a power of two of at least 2, got {patch_size}; take 2, 4, 8, 16 or 32"
            )
        if embed_dim % (patch_size // 2):
            raise UserError(f"embed_dim must be a multiple of patch_size / 2, got {embed_dim} and {patch_size}")
        widths = [in_chans] + [embed_dim >> halvings for halvings in reversed(range(steps))]
        layers: list[nn.Module] = []
        for width, wider in pairwise(widths):
            conv = nn.Conv2d(width, wider, kernel_size=3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, norm(wider)), nn.GELU()]
        self.pre_affine: nn.Module = Affine(in_chans)
        self.post_affine: nn.Module = Affine(embed_dim)
        self.proj = nn.Sequential(*(layers if steps == 1 else layers[:-1]))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.pre_affine(images.contiguous(memory_format=torch.channels_last))
        return self.post_affine(self.proj(maps)).permute(0, 2, 3, 1)


class HIMHSA(nn.Module):
    """Head-interacted self-attention: every head sends a token that sums up what it sees of the image.

        g_i = mean over tokens of head i's share of x                   [B, D / h]
        t_i = GELU(LN(W g_i)) + pos_i                                   [B, D], h head tokens
        y, u = proj(MHSA([x, t]))                                       tokens and head tokens
        y_class += mean over heads of u                                 [S, Sec. 1.3]

    LN runs over each of the h shares of W g_i. Head tokens live inside one layer.
    Shape: [B, T, D] -> [B, T, D], prefix tokens first.

    Args:
        dim: D, a multiple of num_heads.
        num_heads: h.
        prefix_tokens: how many tokens receive the mean of the head tokens (1: the class token).
    """

    plain_scores = True  # see attention.py

    def __init__(self, dim: int, num_heads: int, prefix_tokens: int = 1) -> None:
        super().__init__()
        if dim % num_heads:
            raise UserError(f"embed_dim must be a multiple of num_heads, got {dim} and {num_heads}")
        self.num_heads, self.prefix_tokens = num_heads, prefix_tokens
        self.scale = (dim // num_heads) ** -0.5
        self.ht_proj = nn.Linear(dim // num_heads, dim)
        self.ht_norm = nn.LayerNorm(dim // num_heads)
        self.pos_embed = nn.Parameter(torch.zeros(1, num_heads, dim))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def head_tokens(self, x: Tensor) -> Tensor:
        """One token a head: [B, T, D] -> [B, h, D]."""
        shares = self.ht_proj(torch.unflatten(x.mean(1), -1, (self.num_heads, -1)))  # [B, h, D]
        shares = self.ht_norm(shares.unflatten(-1, (self.num_heads, -1)))  # [B, h, h, D / h]
        return F.gelu(shares).flatten(2) + self.pos_embed

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each [B, h, T + h, D / h], head tokens last; for [B, T, D], already normalized."""
        qkv = self.qkv(torch.cat([x, self.head_tokens(x)], dim=1))  # [B, T + h, 3 D]
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.queries_keys_values(x)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out = self.proj(mixed.transpose(1, 2).flatten(2))  # [B, T + h, D]
        patches = x.shape[1] - self.prefix_tokens
        prefix, rest, heads = out.split([self.prefix_tokens, patches, self.num_heads], dim=1)
        return torch.cat([prefix + heads.mean(1, keepdim=True), rest], dim=1)


class Pointwise(nn.Linear):
    """A 1x1 convolution on channels-last maps. It starts as convolutions do, not like a ViT's linear layers."""


class DAFF(nn.Module):
    """Dynamic aggregation feed-forward: patches see their neighbors, the class token is weighed by their mean.

        y = GELU(norm(conv1x1(patches)))                                [B, H, W, 4 D]
        y = y + GELU(norm(depth-wise conv3x3(y)))
        y = norm(conv1x1(y))                                            [B, H, W, D]
        class = class * (W2 GELU(W1 mean(y)))                           [S, Sec. 1.1], no sigmoid

    Shape: [B, T, D] -> [B, T, D], prefix tokens first; the last H * W tokens are the map.

    Args:
        dim: D.
        hidden: width of y before the last convolution.
        norm: a layer for [B, D, H, W], made from D.
        reduction: W1 maps D to D / reduction.
    """

    def __init__(
        self, dim: int, hidden: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d, reduction: int = 4
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = Pointwise(dim, hidden), norm(hidden)
        self.conv2, self.bn2 = nn.Conv2d(hidden, hidden, kernel_size=3, padding=1, groups=hidden), norm(hidden)
        self.conv3, self.bn3 = Pointwise(hidden, dim), norm(dim)
        self.compress, self.excitation = nn.Linear(dim, dim // reduction), nn.Linear(dim // reduction, dim)

    def convolve(self, y: Tensor) -> Tensor:
        """Patch tokens on their map: [B, H, W, D] -> [B, H, W, D]."""
        y = F.gelu(on_map(self.bn1, self.conv1(y)))
        y = F.gelu(on_map(self.bn2, on_map(self.conv2, y))).add_(y)  # in place: nothing else holds the GELU's output
        return on_map(self.bn3, self.conv3(y))

    def weigh(self, y: Tensor) -> Tensor:
        """A factor for each channel, of any sign: [B, N, D] -> [B, 1, D]."""
        return self.excitation(F.gelu(self.compress(y.mean(1, keepdim=True))))

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        prefix, patches = split_prefix(x, grid)
        patches = self.convolve(torch.unflatten(patches, 1, grid)).flatten(1, 2)
        return torch.cat([prefix * self.weigh(patches), patches], dim=1)


def split_prefix(x: Tensor, grid: PatchGrid) -> tuple[Tensor, Tensor]:
    """Prefix tokens and patch tokens of [B, T, D]; the last H * W tokens are patches."""
    patches = grid[0] * grid[1]
    prefix, rest = torch.split(x, [x.shape[1] - patches, patches], dim=1)
    return prefix, rest


@dataclass(frozen=True)
class Shape:
    """What [S, Table 11] varies from model to model.

    Args:
        patch_size: pixels on a side, a power of two.
        embed_dim: width D of a token.
        depth: how many blocks.
        num_heads: heads of attention in each block.
        mlp_ratio: hidden width of a feed-forward layer in multiples of D.
    """

    patch_size: int = 4
    embed_dim: int = 192
    depth: int = 12
    num_heads: int = 4
    mlp_ratio: int = 4


@dataclass(frozen=True)
class Parts:
    """How the pieces of a model are made; the defaults are the paper's, dhvt_ablations.py has others.

    Args:
        patch_embed: (patch_size, D, channels) -> layer, [B, C, H, W] -> [B, H, W, D].
        attention: (D, heads, prefix tokens) -> layer, [B, T, D] -> [B, T, D].
        feed_forward: (D, hidden) -> layer, ([B, T, D], grid) -> [B, T, D].
        positions: (D, grid at the training size, prefix tokens) -> layer, ([B, T, D], grid) -> [B, T, D]; none if None.
    """

    patch_embed: Callable[[int, int, int], nn.Module] = SOPE
    attention: Callable[[int, int, int], nn.Module] = HIMHSA
    feed_forward: Callable[[int, int], nn.Module] = DAFF
    positions: Callable[[int, PatchGrid, int], nn.Module] | None = None


class Block(nn.Module):
    """One pre-norm layer: x = x + attention(LN(x)); x = x + feed_forward(LN(x)). Shape: [B, T, D] -> [B, T, D].

    Args:
        shape: widths and heads.
        parts: which attention and which feed-forward layer.
        prefix_tokens: how many of the T tokens are not patches.
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

    Needs no position table, hence takes images of any size. Follows the habits of timm's models. With `distilled`, a
    second prefix token has a head of its own: two logits while `set_distilled_training` is on and the model trains,
    else their mean, as in DeiT.

    Args:
        shape: sizes.
        parts: what the pieces are made of.
        img_size: height and width in training, pixels; only a position table depends on it.
        in_chans: channels of the image.
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
        self.grad_checkpointing = self.distilled_training = False
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": dim, "reduction": shape.patch_size} for i in range(shape.depth)
        ]
        grid = tuple(math.ceil(pixels / shape.patch_size) for pixels in height_width)
        self.patch_embed = parts.patch_embed(shape.patch_size, dim, in_chans)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, dim)) if distilled else None
        self.positions = parts.positions(dim, (grid[0], grid[1]), self.num_prefix_tokens) if parts.positions else None
        rates = [drop_path_rate * i / max(1, shape.depth - 1) for i in range(shape.depth)]
        self.blocks = nn.ModuleList(Block(shape, parts, self.num_prefix_tokens, rate) for rate in rates)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.reset_classifier(num_classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Linear layers and tokens from a truncated normal; convolutions, 1x1 ones too, keep PyTorch's start."""
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

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

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
        """Tokens that enter the first block, [B, T, D], prefix tokens first, and the grid of their patches."""
        maps = self.patch_embed(images)  # [B, H, W, D]
        grid = (maps.shape[1], maps.shape[2])
        tokens = [t.expand(maps.shape[0], -1, -1) for t in (self.cls_token, self.dist_token) if t is not None]
        x = torch.cat([*tokens, maps.flatten(1, 2)], dim=1)
        return x if self.positions is None else self.positions(x, grid), grid

    def run_block(self, block: nn.Module, x: Tensor, grid: PatchGrid) -> Tensor:
        return recompute(block, x, grid) if self.grad_checkpointing and self.training else block(x, grid)

    def forward_features(self, images: Tensor) -> Tensor:
        x, grid = self.embed(images)
        for block in self.blocks:
            x = self.run_block(block, x, grid)
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
        """Outputs of chosen blocks, as timm's ViTs give them: [B, D, H, W], or [B, N, D] where output_fmt is NLC."""
        take, last = feature_take_indices(len(self.blocks), indices)
        x, grid = self.embed(x)
        taken = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = self.run_block(block, x, grid)
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
    """Truncated normal weights, no bias: how a ViT's linear layers start."""
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
