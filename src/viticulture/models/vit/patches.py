# SPDX-License-Identifier: Apache-2.0
"""A plain ViT patch by patch: embed some of an image's patches, prepare tokens for its blocks, finish them; and patch
embeddings by convolutions, in place of timm's linear one.

For methods and teachers that feed a ViT some of an image's patches (`methods.mae`), something in their place
(`methods.simmim`), or images of another size (`methods.dino`). The steps are those of timm's `forward_features`.

Positions are a table, or fixed: sines and cosines of a patch's column and row. Deviation that changes no result: a
patch lists its pixels channel by channel, as a patch embedding's kernel does, where MAE's targets list them pixel by
pixel.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import VisionTransformer
from torch import Tensor, nn

from ...errors import UserError


def sincos(grid: tuple[int, int], width: int, prefix: int = 1) -> Tensor:
    """Position table of a ViT, [1, prefix + P, D].

        row of patch (y, x) = [sin(x w), cos(x w), sin(y w), cos(y w)],    w_i = 10000^(-4 i / D), i < D / 4

    Patches row by row; prefix tokens (class, registers) have zeros. Source: MAE's `get_2d_sincos_pos_embed`; MoCo-v3
    uses the same numbers with the halves swapped, which makes no difference to a network with random weights.

    Args:
        width: D, a multiple of 4.
        prefix: tokens before the patches.
    """
    if width % 4:
        raise UserError(f"sine and cosine positions need a width that is a multiple of 4, got {width}")
    rows, columns = grid
    omega = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    y, x = (torch.arange(count, dtype=torch.float64)[:, None] * omega for count in grid)
    across = torch.cat([x.sin(), x.cos()], dim=1).expand(rows, -1, -1)
    down = torch.cat([y.sin(), y.cos()], dim=1)[:, None].expand(-1, columns, -1)
    patches = torch.cat([across, down], dim=2).flatten(0, 1)  # [P, D]
    return torch.cat([patches.new_zeros(prefix, width), patches]).float()[None]


def choose_positions(student: nn.Module, positions: str) -> None:
    """Apply a recipe's `method.positions`: `fixed` sets a frozen table of sines and cosines, `learned`
    changes nothing. Raises: UserError for another value."""
    if positions not in ("fixed", "learned"):
        raise UserError(f"method.positions must be fixed or learned, got {positions!r}")
    if positions == "fixed":
        fix_positions(student)


def fix_positions(student: nn.Module) -> None:
    """Give a plain ViT this table and freeze it; other networks stay as they are."""
    if isinstance(student, VisionTransformer) and student.pos_embed is not None:
        prefix = 0 if student.no_embed_class else student.num_prefix_tokens
        table = sincos(student.patch_embed.grid_size, student.embed_dim, prefix)
        student.pos_embed.requires_grad_(False).copy_(table)


PatchGrid = tuple[int, int]  # rows and columns of patches


def patchify(images: Tensor, patch: PatchGrid) -> Tensor:
    """[B, C, H, W] -> [B, P, C p p]: patches row by row, inside them channels, rows, columns."""
    parts = torch.unflatten(torch.unflatten(images, 3, (-1, patch[1])), 2, (-1, patch[0]))  # [B, C, rows, p, cols, p]
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, grid: PatchGrid, patch: PatchGrid) -> Tensor:
    """The inverse of `patchify`, for a grid of patches."""
    parts = torch.unflatten(torch.unflatten(patches, 2, (-1, *patch)), 1, grid)  # [B, rows, columns, C, p, p]
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def rows(table: Tensor, numbers: Tensor) -> Tensor:
    """Select rows of each image's table: [B, P, V] and [B, K] -> [B, K, V]."""
    B, P = table.shape[:2]
    first = torch.arange(0, B * P, P, device=table.device)[:, None]
    return torch.unflatten(table.flatten(0, 1).index_select(0, (numbers + first).flatten()), 0, (B, -1))


def check(student: Any) -> VisionTransformer:
    """Return the student as a ViT that can be fed some of its patches. Raises: UserError for any other network."""
    methods = ("forward_features", "_pos_embed")
    if not isinstance(student, VisionTransformer) or any(
        getattr(type(student), name) is not getattr(VisionTransformer, name) for name in methods
    ):
        raise UserError(f"masking needs a plain ViT, such as mae_tiny or vit_tiny, got a {type(student).__name__}")
    if type(student.patch_embed) is not PatchEmbed or student.dynamic_img_size or student.pos_embed is None:
        raise UserError("masking needs a ViT with one linear patch embedding, a position table and a fixed image size")
    if isinstance(student.patch_drop, nn.Module) and not isinstance(student.patch_drop, nn.Identity):
        raise UserError("masking removes patches itself; leave patch_drop_rate out of the student's options")
    return student


def embed(student: VisionTransformer, images: Tensor, visible: Tensor | None = None) -> Tensor:
    """Tokens before the first block, prefix tokens first: [B, C, H, W] -> [B, prefix + K, D]. `images`: normalized.
    `visible`: [B, K] numbers of the patches to embed; None embeds all. Others are not computed.
    """
    patches = patchify(images, student.patch_embed.patch_size)
    prefix_table, table = position_tables(student)
    if visible is not None:
        patches, table = rows(patches, visible), nn.functional.embedding(visible, table[0])
    return begin(student, project(student, patches) + table, prefix_table)


