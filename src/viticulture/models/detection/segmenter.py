# SPDX-License-Identifier: Apache-2.0
"""The class of every pixel: a linear layer on the student's map, upsampled to the image.

    logits = upsample(linear(map))        linear: a 1x1 convolution; several maps are normalized and concatenated first

On ADE20K with a ViT-Tiny this simple head is as good as a mask transformer: Strudel et al., "Segmenter", ICCV 2021,
arXiv:2105.05633, Table 3.

Another segmenter is a module with the interface of `Segmenter`: [B, channels, H, W] -> logits [B, C, H, W].
"""

import torch
import torch.nn.functional as F
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn

from .backbone import MapBackbone


class Segmenter(nn.Module):
    """[B, channels, H, W] -> logits [B, C, H, W] of every pixel.

    Args:
        backbone: returns one map or several, of one stride each.
        classes: C.
        dropout: probability of dropping a channel of the concatenated maps while training.
    """

    def __init__(self, backbone: MapBackbone, classes: int, dropout: float) -> None:
        super().__init__()
        self.backbone, self.classes = backbone, classes
        self.norms = nn.ModuleList(LayerNorm2d(width) for width in backbone.widths)
        self.dropout = nn.Dropout2d(dropout)
        self.predict = nn.Conv2d(sum(backbone.widths), classes, 1)
        nn.init.trunc_normal_(self.predict.weight, std=0.02)
        assert self.predict.bias is not None
        nn.init.zeros_(self.predict.bias)

    def forward(self, images: Tensor) -> Tensor:
        maps = [norm(features) for norm, features in zip(self.norms, self.backbone(images), strict=True)]
        size = maps[0].shape[-2:]  # the finest comes first
        stacked = torch.cat([maps[0], *(_resized(features, size) for features in maps[1:])], dim=1)
        return _resized(self.predict(self.dropout(stacked)), images.shape[-2:])

    def no_weight_decay(self) -> set[str]:
        return self.backbone.no_weight_decay()


def _resized(maps: Tensor, size: torch.Size) -> Tensor:
    return maps if maps.shape[-2:] == size else F.interpolate(maps, size=tuple(size), mode="bilinear")
