# SPDX-License-Identifier: Apache-2.0
"""Small plain ViTs for little data: timm's `VisionTransformer` in sizes of its own, started differently.

    vit_nano    width  64,  4 blocks of 8 heads      vit_tiny   width 192, 12 blocks of 3 heads (DeiT-Ti)
    vit_micro   width 128,  6 blocks of 4 heads
    vit_mini    width 192,  9 blocks of 3 heads

Any image and patch size. Every keyword of timm's class is accepted. The network *is* timm's: same code, same fused
attention, same state-dict keys, and what we export names a timm architecture with these sizes as its arguments, so that
`timm.create_model("local-dir:FOLDER")` builds it without this package.

Deviation from timm in the start only: blocks are Xavier-uniform (with q, k and v as matrices of their own) and the
position table is drawn wide enough to matter. timm's table, of std 0.02, is drowned by the patches, and a ViT that sees
few images hardly learns where things are: 73 instead of 93 % on 200 digits.
"""

from typing import Any

import timm
from timm.models import VisionTransformer, register_model
from torch import nn

from ..errors import UserError

ARCHITECTURE = "vit_tiny_patch16_224"  # any of timm's plain ViTs would do: every size is overridden

SIZES: dict[str, dict[str, int]] = {
    "vit_nano": {"embed_dim": 64, "depth": 4, "num_heads": 8},
    "vit_micro": {"embed_dim": 128, "depth": 6, "num_heads": 4},
    "vit_mini": {"embed_dim": 192, "depth": 9, "num_heads": 3},
    "vit_tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
}


def bare(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments with which timm's `create_model(ARCHITECTURE, ...)` builds the same network, before it is started.

    Args:
        name: a key of `SIZES`.
        options: keywords that `plant` was given.
    """
    defaults: dict[str, Any] = {"img_size": 32, "patch_size": 4, "weight_init": "moco", **SIZES[name]}
    return defaults | {key: value for key, value in options.items() if key != "position_std"}


def plant(name: str, position_std: float = 0.5, **options: Any) -> VisionTransformer:
    """Build a plain ViT of one of our sizes.

    Args:
        name: a key of `SIZES`.
        position_std: standard deviation of the learned position table at the start; timm's is 0.02.
        options: keywords of timm's `VisionTransformer`; weight_init "" starts the blocks as timm does.
    """
    sources = [options.pop(key, None) for key in ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay")]
    options.pop("cache_dir", None)
    if any(sources):
        raise UserError(
            f"{name} has no pretrained weights; start it from a run of ours or from timm's ViTs of its size"
        )
    if position_std < 0:
        raise UserError(f"position_std must not be negative, got {position_std}")
    student = timm.create_model(ARCHITECTURE, **bare(name, options))
    assert isinstance(student, VisionTransformer)
    if student.pos_embed is not None:
        nn.init.normal_(student.pos_embed, std=position_std)
    return student


@register_model
def vit_nano(**options: Any) -> VisionTransformer:
    """Width 64, 4 blocks of 8 heads."""
    return plant("vit_nano", **options)


@register_model
def vit_micro(**options: Any) -> VisionTransformer:
    """Width 128, 6 blocks of 4 heads."""
    return plant("vit_micro", **options)


@register_model
def vit_mini(**options: Any) -> VisionTransformer:
    """Width 192, 9 blocks of 3 heads."""
    return plant("vit_mini", **options)


@register_model
def vit_tiny(**options: Any) -> VisionTransformer:
    """Width 192, 12 blocks of 3 heads."""
    return plant("vit_tiny", **options)
