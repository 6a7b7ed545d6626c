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

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from ...errors import unknown
from .ablations import ATTENTIONS, FEED_FORWARDS, PATCH_EMBEDS, Positions
from .dhvt import DHVT, Parts, Shape

OPEN = {
    "dhvt_nano": Shape(4, embed_dim=64, depth=4, num_heads=8),
    "dhvt_micro": Shape(4, embed_dim=128, depth=6, num_heads=4),
    "dhvt_mini": Shape(4, embed_dim=192, depth=9, num_heads=4),
}
"""Models that leave their patch to the data."""

SIZES = tuple(field.name for field in fields(Shape))
KEYWORDS = ("img_size", "in_chans", "num_classes", "drop_path_rate", "distilled")


def create(variant: str, pretrained: bool, shape: Shape, **settings: Any) -> DHVT:
    """Build a model by timm's habits.

    Args:
        variant: a registered name.
        pretrained: load weights; needs a file named in `pretrained_cfg_overlay`, in the authors' layout or ours.
        shape: sizes, where settings do not name others.
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
        return DHVT(replace(shape, **sizes), parts, **others)

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


def checkpoint_filter_fn(state: dict[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Weights as the model names them, out of a checkpoint of the authors' or of ours.

    The names agree; kernels of 1x1 convolutions become matrices.
    """
    weights: dict[str, Tensor] = state.get("model", state)
    ours = model.state_dict()
    return {
        name: weight.flatten(1) if weight.ndim == 4 and name in ours and ours[name].ndim == 2 else weight
        for name, weight in weights.items()
    }


def _cfg(num_classes: int, pixels: int) -> dict[str, Any]:
    return {
        "num_classes": num_classes,
        "input_size": (3, pixels, pixels),
        "crop_pct": 1.0 if pixels == 32 else 224 / 256,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "classifier": "head",
    }


DATA = {
    "cifar_patch4": (100, 32),
    "cifar_patch2": (100, 32),
    "domain_patch16": (345, 224),
    "imagenet_patch16": (1000, 224),
}
"""What the paper's models are made for -> classes, pixels."""

PAPER = {f"dhvt_{size}_{data}": made_for for size in ("tiny", "small") for data, made_for in DATA.items()}

default_cfgs = generate_default_cfgs(
    {name: _cfg(*made_for) for name, made_for in {**PAPER, **dict.fromkeys(OPEN, (1000, 32))}.items()}
)


@register_model
def dhvt_tiny_cifar_patch4(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-T for images of 32 pixels, patch 4."""
    return create("dhvt_tiny_cifar_patch4", pretrained, Shape(4, embed_dim=192, num_heads=4), **settings)


@register_model
def dhvt_tiny_cifar_patch2(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-T for images of 32 pixels, patch 2."""
    return create("dhvt_tiny_cifar_patch2", pretrained, Shape(2, embed_dim=192, num_heads=4), **settings)


@register_model
def dhvt_small_cifar_patch4(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-S for images of 32 pixels, patch 4."""
    return create("dhvt_small_cifar_patch4", pretrained, Shape(4, embed_dim=384, num_heads=8), **settings)


@register_model
def dhvt_small_cifar_patch2(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-S for images of 32 pixels, patch 2."""
    return create("dhvt_small_cifar_patch2", pretrained, Shape(2, embed_dim=384, num_heads=8), **settings)


@register_model
def dhvt_tiny_domain_patch16(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-T for DomainNet, 4 heads."""
    return create("dhvt_tiny_domain_patch16", pretrained, Shape(16, embed_dim=192, num_heads=4), **settings)


@register_model
def dhvt_small_domain_patch16(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-S for DomainNet, 6 heads."""
    return create("dhvt_small_domain_patch16", pretrained, Shape(16, embed_dim=384, num_heads=6), **settings)


@register_model
def dhvt_tiny_imagenet_patch16(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-T for ImageNet, 3 heads."""
    return create("dhvt_tiny_imagenet_patch16", pretrained, Shape(16, embed_dim=192, num_heads=3), **settings)


@register_model
def dhvt_small_imagenet_patch16(pretrained: bool = False, **settings: Any) -> DHVT:
    """DHVT-S for ImageNet, 6 heads."""
    return create("dhvt_small_imagenet_patch16", pretrained, Shape(16, embed_dim=384, num_heads=6), **settings)


@register_model
def dhvt_nano(pretrained: bool = False, **settings: Any) -> DHVT:
    """Ours: width 64, 4 blocks, any patch."""
    return create("dhvt_nano", pretrained, OPEN["dhvt_nano"], **settings)


@register_model
def dhvt_micro(pretrained: bool = False, **settings: Any) -> DHVT:
    """Ours: width 128, 6 blocks, any patch."""
    return create("dhvt_micro", pretrained, OPEN["dhvt_micro"], **settings)


@register_model
def dhvt_mini(pretrained: bool = False, **settings: Any) -> DHVT:
    """Ours: width 192, 9 blocks, any patch."""
    return create("dhvt_mini", pretrained, OPEN["dhvt_mini"], **settings)
