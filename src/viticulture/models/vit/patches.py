# SPDX-License-Identifier: Apache-2.0
"""A masked autoencoder around a plain ViT: the ViT sees a few patches, a small decoder paints the others.

Paper: He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377. Sizes for small ViTs:
"A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Method: methods/mae.py.

Equal to the authors' code. Deviations that change no result: masked patches are not even embedded, mask tokens stand
behind the kept ones instead of between them (attention knows no order, positions are added), kept patches leave the
decoder before its last hidden layer, because no loss reads them, and a patch lists its pixels channel by channel, as a
patch embedding's kernel does, where MAE's targets list them pixel by pixel.
"""

from typing import Any

import torch
from timm.layers.norm import LayerNorm
from timm.layers.patch_embed import PatchEmbed
from timm.models import VisionTransformer
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from ...errors import UserError
from .positions import sincos

PatchGrid = tuple[int, int]
"""Rows and columns of patches."""


def patchify(images: Tensor, patch: PatchGrid) -> Tensor:
    """[B, 3, H, W] -> [B, P, 3 p p]: patches row by row, inside them channels, rows, columns."""
    parts = torch.unflatten(torch.unflatten(images, 3, (-1, patch[1])), 2, (-1, patch[0]))  # [B, 3, rows, p, cols, p]
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, grid: PatchGrid, patch: PatchGrid) -> Tensor:
    """The inverse of `patchify`, for so many rows and columns of patches."""
    parts = torch.unflatten(torch.unflatten(patches, 2, (-1, *patch)), 1, grid)  # [B, rows, columns, 3, p, p]
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def split(noise: Tensor, mask_ratio: float) -> tuple[Tensor, Tensor]:
    """Numbers of the kept and of the masked patches: those with the least noise are kept.

    Args:
        noise: [B, P] uniform numbers.
        mask_ratio: share of masked patches; floor(P (1 - mask_ratio)) are kept.

    Returns: [B, K] and [B, P - K].
    """
    order = noise.argsort(dim=1, stable=True)
    keep = int(noise.shape[1] * (1 - mask_ratio))
    return order[:, :keep], order[:, keep:]


def rows(table: Tensor, numbers: Tensor) -> Tensor:
    """Some rows of each image's table: [B, P, V] and [B, K] -> [B, K, V]."""
    B, P = table.shape[:2]
    first = torch.arange(0, B * P, P, device=table.device)[:, None]
    return torch.unflatten(table.flatten(0, 1).index_select(0, (numbers + first).flatten()), 0, (B, -1))


def targets(images: Tensor, patch: PatchGrid, masked: Tensor, patch_norm: bool = True) -> Tensor:
    """What the decoder is to paint, [B, R, 3 p p]: the pixels of the masked patches.

        (x - mean) / sqrt(var + 1e-6)    over each patch, var unbiased      [He et al., Sec. 3, MAE's code]
        = s (x - mean) / sqrt(biased var + 1e-6 s^2),    s^2 = (n - 1) / n for n values: a layer norm, many times faster

    Args:
        images: [B, 3, H, W], normalized.
        patch: height and width, pixels.
        masked: [B, R] numbers of patches.
        patch_norm: standardize each patch; else pixels as they are.
    """
    pixels = rows(patchify(images, patch), masked)
    if not patch_norm:
        return pixels
    values = pixels.shape[-1]
    share = (values - 1) / values
    return nn.functional.layer_norm(pixels, (values,), pixels.new_full((values,), share**0.5), eps=1e-6 * share)


def restored(painted: Tensor, pixels: Tensor) -> Tensor:
    """The inverse of `targets`: standardized patches [..., 3 p p] with the mean and the spread of `pixels`, theirs."""
    mean, variance = pixels.mean(-1, keepdim=True), pixels.var(-1, keepdim=True)  # unbiased
    return painted * (variance + 1e-6).sqrt() + mean


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
    """Tokens before the first block, prefix tokens first: [B, 3, H, W] -> [B, prefix + K, D].

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
    """The patch embedding of patches as `patchify` gives them: [B, K, 3 p p] -> [B, K, D]."""
    conv = student.patch_embed.proj
    x: Tensor = student.patch_embed.norm(nn.functional.linear(patches, conv.weight.flatten(1), conv.bias))
    return x


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


def encode(student: VisionTransformer, images: Tensor, kept: Tensor | None = None) -> Tensor:
    """What the ViT makes of the kept patches: [B, 3, H, W] -> [B, prefix + K, D], after its last norm.

    Equal to `student.forward_features` where all patches are kept. Arguments as in `embed`.
    """
    x: Tensor = student.blocks(embed(student, images, kept))
    return finish(student, x)


def finish(student: VisionTransformer, x: Tensor) -> Tensor:
    """What follows the last block: its norm, wherever the student keeps it, [B, T, D]."""
    x = student.fc_norm(student.norm(x))
    return x


class Decoder(nn.Module):
    """Paints the masked patches: its own embedding, one mask token for all, fixed positions, blocks, a linear layer.

    Shape: [B, prefix + K, D] -> [B, R, values].

    Args:
        encoder_width: D.
        grid: rows and columns of patches.
        values: numbers to predict for a patch.
        width: of its tokens, a multiple of 4 and of heads.
        depth: blocks.
        heads: of its attention.
        mlp_ratio: width of the hidden layers over `width`.
    """

    positions: Tensor

    def __init__(
        self,
        encoder_width: int,
        grid: PatchGrid,
        values: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(encoder_width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("positions", sincos(grid, width, prefix=0)[0], persistent=False)
        self.blocks = nn.Sequential(*(Block(width, heads, mlp_ratio, qkv_bias=True) for _ in range(depth)))
        self.norm = LayerNorm(width)
        self.predict = nn.Linear(width, values)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, latent: Tensor, kept: Tensor, masked: Tensor) -> Tensor:
        """Predictions for the masked patches, in the order of `masked`."""
        x = self.embed(latent)
        prefix = x.shape[1] - kept.shape[1]
        seen = x[:, prefix:] + self.positions[kept]
        hidden = (self.mask_token + self.positions[masked]).to(x.dtype)
        x = torch.cat([x[:, :prefix], seen, hidden], dim=1)
        for block in self.blocks[:-1]:
            x = block(x)
        last: Any = self.blocks[-1]
        x = (x + last.attn(last.norm1(x)))[:, x.shape[1] - masked.shape[1] :]
        return self.predict(self.norm(x + last.mlp(last.norm2(x))))
