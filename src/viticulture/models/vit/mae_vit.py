# SPDX-License-Identifier: Apache-2.0
"""Plain ViTs with 12 heads for learning without labels, registered with timm.

Paper: "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes: recipes/mae/.

    mae_tiny    width 192, 12 blocks of 12 heads (ViT-Tiny of the paper)
    mae_small   width 384, 12 blocks of 12 heads
    mae_base    width 768, 12 blocks of 12 heads (MAE-Base, the teacher of distilled MAE)

Any image and patch size. Every keyword of timm's class is accepted; `global_pool: avg` is the form for fine-tuning: the
mean of the patches, then a norm of its own. The network *is* timm's, and what we export names a timm architecture.

They start by the option `start`, as MAE does unless it says otherwise: a student that is fine-tuned begins as timm's
DeiT in the authors' code, where no weights are given, and so does what given weights leave out.
"""

from collections.abc import Callable
from typing import Any

import timm
from timm.models import VisionTransformer
from torch import nn

from ...errors import unknown
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
    known = {key: value for key, value in options.items() if key != "start"}
    return {"img_size": 224, "patch_size": 16, **SIZES[name], **known}


def mae(student: VisionTransformer) -> None:
    """As MAE's `initialize_weights`: linear layers, and the patch embedding as a matrix, Xavier-uniform, biases of
    linear layers 0, tokens N(0, 0.02^2), positions of sines and cosines; a classifier of std 0.02, as it fine-tunes."""
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


def moco_v3(student: VisionTransformer) -> None:
    """As MoCo-v3's ViTs: as `mae`, but q, k and v matrices of their own, class token N(0, 1e-12), and the patch
    embedding's biases 0."""
    mae(student)
    for name, layer in student.named_modules():
        if isinstance(layer, nn.Linear) and name.endswith(".qkv"):
            bound = (6 / (layer.out_features // 3 + layer.in_features)) ** 0.5
            nn.init.uniform_(layer.weight, -bound, bound)
    if student.cls_token is not None:
        nn.init.normal_(student.cls_token, std=1e-6)
    if student.patch_embed.proj.bias is not None:
        nn.init.zeros_(student.patch_embed.proj.bias)


def deit(student: VisionTransformer) -> None:
    """As DeiT, DINO, and MAE-lite where it fine-tunes: linear layers, tokens and positions truncated normal of std
    0.02, biases of linear layers 0, the patch embedding as PyTorch has it. timm starts so, but for smaller tokens."""
    for token in (student.cls_token, student.reg_token):
        if token is not None:
            nn.init.trunc_normal_(token, std=0.02)


STARTS: dict[str, Callable[[VisionTransformer], None]] = {"mae": mae, "moco_v3": moco_v3, "deit": deit}
"""Ways to start the weights, in place."""


def build(name: str, start: str = "mae", **options: Any) -> VisionTransformer:
    """Build one of our sizes.

    Args:
        name: a key of `SIZES`.
        start: a key of `STARTS`.
        options: keywords of timm's `VisionTransformer`.
    """
    options = without_pretrained(name, options, "start it from a run, or from a checkpoint of MAE by init")
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    student = timm.create_model(ARCHITECTURE, attn_layer=DroppedAttention, **timm_arguments(name, options))
    assert isinstance(student, VisionTransformer)
    STARTS[start](student)
    return student


register(build, SIZES)
