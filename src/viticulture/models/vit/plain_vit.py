# SPDX-License-Identifier: Apache-2.0
"""Small plain ViTs for little data: timm's `VisionTransformer` in smaller sizes, initialized differently.

    vit_nano    width  64,  4 blocks of 8 heads      vit_tiny   width 192, 12 blocks of 3 heads (DeiT-Ti)
    vit_micro   width 128,  6 blocks of 4 heads      vit_small  width 288,  6 blocks of 9 heads, dropout [1]
    vit_mini    width 192,  9 blocks of 3 heads      vit_base   width 384, 12 blocks of 6 heads (DeiT-S) [1]

    vit_small_sparse, vit_base_sparse: the same with entmax for a softmax (sparse_attention.py) [1]
    vit_mini_local: shifted patches and locality self-attention, which give a sense of neighborhood [2]

Any image and patch size. Every keyword of timm's class is accepted. The network *is* timm's: same code, same fused
attention, same state-dict keys, and exported files name a timm architecture with these sizes as its arguments, so that
`timm.create_model("local-dir:FOLDER")` builds it without this package. Only dropout is drawn more cheaply on a CPU
(cpu/dropout.py). The sparse and local ones alone need this package to be imported.

Deviation from timm in the initial weights only, see `STARTS`. By default blocks are Xavier-uniform (with q, k and v as
separate matrices) and the position table is drawn wide enough to matter. timm's table, of std 0.02, is drowned by the
patches, and a ViT trained on few images hardly learns where things are: 73 instead of 93 % on 200 digits.

[1] Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552, with dropout, LayerNorm's epsilon and initial weights as in the authors' code.
[2] Lee, Lee and Song, "Vision Transformer for Small-Size Datasets", 2021, arXiv:2112.13492.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.drop import DropPath
from timm.models import VisionTransformer, build_model_with_cfg
from torch import Tensor, nn

from ...errors import UserError, unknown
from ..cpu.dropout import replace_dropout
from ..registering import FEATURES, eight_patches, register, reject_pretrained, timm_config
from .attention import DroppedAttention
from .patches import ConvolutionalEmbed, PatchGrid, patchify
from .sparse_attention import FreeSparseAttention, SparseAttention


class ShiftedPatchEmbed(ConvolutionalEmbed):
    """Embed each patch with the same patch of the image shifted by half a patch to the four diagonals, Eq. (2) to (4).

        S(x) = LN(P([x, s_1(x), ..., s_4(x)])) E,    P cuts patches of 5 C p p values; shifts fill with zeros

    Shape: [B, C, H, W] -> [B, N, D]. Keywords as of timm's `PatchEmbed`, of which others than these are ignored.

    Args:
        img_size: height and width, pixels, multiples of the patch size.
        patch_size: P, even.
        in_chans: C.
        embed_dim: D.
    """

    def __init__(self, img_size: int | PatchGrid, patch_size: int, in_chans: int, embed_dim: int, **_: Any) -> None:
        super().__init__(img_size, patch_size)
        values = 5 * in_chans * patch_size**2
        self.norm, self.proj = nn.LayerNorm(values), nn.Linear(values, embed_dim)

    def tokens(self, images: Tensor) -> Tensor:
        height, width = self.img_size
        shift = self.patch_size[0] // 2
        wide = F.pad(images, (shift,) * 4)
        shifted = [wide[..., y : y + height, x : x + width] for y in (0, 2 * shift) for x in (0, 2 * shift)]
        return self.proj(self.norm(patchify(torch.cat([images, *shifted], 1), self.patch_size)))


class LocalAttention(Attention):
    """timm's attention in which no token attends to itself, with a trained temperature, Eq. (7) and (8).

        L(x) = softmax(M(q k^T) / tau) v,    M sets the diagonal to -inf

    As in the authors' code there is one temperature for each head, and the parameter is 1 / tau, initially d^-0.5.
    Shape: [B, T, D] -> [B, T, D].
    """

    def __init__(self, dim: int, num_heads: int = 8, **settings: Any) -> None:
        super().__init__(dim, num_heads, **settings)
        self.inverse_temperature = nn.Parameter(torch.full((num_heads, 1, 1), self.scale))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise NotImplementedError("locality self-attention supports no masks but its own")
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x [B, h, T, d]
        q, k = self.q_norm(q), self.k_norm(k)
        scores = (q * self.inverse_temperature.to(q.dtype)) @ k.mT  # [B, h, T, T]
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        probabilities = scores.masked_fill(itself, -torch.inf).softmax(-1)
        out = self.attn_drop(probabilities) @ v
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))


ARCHITECTURE = "vit_base_patch16_clip_224"
"""Any of timm's plain ViTs would do, as every size is overridden; this one's LayerNorm adds 1e-5, which no keyword of
timm's can set. Its norm before the blocks is turned off."""

EPSILON_1E6 = {"norm_layer": "layernorm"}  # timm's name for a LayerNorm that adds 1e-6