def position_tables(student: VisionTransformer) -> tuple[Tensor, Tensor]:
    """Return the positions of the prefix tokens, [1, 0 or prefix, D], and of the patches, [1, P, D]."""
    table: Any = student.pos_embed
    prefix = 0 if student.no_embed_class else student.num_prefix_tokens
    return table[:, :prefix], table[:, prefix:]


def project(student: VisionTransformer, patches: Tensor) -> Tensor:
    """Apply the patch embedding to patches from `patchify`: [B, K, C p p] -> [B, K, D]."""
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
    """Apply the norms after the last block, [B, T, D]."""
    return student.fc_norm(student.norm(x))


def at_any_size(student: nn.Module) -> Callable[[Tensor], Any] | None:
    """Return a plain ViT as a function of images of any size; None for other networks, which are called directly."""
    try:
        return partial(forward_at_any_size, check(student))
    except UserError:
        return None


def forward_at_any_size(student: VisionTransformer, images: Tensor) -> Tensor:
    """The student's output, [B, C]; positions are resampled (bicubic) where the grid of patches differs from its own.

    Equal to `student(images)` for images of its image size.
    """
    patch = student.patch_embed.patch_size
    prefix_table, table = position_tables(student)
    grid = images.shape[-2] // patch[0], images.shape[-1] // patch[1]
    if grid != student.patch_embed.grid_size:
        table = resampled(table, student.patch_embed.grid_size, grid)
    x = begin(student, project(student, patchify(images, patch)) + table, prefix_table)
    return student.forward_head(student.norm(student.blocks(x)))


# Not compiled: for sizes that vary, torch 2.15 fails on the backward pass.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def resampled(table: Tensor, old: PatchGrid, new: PatchGrid) -> Tensor:
    """Resample positions of patches, [1, P, D], to another grid (bicubic)."""
    return resample_abs_pos_embed(table, list(new), list(old), num_prefix_tokens=0)


def check_size(student: nn.Module, side: int, channels: int) -> None:
    """Raises: UserError, in terms of `method.local_crops.size`, if the student does not take squares of this side."""
    copied, reason = copy.deepcopy(student).to("meta").eval(), ""
    if at_any_size(copied) is not None:
        patch = check(student).patch_embed.patch_size
        if side < 1 or any(side % p for p in patch):
            reason = f"it must be a multiple of the patch, {patch[0]}x{patch[1]}"
    else:
        try:
            with torch.no_grad():
                copied(torch.zeros(1, channels, side, side, device="meta"))
        except Exception as error:  # whatever a network may raise
            first = (str(error) or repr(error)).splitlines()[0]
            reason = f"{type(student).__name__} does not take it ({first})"
    if reason:
        raise UserError(
            f"method.local_crops.size is {side} pixels, but {reason}; method.local_crops.count 0 goes without them"
        )


class ConvolutionalEmbed(nn.Module, ABC):
    """Tokens computed from an image by convolutions, [B, 3, H, W] -> [B, T, D], with the interface of timm's ViTs.

    Args:
        img_size: height and width, pixels, multiples of the patch size; images of another size are refused.
        patch_size: P, pixels.
    """

    def __init__(self, img_size: int | PatchGrid, patch_size: int) -> None:
        super().__init__()
        self.grid_size = fitting_grid(img_size, patch_size)
        self.patch_size = patch_size, patch_size
        self.img_size = self.grid_size[0] * patch_size, self.grid_size[1] * patch_size
        self.num_patches = self.grid_size[0] * self.grid_size[1]

    def feat_ratio(self) -> int:
        """Pixels between neighboring patches."""
        return self.patch_size[0]

    def dynamic_feat_size(self, img_size: PatchGrid) -> PatchGrid:
        """Rows and columns of patches of an image."""
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]

    @abstractmethod
    def tokens(self, images: Tensor) -> Tensor:
        """[B, 3, H, W], channels last in memory except in an exporter, -> [B, T, D]."""

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != self.img_size:
            height, width = self.img_size
            raise UserError(f"this student was made for {height}x{width} pixels, got {tuple(images.shape[-2:])}")
        if not torch.compiler.is_exporting():  # for speed alone; with a free batch size ExecuTorch turns it into zeros
            images = images.contiguous(memory_format=torch.channels_last)
        return self.tokens(images)


def fitting_grid(img_size: int | PatchGrid, patch_size: int) -> PatchGrid:
    """Return rows and columns of patches. Raises: UserError where patches do not tile the image."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if height % patch_size or width % patch_size:
        whole = [max(round(side / patch_size), 1) * patch_size for side in (height, width)]
        raise UserError(
            f"the image size must be a multiple of the patch size, got {height}x{width} and {patch_size} pixels; "
            f"take images of {whole[0]}x{whole[1]}, or another patch size"
        )
    return height // patch_size, width // patch_size


def halving_widths(in_chans: int, embed_dim: int, patch_size: int) -> list[int]:
    """Return the channels before, between and after the layers that halve an image until a pixel is a patch: D at the
    end, and before each layer half of what follows it.

    Raises: UserError unless P is a power of two and D a multiple of P / 2.
    """
    halvings = patch_size.bit_length() - 1
    if patch_size < 2 or patch_size != 2**halvings:
        raise UserError(f"patch_size must be a power of two of at least 2, got {patch_size}; take 2, 4, 8, 16 or 32")
    if embed_dim % (patch_size // 2):
        raise UserError(f"embed_dim must be a multiple of patch_size / 2, got {embed_dim} and {patch_size}")
    return [in_chans, *(embed_dim >> k for k in reversed(range(halvings)))]
