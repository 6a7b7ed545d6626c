# SPDX-License-Identifier: Apache-2.0
"""The DHVT models of the paper, registered with timm under the authors' names.

Paper: Lu et al., NeurIPS 2022, arXiv:2210.05958, supplement [S], Table 11.

    dhvt_{tiny,small}_cifar_patch{4,2}     32 pixels, 4 or 8 heads
    dhvt_{tiny,small}_domain_patch16      224 pixels, 4 or 6 heads
    dhvt_{tiny,small}_imagenet_patch16    224 pixels, 3 or 6 heads

And smaller ones of ours, any image and any patch of 2, 4, 8, ... pixels, beside the plain ViTs of plain_vit.py:

    dhvt_nano    width  64, 4 blocks of 8 heads      dhvt_mini   width 192, 9 blocks of 4 heads
    dhvt_micro   width 128, 6 blocks of 4 heads

    timm.create_model("dhvt_tiny_cifar_patch4", num_classes=10, drop_path_rate=0.1)

Keywords: those of `DHVT` and `Shape`, and the ablations' `patch_embed`, `attention`, `feed_forward`, `positions`.
The GFLOPs of [S] are multiply-adds, without the two matrix products of attention.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from timm.models import build_model_with_cfg
from torch import nn

from ...errors import unknown
from ..registering import register, timm_config
from .ablations import ATTENTIONS, FEED_FORWARDS, PATCH_EMBEDS, Positions
from .dhvt import DHVT, Parts, Shape, checkpoint_filter_fn

PAPER = {
    "dhvt_tiny_cifar_patch4": Shape(4, embed_dim=192, num_heads=4),
    "dhvt_tiny_cifar_patch2": Shape(2, embed_dim=192, num_heads=4),
    "dhvt_small_cifar_patch4": Shape(4, embed_dim=384, num_heads=8),
    "dhvt_small_cifar_patch2": Shape(2, embed_dim=384, num_heads=8),
    "dhvt_tiny_domain_patch16": Shape(16, embed_dim=192, num_heads=4),
    "dhvt_small_domain_patch16": Shape(16, embed_dim=384, num_heads=6),
    "dhvt_tiny_imagenet_patch16": Shape(16, embed_dim=192, num_heads=3),
    "dhvt_small_imagenet_patch16": Shape(16, embed_dim=384, num_heads=6),
}
OPEN = {
    "dhvt_nano": Shape(4, embed_dim=64, depth=4, num_heads=8),
    "dhvt_micro": Shape(4, embed_dim=128, depth=6, num_heads=4),
    "dhvt_mini": Shape(4, embed_dim=192, depth=9, num_heads=4),
}
"""Models that leave their patch to the data."""

SIZES = tuple(field.name for field in fields(Shape))
KEYWORDS = ("img_size", "in_chans", "num_classes", "drop_path_rate", "distilled")


def create(variant: str, pretrained: bool = False, **settings: Any) -> DHVT:
    """Build a model by timm's habits.

    Args:
        variant: a key of `PAPER` or `OPEN`, whose sizes hold where settings do not name others.
        pretrained: load weights; needs a file named in `pretrained_cfg_overlay`, in the authors' layout or ours.
        settings: keywords listed above.
    """

    def build(
        patch_embed: str = "sope",
        attention: str = "hi_mhsa",
        feed_forward: str = "daff",
        positions: bool = False,
        **others: Any,
    ) -> DHVT:
        for keyword in others.keys() - {*SIZES, *KEYWORDS}:
            raise unknown("setting of DHVT", keyword, [*SIZES, *KEYWORDS, *PARTS])
        parts = Parts(
            _choose("patch_embed", patch_embed, PATCH_EMBEDS),
            _choose("attention", attention, ATTENTIONS),
            _choose("feed_forward", feed_forward, FEED_FORWARDS),
            Positions if positions else None,
        )
        sizes = {name: others.pop(name) for name in SIZES if name in others}
        return DHVT(replace({**PAPER, **OPEN}[variant], **sizes), parts, **others)

    return build_model_with_cfg(
        build,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **settings,
    )


PARTS = ("patch_embed", "attention", "feed_forward", "positions")


def _choose(kind: str, name: str, choices: Mapping[str, Callable[..., nn.Module]]) -> Callable[..., nn.Module]:
    if name not in choices:
        raise unknown(kind, name, choices)
    return choices[name]


MADE_FOR = {"cifar": (100, 32), "domain": (345, 224), "imagenet": (1000, 224)}
"""What the paper's models are made for -> classes, pixels."""

for data, (classes, side) in MADE_FOR.items():
    register(create, [name for name in PAPER if f"_{data}_" in name], timm_config(side, num_classes=classes))
register(create, OPEN, timm_config(32))
