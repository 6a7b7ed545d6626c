# SPDX-License-Identifier: Apache-2.0
"""The DHVT models of the paper, registered with timm under the authors' names.

Paper: Lu et al., NeurIPS 2022, arXiv:2210.05958, supplement [S], Table 11.

    dhvt_{tiny,small}_cifar_patch{4,2}     32 pixels, 4 or 8 heads
    dhvt_{tiny,small}_domain_patch16      224 pixels, 4 or 6 heads
    dhvt_{tiny,small}_imagenet_patch16    224 pixels, 3 or 6 heads

And smaller ones of ours, any image and any patch of 2, 4, 8, ... pixels, like the plain ViTs of plain_vit.py:

    dhvt_nano    width  64, 4 blocks of 8 heads      dhvt_mini   width 192, 9 blocks of 4 heads
    dhvt_micro   width 128, 6 blocks of 4 heads

    timm.create_model("dhvt_tiny_cifar_patch4", num_classes=10, drop_path_rate=0.1)

Keywords: those of `DHVT` and `Shape`, and the ablations' `patch_embed`, `attention`, `feed_forward`, `positions`.
The GFLOPs of [S] are MACs, without the two matrix products of attention.
"""

from dataclasses import fields, replace
from typing import Any

from timm.models import build_model_with_cfg

from ...errors import unknown
from ..registering import FEATURES, eight_patches, register, timm_config
from .ablations import PARTS, Positions
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
    """Build a model; settings (see above) override the sizes of its name.

    `pretrained` needs a file named in `pretrained_cfg_overlay`, in the authors' layout or ours.
    """

    def build(positions: bool = False, **others: Any) -> DHVT:
        for keyword in others.keys() - {*SIZES, *KEYWORDS, *PARTS}:
            raise unknown("setting of DHVT", keyword, [*SIZES, *KEYWORDS, *PARTS, "positions"])
        layers: dict[str, Any] = {}
        for part, choices in PARTS.items():
            name = others.pop(part, next(iter(choices)))
            if name not in choices:
                raise unknown(part, name, choices)
            layers[part] = choices[name]
        sizes = {name: others.pop(name) for name in SIZES if name in others}
        parts = Parts(**layers, positions=Positions if positions else None)
        return DHVT(replace({**PAPER, **OPEN}[variant], **sizes), parts, **others)

    return build_model_with_cfg(
        build, variant, pretrained, pretrained_filter_fn=checkpoint_filter_fn, feature_cfg={**FEATURES}, **settings
    )


PURPOSE = "hybrid ViT for small sets"
for data, (classes, side) in {"cifar": (100, 32), "domain": (345, 224), "imagenet": (1000, 224)}.items():
    names = [name for name in PAPER if f"_{data}_" in name]
    register(create, names, PURPOSE, timm_config(side, num_classes=classes))
register(create, OPEN, PURPOSE, timm_config(32), fitting_patch=eight_patches)
