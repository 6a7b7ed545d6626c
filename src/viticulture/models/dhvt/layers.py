# SPDX-License-Identifier: Apache-2.0
"""The layers of DHVT, in the order in which the paper introduces them: SOPE, HI-MHSA, DAFF.

Paper: Lu et al., "Bridging the Gap Between Vision Transformers and Convolutional Neural Networks on Small Datasets",
NeurIPS 2022, arXiv:2210.05958; its supplement is cited as [S]. The network is in dhvt.py.

1x1 convolutions are linear layers on tokens, which keeps one memory layout (channels last) from image to logits.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ..cpu.attention import attend
from ..vit.patches import PatchGrid, halving_widths


def on_map(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer for [B, D, H, W] to [B, H, W, D]; nothing is copied."""
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
        norm: builds a layer for [B, D, H, W] from D.
    """

    def __init__(
        self, patch_size: int, embed_dim: int, in_chans: int = 3, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
    ) -> None:
        super().__init__()
        widths = halving_widths(in_chans, embed_dim, patch_size)
        layers: list[nn.Module] = []
        for width, wider in pairwise(widths):
            conv = nn.Conv2d(width, wider, kernel_size=3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, norm(wider)), nn.GELU()]
        self.pre_affine: nn.Module = Affine(in_chans)
        self.post_affine: nn.Module = Affine(embed_dim)
        self.proj = nn.Sequential(*(layers if patch_size == 2 else layers[:-1]))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.pre_affine(images.contiguous(memory_format=torch.channels_last))
        return self.post_affine(self.proj(maps)).permute(0, 2, 3, 1)


class HIMHSA(nn.Module):
    """Head-interacted self-attention: every head adds a token that summarizes its share of the image.

        g_i = mean over tokens of head i's share of x                   [B, D / h]
        t_i = GELU(LN(W g_i)) + pos_i                                   [B, D], h head tokens
        y, u = proj(MHSA([x, t]))                                       tokens and head tokens
        y_class += mean over heads of u                                 [S, Sec. 1.3]

    LN runs over each of the h shares of W g_i. Head tokens exist inside one layer.
    Shape: [B, T, D] -> [B, T, D], prefix tokens first.

    Args:
        dim: D, a multiple of num_heads.
        num_heads: h.
        prefix_tokens: number of tokens that receive the mean of the head tokens (1: the class token).
    """

    plain_scores = True  # see vit/attention.py

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
        """Project [B, T, D], normalized, to [B, h, T + h, D / h] each, head tokens last."""
        qkv = self.qkv(torch.cat([x, self.head_tokens(x)], dim=1))  # [B, T + h, 3 D]
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.queries_keys_values(x)
        mixed = attend(q, k, v)
        out = self.proj(mixed.transpose(1, 2).flatten(2))  # [B, T + h, D]
        patches = x.shape[1] - self.prefix_tokens
        prefix, rest, heads = out.split([self.prefix_tokens, patches, self.num_heads], dim=1)
        return torch.cat([prefix + heads.mean(1, keepdim=True), rest], dim=1)


class Pointwise(nn.Linear):
    """A 1x1 convolution on channels-last maps, initialized as convolutions are, unlike a ViT's linear layers."""


class DAFF(nn.Module):
    """Dynamic aggregation feed-forward: patches mix with their neighbors, their mean weights the class token.

        y = GELU(norm(conv1x1(patches)))                                [B, H, W, 4 D]
        y = y + GELU(norm(depth-wise conv3x3(y)))
        y = norm(conv1x1(y))                                            [B, H, W, D]
        class = class * (W2 GELU(W1 mean(y)))                           [S, Sec. 1.1], no sigmoid

    Shape: [B, T, D] -> [B, T, D], prefix tokens first; the last H * W tokens are the map.

    Args:
        dim: D.
        hidden: width of y before the last convolution.
        norm: builds a layer for [B, D, H, W] from D.
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
        y = F.gelu(on_map(self.bn2, on_map(self.conv2, y))).add_(y)  # in place: nothing else needs the GELU's output
        return on_map(self.bn3, self.conv3(y))

    def weigh(self, y: Tensor) -> Tensor:
        """Compute a factor for each channel, of any sign: [B, N, D] -> [B, 1, D]."""
        return self.excitation(F.gelu(self.compress(y.mean(1, keepdim=True))))

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        prefix, patches = split_prefix(x, grid)
        patches = self.convolve(torch.unflatten(patches, 1, grid)).flatten(1, 2)
        return torch.cat([prefix * self.weigh(patches), patches], dim=1)


def split_prefix(x: Tensor, grid: PatchGrid) -> tuple[Tensor, Tensor]:
    """Split [B, T, D] into prefix tokens and patch tokens, the last H * W."""
    patches = grid[0] * grid[1]
    prefix, rest = torch.split(x, [x.shape[1] - patches, patches], dim=1)
    return prefix, rest
