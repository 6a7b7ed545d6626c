# SPDX-License-Identifier: Apache-2.0
"""Shifted patch tokenization and locality self-attention, which give a plain ViT a sense of neighborhood.

Lee, Lee and Song, "Vision Transformer for Small-Size Datasets", 2021, arXiv:2112.13492. Students: plain_vit.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from torch import Tensor, nn

from .patch_embed import ConvolutionalEmbed
from .patches import PatchGrid, patchify


class ShiftedPatchEmbed(ConvolutionalEmbed):
    """Embed each patch with the same patch of the image shifted by half a patch to the four diagonals, Eq. (2) to (4).

        S(x) = LN(P([x, s_1(x), ..., s_4(x)])) E,    P cuts patches of 5 C p p values; shifts fill with zeros

    Shape: [B, C, H, W] -> [B, N, D]. Keywords as of timm's `PatchEmbed`, of which others than these are ignored.

    Args:
        img_size: height and width, pixels, multiples of the patch size.
        patch_size: P, even.
        in_chans: C.
        embed_dim: D.
    """

    def __init__(self, img_size: int | PatchGrid, patch_size: int, in_chans: int, embed_dim: int, **_: Any) -> None:
        super().__init__(img_size, patch_size)
        values = 5 * in_chans * patch_size**2
        self.norm, self.proj = nn.LayerNorm(values), nn.Linear(values, embed_dim)

    def tokens(self, images: Tensor) -> Tensor:
        height, width = self.img_size
        shift = self.patch_size[0] // 2
        wide = F.pad(images, (shift,) * 4)
        shifted = [wide[..., y : y + height, x : x + width] for y in (0, 2 * shift) for x in (0, 2 * shift)]
        return self.proj(self.norm(patchify(torch.cat([images, *shifted], 1), self.patch_size)))


class LocalAttention(Attention):
    """timm's attention in which no token attends to itself, with a trained temperature, Eq. (7) and (8).

        L(x) = softmax(M(q k^T) / tau) v,    M sets the diagonal to -inf

    As in the authors' code there is one temperature for each head, and the parameter is 1 / tau, initially d^-0.5.
    Shape: [B, T, D] -> [B, T, D].
    """

    def __init__(self, dim: int, num_heads: int = 8, **settings: Any) -> None:
        super().__init__(dim, num_heads, **settings)
        self.inverse_temperature = nn.Parameter(torch.full((num_heads, 1, 1), self.scale))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise NotImplementedError("locality self-attention supports no masks but its own")
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x [B, h, T, d]
        q, k = self.q_norm(q), self.k_norm(k)
        scores = (q * self.inverse_temperature.to(q.dtype)) @ k.mT  # [B, h, T, T]
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        probabilities = scores.masked_fill(itself, -torch.inf).softmax(-1)
        out = self.attn_drop(probabilities) @ v
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))
