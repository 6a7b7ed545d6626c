# SPDX-License-Identifier: Apache-2.0
"""CiT: a ViT with one token per teacher next to the class token, each with its own head.

Paper: Ren et al., "Co-advise: Cross Inductive Bias Distillation", CVPR 2022, arXiv:2106.12378. The guide that trains
the tokens: guides/co_advise.py. Recipes: recipes/co_advise/.

    cit_tiny, cit_small                        trained tokens, patches as in any ViT
    cit_tiny_aligned, cit_small_aligned        a convolution and an involution stem compute patches and tokens

    timm.create_model("cit_tiny", img_size=32, patch_size=4, tokens=3)

A CiT is timm's `VisionTransformer` with that class's keywords. The aligned models equal the authors' code, whose
checkpoints load; the others are described in the paper alone. Deviations: `inference` chooses the prediction in
evaluation mode, the class token's (paper) or the mean of all heads (code); stems fit any even patch size.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.models import VisionTransformer, build_model_with_cfg
from torch import Tensor, nn

from ...errors import UserError, unknown
from ..heads import Inference, check_inference, combine
from ..registering import FEATURES, eight_patches, register, timm_config
from ..vit.attention import DroppedAttention
from ..vit.patches import ConvolutionalEmbed, PatchGrid
from . import rednet


def convolutions(width: int, in_chans: int = 3) -> nn.Sequential:
    """The convolution stem: 7x7 with stride 2, then twice 3x3, with BN and ReLU."""
    layers: list[nn.Module] = []
    for channels, kernel_size, stride in ((in_chans, 7, 2), (width, 3, 1), (width, 3, 1)):
        conv = nn.Conv2d(channels, width, kernel_size, stride, kernel_size // 2, bias=False)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def involutions(width: int, in_chans: int = 3) -> nn.Sequential:
    """The involution stem, RedNet's, with half the width, at least one group, in its first two layers."""
    return rednet.stem((max(16, width // 2), width), 2, in_chans)


STEMS = {"conv": convolutions, "inv": involutions}


class Stem(nn.Module):
    """A stem and a linear map of its squares: [B, 3, H, W] -> tokens [B, N, D], one for each patch of P x P pixels.

    Args:
        body: halves the image, [B, 3, H, W] -> [B, width, H / 2, W / 2].
        width: of the body's output.
        patch_size: P, even.
        embed_dim: D.
    """

    def __init__(self, body: nn.Module, width: int, patch_size: int, embed_dim: int) -> None:
        super().__init__()
        self.body = body
        self.proj = nn.Conv2d(width, embed_dim, patch_size // 2, patch_size // 2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.body(images)).flatten(2).mT


class AlignedEmbed(ConvolutionalEmbed):
    """Patches summed over several stems, and before them one token per stem that keeps its inductive bias.

        x_k = stem_k(images)                       [B, N, D], k = 1..K
        token_k = mean over patches of x_k         Sec. 3.2
        patches = sum over k of x_k                as in the authors' code

    Shape: [B, 3, H, W] -> [B, K + N, D]. Keywords as of timm's `PatchEmbed`, of which others than these are ignored.

    Args:
        img_size: height and width, pixels, multiples of the patch size.
        patch_size: P, even.
        embed_dim: D.
        stems: keys of `STEMS`, in the order of their tokens.
        stem_width: channels of a stem's output.
    """

    def __init__(
        self,
        img_size: int | PatchGrid,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        stems: Sequence[str] = ("conv", "inv"),
        stem_width: int = 64,
        **_: Any,
    ) -> None:
        if patch_size % 2:
            raise UserError(f"patch_size of aligned tokens must be even, since stems halve the image, got {patch_size}")
        super().__init__(img_size, patch_size)
        self.stems = nn.ModuleDict()
        for name in stems:
            if name not in STEMS:
                raise unknown("stem", name, STEMS)
            self.stems[name] = Stem(STEMS[name](stem_width, in_chans), stem_width, patch_size, embed_dim)

    def tokens(self, images: Tensor) -> Tensor:
        maps = [stem(images) for stem in self.stems.values()]
        tokens = [patches.mean(1, keepdim=True) for patches in maps]
        return torch.cat([*tokens, torch.stack(maps).sum(0)], dim=1)


class CiT(VisionTransformer):
    """A ViT whose prefix is the class token and K teacher tokens, with K + 1 linear heads.

    Returns K + 1 logits, class token first, while it trains and `set_distilled_training` is on; else one prediction.

    Args:
        tokens: K, the number of learned, randomly initialized tokens; None is 2, or one per stem.
        stems: instead, one token per stem, of "conv" and "inv", and patches from the same stems.
        inference: prediction in evaluation mode.
        position_std: initial standard deviation of the learned position table.
        stem_width: channels of a stem's output.
        settings: keywords of timm's `VisionTransformer`.
    """

    def __init__(
        self,
        tokens: int | None = None,
        stems: Sequence[str] = (),
        inference: Inference = "class",
        position_std: float = 0.02,
        stem_width: int = 64,
        **settings: Any,
    ) -> None:
        check_inference(inference)
        if tokens is not None and (stems or tokens < 1):
            raise UserError(
                f"tokens must be at least 1, and left out where stems give one each, got {tokens} and {list(stems)}"
            )
        for key in settings.keys() & {"reg_tokens", "class_token", "embed_layer", "global_pool", "dynamic_img_size"}:
            raise UserError(f"CiT decides {key} itself, got {settings[key]!r}; leave it out")
        count = len(stems) or (2 if tokens is None else tokens)
        if stems:
            settings["embed_layer"] = partial(AlignedEmbed, stems=tuple(stems), stem_width=stem_width)
        super().__init__(reg_tokens=count, **{"attn_layer": DroppedAttention, **settings})
        self.inference, self.distilled_training = inference, False
        self.heads = nn.ModuleList(nn.Identity() for _ in range(count))
        self.reset_classifier(self.num_classes)
        for token in (self.cls_token, self.reg_token, self.pos_embed):
            assert token is not None
            nn.init.trunc_normal_(token, std=0.02)
            if token is self.pos_embed and position_std != 0.02:
                nn.init.normal_(token, std=position_std)
        if stems:
            self.reg_token = None  # `AlignedEmbed` computes the tokens

    def set_distilled_training(self, enable: bool = True) -> None:
        self.distilled_training = enable

    def get_classifier(self) -> tuple[nn.Module, ...]:
        return self.head, *self.heads

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool not in (None, "", "token"):
            raise UserError(f"CiT reads its tokens; global_pool must be 'token', got {global_pool!r}")
        self.num_classes = num_classes
        self.add_module("head", self._classifier())
        for k in range(len(self.heads)):
            self.heads[k] = self._classifier()

    def _classifier(self) -> nn.Module:
        if not self.num_classes:
            return nn.Identity()
        like = self.norm.weight
        head = nn.Linear(self.embed_dim, self.num_classes, device=like.device, dtype=like.dtype)
        nn.init.trunc_normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        return head

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Any:
        prefix = self.head_drop(x[:, : self.num_prefix_tokens]).unbind(1)
        if pre_logits:
            return combine(prefix, self.inference)
        logits = tuple(head(token) for head, token in zip(self.get_classifier(), prefix, strict=True))
        return logits if self.distilled_training and self.training else combine(logits, self.inference)


def checkpoint_filter_fn(state: dict[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Return a checkpoint's weights, the authors' or ours, as the model names them."""
    weights: dict[str, Tensor] = state.get("model", state)
    return {_name(key): weight for key, weight in weights.items()}


def _name(key: str) -> str:
    for theirs, ours in (
        ("conv_embed.conv.", "patch_embed.stems.conv.body."),
        ("inv_embed.stem.", "patch_embed.stems.inv.body."),
        ("conv_embed.", "patch_embed.stems.conv."),
        ("inv_embed.", "patch_embed.stems.inv."),
        ("head_conv.", "heads.0."),
        ("head_inv.", "heads.1."),
    ):
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs).replace("conv2.conv.", "conv2.")
    return key


TINY = {"embed_dim": 192, "depth": 12, "num_heads": 3}
SMALL = {"embed_dim": 384, "depth": 12, "num_heads": 6}
ALIGNED = {"stems": ("conv", "inv")}

SIZES: dict[str, dict[str, Any]] = {
    "cit_tiny": TINY,
    "cit_small": SMALL,
    "cit_tiny_aligned": TINY | ALIGNED,
    "cit_small_aligned": SMALL | ALIGNED,
}


def create(variant: str, pretrained: bool = False, **settings: Any) -> CiT:
    """Build a key of `SIZES`; keywords of `CiT` override its sizes."""
    return build_model_with_cfg(
        CiT,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={**FEATURES},
        **{**SIZES[variant], **settings},
    )


register(
    create,
    SIZES,
    "ViT with a token per teacher",
    timm_config(fixed_input_size=True, classifier=("head", "heads.0", "heads.1")),
    fitting_patch=eight_patches,
)