SIZES: dict[str, dict[str, Any]] = {
    "vit_nano": {"embed_dim": 64, "depth": 4, "num_heads": 8, **EPSILON_1E6},
    "vit_micro": {"embed_dim": 128, "depth": 6, "num_heads": 4, **EPSILON_1E6},
    "vit_mini": {"embed_dim": 192, "depth": 9, "num_heads": 3, **EPSILON_1E6},
    "vit_tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3, **EPSILON_1E6},
    "vit_small": {"embed_dim": 288, "depth": 6, "num_heads": 9, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1},
    "vit_base": {"embed_dim": 384, "depth": 12, "num_heads": 6, **EPSILON_1E6},
}


def usual(student: VisionTransformer) -> float:
    """Keep timm's weights; positions of std 0.5."""
    return 0.5


def published(student: VisionTransformer) -> float:
    """Initialize as the authors' code of [1] does; positions of std 0.02.

    Patches N(0, 1); class token N(0, 0.02^2); q, k and v Xavier-uniform as one matrix; biases of the MLP N(1e-6, 1),
    where the authors meant a standard deviation of 1e-6; all else Xavier-uniform, biases 0; the head as in PyTorch.
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


def xavier_normal(student: VisionTransformer) -> float:
    """Initialize as the authors' code of [2]: matrices Xavier-normal, biases 0, class token and positions N(0, 1)."""
    for layer in student.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_normal_(layer.weight.flatten(1))  # a view; patches are embedded by a matrix
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    if student.cls_token is not None:
        nn.init.normal_(student.cls_token)
    return 1.0


STARTS: dict[str, Callable[[VisionTransformer], float]] = {
    "usual": usual,
    "published": published,
    "xavier_normal": xavier_normal,
}
"""Initialize weights in place, and return the standard deviation of the position table that goes with it."""


def timm_form(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return timm's architecture and the arguments that build the same network, with other weights."""
    defaults = {"img_size": 32, "patch_size": 4, "weight_init": "moco", "pre_norm": False, **SIZES[name]}
    ours = ("position_std", "start", "constant_drop_path")  # unknown to timm
    return ARCHITECTURE, defaults | {key: value for key, value in options.items() if key not in ours}


def build(
    name: str,
    start: str = "usual",
    position_std: float | None = None,
    constant_drop_path: bool = False,
    attention: type[nn.Module] = DroppedAttention,
    **options: Any,
) -> VisionTransformer:
    """Build a plain ViT of one of `SIZES`.

    Args:
        start: a key of `STARTS`.
        position_std: initial standard deviation of the learned position table; None takes that of `start`.
        constant_drop_path: drop_path_rate is that of every block, as in [2]'s code, not of the last one alone.
        attention: class of the attention layers, with timm's keywords.
        options: keywords of timm's `VisionTransformer`; weight_init "" with the usual start keeps timm's default.
    """
    options = reject_pretrained(name, options, "start it from a run of ours or from timm's ViTs of its size")
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    if position_std is not None and position_std < 0:
        raise UserError(f"position_std must not be negative, got {position_std}")
    architecture, arguments = timm_form(name, options)
    student = timm.create_model(architecture, attn_layer=attention, **arguments)
    assert isinstance(student, VisionTransformer)
    replace_dropout(student)
    for block in student.blocks if constant_drop_path else ():
        block.drop_path1, block.drop_path2 = (DropPath(options.get("drop_path_rate", 0.0)) for _ in range(2))
    std = STARTS[start](student)
    if student.pos_embed is not None:
        nn.init.normal_(student.pos_embed, std=std if position_std is None else position_std)
    return student


def build_sparse(name: str, pretrained: bool = False, free_alpha: bool = False, **options: Any) -> VisionTransformer:
    """Build the network named without its ending, with sparse attention; options as for `build`. `free_alpha`: alpha is
    unbounded and decays to 0, as in the authors' code.
    """
    attention = FreeSparseAttention if free_alpha else SparseAttention
    sparse = partial(build, name.removesuffix("_sparse"), attention=attention)
    return build_model_with_cfg(sparse, name, pretrained, feature_cfg={**FEATURES}, **options)


def build_local(
    name: str, pretrained: bool = False, shifted_patches: bool = True, local_attention: bool = True, **options: Any
) -> VisionTransformer:
    """Build the network named without its ending, with the parts of [2]; further options as for `build`.

    Args:
        shifted_patches: embed patches with shifted ones (SPT).
        local_attention: no token attends to itself, with a trained temperature (LSA).
    """
    if shifted_patches:
        options["embed_layer"] = ShiftedPatchEmbed
    attention = LocalAttention if local_attention else DroppedAttention
    local = partial(build, name.removesuffix("_local"), attention=attention)
    student = build_model_with_cfg(local, name, pretrained, feature_cfg={**FEATURES}, **options)
    if local_attention and student.patch_embed.num_patches + student.num_prefix_tokens < 2:
        raise UserError(
            f"no token of {name} attends to itself, and an image is a single one; take smaller patches, or "
            "local_attention false"
        )
    return student


register(build, SIZES, "plain ViT", fitting_patch=eight_patches, timm_form=timm_form)
for create, names in ((build_sparse, ["vit_small_sparse", "vit_base_sparse"]), (build_local, ["vit_mini_local"])):
    register(
        create,
        names,
        "plain ViT",
        timm_config(32, fixed_input_size=True, first_conv="patch_embed.proj"),
        fitting_patch=eight_patches,
    )
