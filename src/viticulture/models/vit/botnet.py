# SPDX-License-Identifier: Apache-2.0
"""Bottleneck transformers: residual convolutions down to patches, then attention in bottlenecks.

    botnet14t   three residual stages up to width 256, 2 bottlenecks of width 512, 4 heads of width 32: ResNet-10's cost
    botnet14n   three quarters of all widths, 3 heads, at two thirds of the time

Srinivas et al., "Bottleneck Transformers for Visual Recognition", CVPR 2021, arXiv:2101.11605: in a ResNet's last
stage, attention between all pixels with relative positions takes the place of 3x3 kernels. The network is timm's
`ByobNet`, whose class documents its layers; the sizes, and how they depend on the patch, are ours (benchmarks/log).

    timm.create_model("botnet14t", patch_size=16, img_size=64, num_classes=10)

They gain more from an epoch than other hybrids. The larger one's stem and first stages are ResNet-10's, whose last
stage has eight times the parameters of this one's, so that Muon costs little here. Nine tenths of the MACs are those of
3x3 kernels.
"""

from typing import Any

import torch
from timm.models import build_model_with_cfg
from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg

from ..registering import register, timm_config
from .hybrid_vit import four_patches
from .patches import fitting_grid, halving_widths

SIZES: dict[str, dict[str, Any]] = {
    "botnet14t": {"embed_dim": 512, "depth": 2, "num_heads": 4},
    "botnet14n": {"embed_dim": 384, "depth": 2, "num_heads": 3},
}

POOLED = 16
"""Pixels of a patch from which the stem pools, as a ResNet's does; of smaller ones its last convolution is strided."""


class BotNet(ByobNet):
    """timm's `ByobNet`, whose relative positions are excluded from weight decay as a ViT's table is."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.feature_info[-1]["module"] = f"stages.{len(self.stages) - 1}"  # timm names an identity behind it

    @torch.jit.ignore  # type: ignore[untyped-decorator, unused-ignore]
    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if ".pos_embed." in name}


def stages(patch_size: int, embed_dim: int, depth: int, num_heads: int) -> ByoModelCfg:
    """Describe the network to timm.

        three 3x3 convolutions with strides 2, 1, 1 and max pooling, or with strides 2, 1, 2; one for patches of 2
        -> two 3x3 convolutions around a shortcut -> [the same, stride 2, twice as wide], as often as the patch needs
        -> [1x1 -> attention -> 1x1, around a shortcut]

    Args:
        patch_size: pixels of the image per pixel of the last map, a power of two.
        embed_dim: its width; attention has a quarter of it, the last convolutions half.
        depth: bottlenecks of attention.
    """
    halvings = len(halving_widths(3, embed_dim, patch_size)) - 1
    widths = [embed_dim // 2 >> k for k in reversed(range(max(halvings - 1, 1)))]
    blocks = [ByoBlockCfg(type="basic", d=1, c=width, s=2 if k else 1, gs=0, br=1.0) for k, width in enumerate(widths)]
    return ByoModelCfg(
        blocks=(*blocks, ByoBlockCfg(type="self_attn", d=depth, c=embed_dim, s=1, gs=0, br=0.25)),
        stem_chs=widths[0],
        downsample="avg",  # a strided shortcut alone would drop three pixels of four
        stem_type="tiered" if halvings > 1 else "3x3",
        stem_pool="maxpool" if patch_size >= POOLED else "",
        self_attn_layer="bottleneck",
        self_attn_kwargs={"num_heads": num_heads},
        fixed_input_size=True,
    )


def create(
    variant: str, pretrained: bool = False, img_size: int | tuple[int, int] = 64, patch_size: int = 16, **settings: Any
) -> BotNet:
    """Build a key of `SIZES`; keywords are those of `ByobNet` and of `stages`."""
    size = {**SIZES[variant], **{key: settings.pop(key) for key in SIZES[variant].keys() & settings.keys()}}
    fitting_grid(img_size, patch_size)
    return build_model_with_cfg(
        BotNet,
        variant,
        pretrained,
        model_cfg=stages(patch_size, **size),
        feature_cfg={"flatten_sequential": True},
        img_size=img_size,
        **settings,
    )


register(
    create,
    SIZES,
    "convolutions, then attention in bottlenecks; trains fastest",
    timm_config(64, fixed_input_size=True, first_conv="stem.conv1.conv", classifier="head.fc"),
    fitting_patch=four_patches,
    hybrid=True,
)
