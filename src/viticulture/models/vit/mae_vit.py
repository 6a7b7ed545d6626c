# SPDX-License-Identifier: Apache-2.0
"""Plain ViTs with 12 heads for learning without labels, registered with timm.

Paper: "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes: recipes/mae/.

    mae_tiny    width 192, 12 blocks of 12 heads (ViT-Tiny of the paper)
    mae_small   width 384, 12 blocks of 12 heads
    mae_base    width 768, 12 blocks of 12 heads (MAE-Base, the teacher of distilled MAE)

Any image and patch size. Every keyword of timm's class is accepted; `global_pool: avg` is the form for fine-tuning: the
mean of the patches, then a norm of its own. The network *is* timm's, and what we export names a timm architecture.

They start as MAE does: linear layers Xavier-uniform with zero biases, the patch embedding likewise as a matrix, class
token of std 0.02, positions of sines and cosines, which fine-tuning goes on from and `mae` keeps as they are.
"""

from typing import Any

import timm
from timm.models import VisionTransformer
from torch import nn

from ..registering import register, without_pretrained
from .attention import DroppedAttention
from .positions import fix_positions

ARCHITECTURE = "vit_tiny_patch16_224"  # any of timm's plain ViTs would do: every size is overridden

SIZES: dict[str, dict[str, int]] = {
    "mae_tiny": {"embed_dim": 192, "depth": 12, "num_heads": 12},
    "mae_small": {"embed_dim": 384, "depth": 12, "num_heads": 12},
    "mae_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
}


def timm_arguments(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments with which timm's `create_model(ARCHITECTURE, ...)` builds the same network, before it is started.

    Args:
        name: a key of `SIZES`.
        options: keywords that `build` was given.
    """
    return {"img_size": 224, "patch_size": 16, **SIZES[name], **options}


def build(name: str, **options: Any) -> VisionTransformer:
    """Build one of our sizes.

    Args:
        name: a key of `SIZES`.
        options: keywords of timm's `VisionTransformer`.
    """
    options = without_pretrained(name, options, "start it from a run, or from a checkpoint of MAE by init")
    student = timm.create_model(ARCHITECTURE, attn_layer=DroppedAttention, **timm_arguments(name, options))
    assert isinstance(student, VisionTransformer)
    init_weights(student)
    return student


def init_weights(student: VisionTransformer) -> None:
    """Random weights as in MAE's `initialize_weights`; a classifier is drawn with std 0.02 as in its fine-tuning."""
    for module in student.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.xavier_uniform_(student.patch_embed.proj.weight.data.flatten(1))
    for token in (student.cls_token, student.reg_token):
        if token is not None:
            nn.init.normal_(token, std=0.02)
    if isinstance(student.head, nn.Linear):
        nn.init.trunc_normal_(student.head.weight, std=0.02)
    if student.pos_embed is not None:
        fix_positions(student)
        student.pos_embed.requires_grad_(True)


register(build, SIZES)
