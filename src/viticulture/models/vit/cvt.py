# SPDX-License-Identifier: Apache-2.0
"""CvT, a pyramid of three stages whose embeddings and projections are convolutions.

Paper: Wu et al., "CvT: Introducing Convolutions to Vision Transformers", ICCV 2021, arXiv:2103.15808, Table 2; here for
DHVT's comparison (supplement, Table 7). Recipe: dhvt/domainnet-tiny with --student cvt_13.
Deviation: attention is scaled by the head's width, as the paper writes it, where the authors' code takes the stage's.

    timm.create_model("cvt_13", num_classes=345)
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from timm.models import build_model_with_cfg
from torch import Tensor, nn

from ..registering import register, timm_config


class CvTStage(NamedTuple):
    """Sizes of a stage: convolution of the embedding (kernel, stride), width, blocks, heads."""

    kernel: int
    stride: int
    width: int
    depth: int
    heads: int


CVT_13 = (CvTStage(7, 4, 64, 1, 1), CvTStage(3, 2, 192, 2, 3), CvTStage(3, 2, 384, 10, 6))


class ConvProjection(nn.Module):
    """Depth-wise 3x3 convolution of the map, BatchNorm, then a linear map of each token; prefix tokens skip the former.

    Shape: [B, prefix + H W, D] -> [B, prefix + H W / stride^2, D].
    """

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
        self.norm, self.linear = nn.BatchNorm2d(width), nn.Linear(width, width)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        prefix, tokens = torch.split(x, [x.shape[1] - grid[0] * grid[1], grid[0] * grid[1]], 1)
        image = self.norm(self.conv(torch.unflatten(tokens.mT, 2, grid)))  # [B, D, H / stride, W / stride]
        return self.linear(torch.cat([prefix, image.flatten(2).mT], 1))


class CvTBlock(nn.Module):
    """z' = Attention(LN(z)) + z, z'' = MLP(LN(z')) + z', with keys and values of half the side."""

    def __init__(self, width: int, heads: int, drop_path: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (ConvProjection(width, stride) for stride in (1, 2, 2))
        self.out, self.mlp = nn.Linear(width, width), Mlp(width, 4 * width)
        self.drop_path = DropPath(drop_path)

    def attention(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        q, k, v = (
            project(x, grid).unflatten(2, (self.heads, -1)).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        x = x + self.drop_path(self.attention(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class CvT(nn.Module):
    """[B, in_chans, H, W] -> [B, num_classes] from a class token that is added in the last stage; without classes
    that token, [B, D]. No positions: any image size.

    Args:
        stages: sizes, first to last.
        num_classes: length of the logits.
        drop_path_rate: of the last block of the last stage, rising from 0 within it; other stages have none.
    """

    def __init__(
        self,
        stages: tuple[CvTStage, ...] = CVT_13,
        num_classes: int = 1000,
        in_chans: int = 3,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_classes, self.num_features, last = num_classes, stages[-1].width, stages[-1]
        self.embeds, self.norms, self.stages = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for stage in stages:
            self.embeds.append(
                nn.Conv2d(in_chans, stage.width, stage.kernel, stage.stride, stage.kernel // 2 - (stage.kernel > 3))
            )
            self.norms.append(nn.LayerNorm(stage.width))
            most = drop_path_rate if stage is last else 0.0
            rates = [most * block / max(stage.depth - 1, 1) for block in range(stage.depth)]
            self.stages.append(nn.ModuleList(CvTBlock(stage.width, stage.heads, rate) for rate in rates))
            in_chans = stage.width
        self.cls_token = nn.Parameter(torch.zeros(1, 1, last.width))
        self.norm = nn.LayerNorm(last.width)
        self.head = nn.Linear(last.width, num_classes) if num_classes else nn.Identity()
        self.apply(_initialized)
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward_features(self, images: Tensor) -> Tensor:
        """The class token after the last norm, [B, D]."""
        x = images
        for place, (embed, norm, blocks) in enumerate(zip(self.embeds, self.norms, self.stages, strict=True)):
            x = embed(x)
            grid = (x.shape[2], x.shape[3])
            tokens = norm(x.flatten(2).mT)  # [B, H W, D]
            if place == len(self.stages) - 1:
                tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1)
            for block in blocks.children():
                tokens = block(tokens, grid)
            x = tokens[:, -grid[0] * grid[1] :].mT.unflatten(2, grid)
        return self.norm(tokens[:, 0])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x if pre_logits else self.head(x)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def _initialized(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def create(variant: str, pretrained: bool = False, **settings: Any) -> CvT:
    """Build CvT-13: widths 64, 192, 384; 1, 2 and 10 blocks."""
    return build_model_with_cfg(CvT, variant, pretrained, **settings)


register(create, ["cvt_13"], "hybrid ViT, for comparison", timm_config(crop_pct=0.875))
