# SPDX-License-Identifier: Apache-2.0
"""Parts of a hybrid ViT that learns fast: ResNet's stages as its patch embedding, attention between 1x1 layers.

Srinivas et al., "Bottleneck Transformers for Visual Recognition", CVPR 2021, arXiv:2101.11605 (Fig. 3: a ResNet's
bottleneck whose 3x3 convolution is attention); He et al., "Bag of Tricks for Image Classification with Convolutional
Neural Networks", CVPR 2019, arXiv:1812.01187 (three convolutions for the first, a mean before a strided shortcut).
Deviations from the former: positions are a table that is added to the patches, as in a ViT, in place of relative ones
within attention; attention has an output projection.
"""

from typing import Any

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn

from .attention import DroppedAttention
from .convolution import Convolution
from .patch_embed import ConvolutionalEmbed, halving_widths
from .patches import PatchGrid


class Residual(nn.Module):
    """relu(short(x) + norm(conv(relu(norm(conv(x)))))), 3x3 kernels; the last norm's scale starts at zero.

    Shape: [B, C, H, W] -> [B, D, H / stride, W / stride]. He et al., "Deep Residual Learning", CVPR 2016.

    Args:
        width: C.
        wider: D; None for C.
        stride: 1, or 2 for an even height and width.
    """

    def __init__(self, width: int, wider: int | None = None, stride: int = 1) -> None:
        super().__init__()
        wider = width if wider is None else wider
        self.conv1, self.norm1 = Convolution(width, wider, stride), nn.BatchNorm2d(wider)
        self.conv2, self.norm2 = Convolution(wider, wider), nn.BatchNorm2d(wider)
        self.act = nn.ReLU(inplace=True)
        nn.init.zeros_(self.norm2.weight)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or wider != width:
            self.short = nn.Sequential(
                nn.AvgPool2d(stride), nn.Conv2d(width, wider, 1, bias=False), nn.BatchNorm2d(wider)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(y)).add_(self.short(x)))


class ResNetEmbed(ConvolutionalEmbed):
    """ResNet-10's stages until a pixel is a patch, then a 1x1 convolution to D.

        three 3x3 convolutions, the first with stride 2 -> [max pooling, stride 2] -> Residual
        -> [Residual, stride 2, twice as wide], as often as the patch asks -> 1x1 -> norm -> ReLU

    The last stage has width D / 2. Patches of 16 pixels and more are pooled. Shape: [B, 3, H, W] -> [B, N, D]. The
    constructor's keywords are those of timm's `PatchEmbed`.

    Args:
        img_size: height and width, pixels, multiples of the patch size.
        patch_size: P, a power of two.
        in_chans: channels of the image.
        embed_dim: D, a multiple of P / 2.
        settings: further keywords that timm hands over; they have no meaning here.
    """

    def __init__(
        self, img_size: int | PatchGrid, patch_size: int, in_chans: int, embed_dim: int, **settings: Any
    ) -> None:
        halvings = len(halving_widths(in_chans, embed_dim, patch_size)) - 1
        super().__init__(img_size, patch_size)
        pooled = halvings >= 4
        last = embed_dim // 2
        width = last >> (halvings - 1 - pooled)
        layers: list[nn.Module] = []
        for before, after, stride in (
            (in_chans, 3 * width // 8, 2),
            (3 * width // 8, width // 2, 1),
            (width // 2, width, 1),
        ):
            layers += [Convolution(before, after, stride), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        if pooled:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        layers.append(Residual(width))
        while width < last:
            layers.append(Residual(width, 2 * width, stride=2))
            width *= 2
        layers += [nn.Conv2d(last, embed_dim, 1, bias=False), nn.BatchNorm2d(embed_dim), nn.ReLU(inplace=True)]
        self.stages = nn.Sequential(*layers)

    def tokens(self, images: Tensor) -> Tensor:
        return self.stages(images).flatten(2).mT


class TokenNorm(nn.BatchNorm2d):
    """Batch norm of tokens, over images and patches. Shape: [B, N, D] -> [B, N, D]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT.unsqueeze(3)).squeeze(3).mT


class Bottleneck(nn.Module):
    """relu(x + norm(up(relu(norm(attention(relu(norm(down(x)))))))); the last norm's scale starts at zero.

    Attention is between all patches, of a quarter of the width or what `mlp_ratio` says. Shape: [B, N, D] -> [B, N, D].
    The constructor's keywords are those of timm's `Block`.

    Args:
        dim: D.
        num_heads: of attention.
        mlp_ratio: width of attention, as a share of D.
        qkv_bias: whether the projection to queries, keys and values has a bias.
        attn_drop: probability of dropping a probability.
        drop_path: probability of dropping the branch.
        settings: further keywords that timm hands over; they have no meaning here.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 0.25,
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__()
        inner = int(dim * mlp_ratio)
        self.down, self.norm1 = nn.Linear(dim, inner, bias=False), TokenNorm(inner)
        self.attn = DroppedAttention(inner, num_heads, qkv_bias=qkv_bias, proj_bias=False, attn_drop=attn_drop)
        self.norm2 = TokenNorm(inner)
        self.up, self.norm3 = nn.Linear(inner, dim, bias=False), TokenNorm(dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        nn.init.zeros_(self.norm3.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.down(x)))
        y = torch.relu(self.norm2(self.attn(y)))
        return torch.relu(x + self.drop_path(self.norm3(self.up(y))))
