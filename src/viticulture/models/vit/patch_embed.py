# SPDX-License-Identifier: Apache-2.0
"""Patch embeddings by convolutions, in place of timm's linear one."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from ...errors import UserError
from .patches import PatchGrid


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
