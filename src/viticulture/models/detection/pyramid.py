# SPDX-License-Identifier: Apache-2.0
"""A feature pyramid from the one map of a plain ViT: SimpleFeaturePyramid of ViTDet.

    scale 4     transposed convolution 2x2, LayerNorm, GELU, transposed convolution 2x2
    scale 2     transposed convolution 2x2
    scale 1     the map
    scale 1/2   max pooling 2x2
    each        convolution 1x1, LayerNorm, convolution 3x3, LayerNorm
    last        the coarsest level, every second place

LayerNorm runs over the channels of each place. Transposed convolutions halve the width as they double the map.

Paper: Li et al., "Exploring Plain Vision Transformer Backbones for Object Detection", ECCV 2022, arXiv:2203.16527.
"""

from collections import OrderedDict

import torch.nn.functional as F
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn

SCALES = (4.0, 2.0, 1.0, 0.5)


class SimpleFeaturePyramid(nn.Module):
    """[B, D, h, w] -> "0" to "3", [B, width, s h, s w] for scales s, finest first, and "pool", half as large as "3".
    `dim`: D, a multiple of 4. `width`: channels of every level.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList()
        for scale in SCALES:
            channels = {4.0: dim // 4, 2.0: dim // 2}.get(scale, dim)
            self.levels.append(
                nn.Sequential(
                    *_resize(dim, scale),
                    nn.Conv2d(channels, width, 1, bias=False),
                    LayerNorm2d(width),
                    nn.Conv2d(width, width, 3, padding=1, bias=False),
                    LayerNorm2d(width),
                )
            )

    def forward(self, features: Tensor) -> "OrderedDict[str, Tensor]":
        maps = OrderedDict((str(number), level(features)) for number, level in enumerate(self.levels))
        maps["pool"] = F.max_pool2d(maps[str(len(SCALES) - 1)], kernel_size=1, stride=2)
        return maps


def _resize(dim: int, scale: float) -> list[nn.Module]:
    if scale == 4:
        wide = nn.ConvTranspose2d(dim, dim // 2, 2, 2)
        return [wide, LayerNorm2d(dim // 2), nn.GELU(), nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2)]
    if scale == 2:
        return [nn.ConvTranspose2d(dim, dim // 2, 2, 2)]
    return [nn.MaxPool2d(2, 2)] if scale == 0.5 else []
