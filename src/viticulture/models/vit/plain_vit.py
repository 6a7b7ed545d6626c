# SPDX-License-Identifier: Apache-2.0
"""Small plain ViTs for little data: timm's `VisionTransformer` in sizes of its own, started differently.

    vit_nano    width  64,  4 blocks of 8 heads      vit_tiny   width 192, 12 blocks of 3 heads (DeiT-Ti)
    vit_micro   width 128,  6 blocks of 4 heads      vit_small  width 288,  6 blocks of 9 heads, dropout [1]
    vit_mini    width 192,  9 blocks of 3 heads      vit_base   width 384, 12 blocks of 6 heads (DeiT-S) [1]

    vit_small_sparse, vit_base_sparse: the same with entmax for a softmax (sparse_attention.py) [1]

Any image and patch size. Every keyword of timm's class is accepted. The network *is* timm's: same code, same fused
attention, same state-dict keys, and what we export names a timm architecture with these sizes as its arguments, so that
`timm.create_model("local-dir:FOLDER")` builds it without this package. Only dropout is drawn more cheaply on a CPU
(dropout.py, attention.py). The sparse ones alone need this package to be imported.

Deviation from timm in the start only, see `STARTS`. By default blocks are Xavier-uniform (with q, k and v as matrices
of their own) and the position table is drawn wide enough to matter. timm's table, of std 0.02, is drowned by the
patches, and a ViT that sees few images hardly learns where things are: 73 instead of 93 % on 200 digits.

[1] Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552, with dropout, LayerNorm's epsilon and start as in the authors' code.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
from timm.models import VisionTransformer, build_model_with_cfg
from torch import nn

from ...errors import UserError, unknown
from ..registering import register, timm_config, without_pretrained
from .attention import DroppedAttention
from .dropout import cheapen
from .sparse_attention import SparseAttention

ARCHITECTURE = "vit_base_patch16_clip_224"
"""Any of timm's plain ViTs would do, as every size is overridden; this one's LayerNorm adds 1e-5, which no keyword of
timm's can ask for. Its norm before the blocks is turned off."""

EPSILON_1E6 = {"norm_layer": "layernorm"}  # what timm understands by that name

SIZES: dict[str, dict[str, Any]] = {
    "vit_nano": {"embed_dim": 64, "depth": 4, "num_heads": 8, **EPSILON_1E6},
    "vit_micro": {"embed_dim": 128, "depth": 6, "num_heads": 4, **EPSILON_1E6},
    "vit_mini": {"embed_dim": 192, "depth": 9, "num_heads": 3, **EPSILON_1E6},
    "vit_tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3, **EPSILON_1E6},
    "vit_small": {"embed_dim": 288, "depth": 6, "num_heads": 9, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1},
    "vit_base": {"embed_dim": 384, "depth": 12, "num_heads": 6, **EPSILON_1E6},
}

SPARSE = ("vit_small_sparse", "vit_base_sparse")

OURS = ("position_std", "start")  # keywords of `build` that timm does not know


def timm_arguments(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments with which timm's `create_model(ARCHITECTURE, ...)` builds the same network, before it is started.

    Args:
        name: a key of `SIZES`.
        options: keywords that `build` was given.
    """
    defaults = {"img_size": 32, "patch_size": 4, "weight_init": "moco", "pre_norm": False, **SIZES[name]}
    return defaults | {key: value for key, value in options.items() if key not in OURS}


def usual(student: VisionTransformer) -> float:
    """Leave timm's start; positions of std 0.5."""
    return 0.5


def published(student: VisionTransformer) -> float:
    """Start as the authors' code of [1] does; positions of std 0.02.

    Patches N(0, 1); class token N(0, 0.02^2); q, k and v Xavier-uniform as one matrix; biases of the MLP N(1e-6, 1),
    where their authors meant a standard deviation of 1e-6; all else Xavier-uniform, biases 0; the head as PyTorch has
    it.
    """
    nn.init.normal_(student.patch_embed.proj.weight)
    if student.patch_embed.proj.bias is not None:
        nn.init.zeros_(student.patch_embed.proj.bias)
    if student.cls_token is not None:
        nn.init.normal_(student.cls_token, std=0.02)
    for name, layer in student.blocks.named_modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, 1e-6, 1) if ".mlp." in name else nn.init.zeros_(layer.bias)
    if isinstance(student.head, nn.Linear):
        student.head.reset_parameters()
    return 0.02


STARTS: dict[str, Callable[[VisionTransformer], float]] = {"usual": usual, "published": published}
"""Ways to start the weights, in place; each returns the standard deviation that goes with it for the position table."""


def build(
    name: str,
    start: str = "usual",
    position_std: float | None = None,
    attention: type[nn.Module] = DroppedAttention,
    **options: Any,
) -> VisionTransformer:
    """Build a plain ViT of one of our sizes.

    Args:
        name: a key of `SIZES`.
        start: a key of `STARTS`.
        position_std: standard deviation of the learned position table at the start; None takes that of `start`.
        attention: class of the attention layers, with timm's keywords.
        options: keywords of timm's `VisionTransformer`; weight_init "" with the usual start begins blocks as timm does.
    """
    options = without_pretrained(name, options, "start it from a run of ours or from timm's ViTs of its size")
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    if position_std is not None and position_std < 0:
        raise UserError(f"position_std must not be negative, got {position_std}")
    student = timm.create_model(ARCHITECTURE, attn_layer=attention, **timm_arguments(name, options))
    assert isinstance(student, VisionTransformer)
    cheapen(student)
    std = STARTS[start](student)
    if student.pos_embed is not None:
        nn.init.normal_(student.pos_embed, std=std if position_std is None else position_std)
    return student


register(build, SIZES)


def build_sparse(name: str, pretrained: bool = False, **options: Any) -> VisionTransformer:
    """The network of that name without its ending, with sparse attention, by timm's habits; options as of `build`."""
    made = partial(build, name.removesuffix("_sparse"), attention=SparseAttention)
    return build_model_with_cfg(
        made, name, pretrained, feature_cfg={"out_indices": 3, "feature_cls": "getter"}, **options
    )


register(build_sparse, SPARSE, timm_config(32, fixed_input_size=True, first_conv="patch_embed.proj"))
