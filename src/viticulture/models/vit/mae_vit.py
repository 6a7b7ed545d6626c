# SPDX-License-Identifier: Apache-2.0
"""Plain ViTs with 12 heads for training without labels, registered with timm.

Paper: "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes: recipes/mae/.

    mae_tiny    width 192, 12 blocks of 12 heads (ViT-Tiny of the paper)
    mae_small   width 384, 12 blocks of 12 heads
    mae_base    width 768, 12 blocks of 12 heads (MAE-Base, the teacher of distilled MAE)

Any image and patch size. Every keyword of timm's class is accepted; `global_pool: avg` is the form for fine-tuning: the
mean of the patches, then another norm. The network *is* timm's, and exported files name a timm architecture.

The option `start` chooses the initial weights, by default MAE's. A student that is fine-tuned is initialized as timm's
DeiT in the authors' code, also where other weights leave a layer out.
"""

from collections.abc import Callable
from typing import Any

import timm
from timm.models import VisionTransformer
from torch import nn

from ...errors import unknown
from ..registering import eight_patches, register, reject_pretrained
from .attention import DroppedAttention
from .patches import fix_positions

SIZES: dict[str, dict[str, int]] = {
    "mae_tiny": {"embed_dim": 192, "depth": 12, "num_heads": 12},
    "mae_small": {"embed_dim": 384, "depth": 12, "num_heads": 12},
    "mae_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
}


def mae(student: VisionTransformer) -> None:
    """Initialize as MAE's `initialize_weights`: linear layers, and the patch embedding as a matrix, Xavier-uniform,
    biases of linear layers 0, tokens N(0, 0.02^2), positions of sines and cosines; a classifier of std 0.02, as it
    fine-tunes."""
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
    """Initialize as MoCo-v3's ViTs: as `mae`, but with q, k and v as separate matrices, class token N(0, 1e-12), and
    the patch embedding's biases 0."""
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
    """Initialize as DeiT, DINO, and MAE-lite's fine-tuning: linear layers, tokens and positions truncated normal of std
    0.02, biases of linear layers 0, the patch embedding as in PyTorch. timm does so, except for smaller tokens."""
    for token in (student.cls_token, student.reg_token):
        if token is not None:
            nn.init.trunc_normal_(token, std=0.02)


STARTS: dict[str, Callable[[VisionTransformer], None]] = {"mae": mae, "moco_v3": moco_v3, "deit": deit}
"""Initialize weights, in place."""


def timm_form(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return timm's architecture and the arguments that build the same network, with other weights."""
    keywords = {key: value for key, value in options.items() if key != "start"}
    # Any of timm's plain ViTs would do: every size is overridden.
    return "vit_tiny_patch16_224", {"img_size": 224, "patch_size": 16, **SIZES[name], **keywords}


def build(name: str, start: str = "mae", **options: Any) -> VisionTransformer:
    """Build one of `SIZES`, initialized by one of `STARTS`; options are keywords of timm's `VisionTransformer`."""
    options = reject_pretrained(name, options, "start it from a run, or from a checkpoint of MAE by init")
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    architecture, arguments = timm_form(name, options)
    student = timm.create_model(architecture, attn_layer=DroppedAttention, **arguments)
    assert isinstance(student, VisionTransformer)
    STARTS[start](student)
    return student


register(build, SIZES, "plain ViT for pre-training without labels", fitting_patch=eight_patches, timm_form=timm_form)
