# SPDX-License-Identifier: Apache-2.0
"""Replacements of DHVT's layers in its ablations, each a separate layer, so that layers.py holds one algorithm.

Paper: Lu et al., NeurIPS 2022, arXiv:2210.05958, supplement [S]. Any model of students.py takes these keywords:

    row of [S]                              keywords
    Table 2, ViT                            patch_embed=linear, attention=mhsa, feed_forward=ffn, positions=true
      + split CLS                             as above, feed_forward=ffn_split
      + split CLS + agg on CLS                as above, feed_forward=ffn_split_aggregate
      + split CLS + AvgPool                   as above, feed_forward=ffn_split_pool
    Table 3, agg on all tokens              feed_forward=daff_all_tokens
      without shortcut                        feed_forward=daff_no_shortcut
    Section 2.2.2, without affine           patch_embed=sope_no_affine
    Table 4, heads                          num_heads=3 (any number that divides the width)
    Table 5, LN in SOPE, in DAFF            patch_embed=sope_layernorm, feed_forward=daff_layernorm
    the authors' runs on several GPUs       patch_embed=sope_syncbatchnorm; DAFF's statistics stay per device
    Figures 1 and 2, each piece on and off  ViT as above with patch_embed=sope, feed_forward=daff, attention=hi_mhsa,
                                            positions=true or false

The authors released none of these; where [S] leaves a choice, the docstring states ours. `PARTS` lists them all.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers.norm import LayerNorm2d
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from ..cpu.attention import attend
from ..vit.patches import PatchGrid, fitting_grid
from .layers import DAFF, HIMHSA, SOPE, on_map, split_prefix


class LinearEmbed(nn.Module):
    """ViT's patch embedding: one linear map of every patch. Shape: [B, C, H, W] -> [B, H / P, W / P, D].

    Raises: UserError for images that patches do not tile; the rest would be cut off.
    """

    def __init__(self, patch_size: int, embed_dim: int, in_chans: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        fitting_grid((images.shape[2], images.shape[3]), self.patch_size)
        return self.proj(images).permute(0, 2, 3, 1)


class Positions(nn.Module):
    """ViT's absolute positions: a trained vector for each token, resampled (bicubic) where the grid differs.

    Shape: [B, T, D] -> [B, T, D], prefix tokens first.

    Args:
        dim: D.
        grid: height and width of the map in training, tokens.
        prefix_tokens: tokens before the patches; they have vectors too, which are never resampled.
    """

    def __init__(self, dim: int, grid: PatchGrid, prefix_tokens: int = 1) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = grid, prefix_tokens
        self.table = nn.Parameter(torch.zeros(1, prefix_tokens + grid[0] * grid[1], dim))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        if grid == self.grid:
            return x + self.table
        return x + resample_abs_pos_embed(self.table, list(grid), list(self.grid), self.prefix_tokens)


class MHSA(nn.Module):
    """ViT's self-attention, without head tokens. Shape: [B, T, D] -> [B, T, D]."""

    plain_scores = True  # as in HIMHSA

    def __init__(self, dim: int, num_heads: int, prefix_tokens: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.proj(attend(q, k, v).transpose(1, 2).flatten(2))


class FFN(nn.Module):
    """ViT's feed-forward layer on every token: fc2(GELU(fc1(x))). Shape: [B, T, D] -> [B, T, D]."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class SplitFFN(nn.Module):
    """ViT's feed-forward layer on patches; the class token is not changed. [S, Table 2]: split CLS."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.ffn = FFN(dim, hidden)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        prefix, patches = split_prefix(x, grid)
        return torch.cat([prefix, self.ffn(patches, grid)], dim=1)


class SplitFFNAggregate(nn.Module):
    """Split, and the class token is weighted by the patches' mean as in DAFF. [S, Table 2]: split CLS + agg on CLS."""

    def __init__(self, dim: int, hidden: int, reduction: int = 4) -> None:
        super().__init__()
        self.ffn = FFN(dim, hidden)
        self.compress, self.excitation = nn.Linear(dim, dim // reduction), nn.Linear(dim // reduction, dim)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        prefix, patches = split_prefix(x, grid)
        patches = self.ffn(patches, grid)
        weight = self.excitation(F.gelu(self.compress(patches.mean(1, keepdim=True))))
        return torch.cat([prefix * weight, patches], dim=1)


class SplitFFNPool(nn.Module):
    """Split, and patches are added the mean of their 3x3 neighbors. [S, Table 2]: split CLS + AvgPool.

    Our reading: the mean replaces DAFF's convolution, with the same shortcut, and counts the zeros that pad the map,
    as a depth-wise convolution of ninths would.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.pool = nn.AvgPool2d(kernel_size=3, stride=1, padding=1)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        prefix, patches = split_prefix(x, grid)
        y = torch.unflatten(F.gelu(self.fc1(patches)), 1, grid)  # [B, H, W, hidden]
        y = y + on_map(self.pool, y)
        return torch.cat([prefix, self.fc2(y).flatten(1, 2)], dim=1)


class DAFFAllTokens(nn.Module):
    """DAFF whose weights scale patches as well as the class token. [S, Table 3]: agg on all token."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.daff = DAFF(dim, hidden)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        prefix, patches = split_prefix(x, grid)
        patches = self.daff.convolve(torch.unflatten(patches, 1, grid)).flatten(1, 2)
        return torch.cat([prefix, patches], dim=1) * self.daff.weigh(patches)


class DAFFNoShortcut(nn.Module):
    """DAFF without the sum around its depth-wise convolution. [S, Table 3]: w/o shortcut."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.daff = DAFF(dim, hidden)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        prefix, patches = split_prefix(x, grid)
        daff = self.daff
        y = F.gelu(on_map(daff.bn1, daff.conv1(torch.unflatten(patches, 1, grid))))  # [B, H, W, hidden]
        y = F.gelu(on_map(daff.bn2, on_map(daff.conv2, y)))
        patches = on_map(daff.bn3, daff.conv3(y)).flatten(1, 2)
        return torch.cat([prefix * daff.weigh(patches), patches], dim=1)


def sope_without_affine(patch_size: int, embed_dim: int, in_chans: int = 3) -> SOPE:
    """SOPE that starts and ends with its convolutions. [S, Section 2.2.2]."""
    sope = SOPE(patch_size, embed_dim, in_chans)
    sope.pre_affine, sope.post_affine = nn.Identity(), nn.Identity()
    return sope


PARTS: Mapping[str, Mapping[str, Callable[..., nn.Module]]] = {
    "patch_embed": {
        "sope": SOPE,
        "sope_no_affine": sope_without_affine,
        "sope_layernorm": partial(SOPE, norm=LayerNorm2d),
        "sope_syncbatchnorm": partial(SOPE, norm=nn.SyncBatchNorm),
        "linear": LinearEmbed,
    },
    "attention": {"hi_mhsa": HIMHSA, "mhsa": MHSA},
    "feed_forward": {
        "daff": DAFF,
        "daff_layernorm": partial(DAFF, norm=LayerNorm2d),
        "daff_all_tokens": DAFFAllTokens,
        "daff_no_shortcut": DAFFNoShortcut,
        "ffn": FFN,
        "ffn_split": SplitFFN,
        "ffn_split_aggregate": SplitFFNAggregate,
        "ffn_split_pool": SplitFFNPool,
    },
}
"""Keyword -> value -> layer; the first of each is the paper's."""
