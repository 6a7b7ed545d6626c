# SPDX-License-Identifier: Apache-2.0
"""Hybrid ViTs: residual convolutions down to patches, then a ViT; the most accurate of our students for their time.

    hybrid_nano    width 256, 2 blocks of 8 heads      hybrid_micro   width 256, 4 blocks of 8 heads

Convolutions respond to edges and textures from the first step on, where a ViT has to learn from many images that
neighbors belong together; attention covers the whole image where only few pixels are left. Dosovitskiy et al., "An
Image is Worth 16x16 Words", ICLR 2021, arXiv:2010.11929 (R + ViT); Xiao et al., "Early Convolutions Help Transformers
See Better", NeurIPS 2021, arXiv:2106.14881; Dai et al., "CoAtNet", NeurIPS 2021, arXiv:2106.04803. Sizes are ours,
chosen for what a processor computes in a certain time (benchmarks/log).

    timm.create_model("hybrid_nano", patch_size=8, img_size=64, num_classes=10)

The network is timm's `VisionTransformer` with that class's keywords; the patch is 2, 4, 8, ... pixels. Every block
attends between all patches. The last layer of every residual branch is initialized to zero, so the network starts as a
linear map of a shallow one.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from timm.models import VisionTransformer, build_model_with_cfg
from torch import Tensor, nn

from ...errors import UserError
from ..cpu.convolution import conv3x3
from ..registering import FEATURES, register, timm_config
from .attention import DroppedAttention
from .patches import ConvolutionalEmbed, PatchGrid, halving_widths

MIN_PATCHES = 4  # on a side of the image; smaller structures are left to the convolutions


class Convolution(nn.Conv2d):
    """3x3 convolution, a border of zeros, no bias, as a norm follows. [B, C, H, W] -> [B, D, H / stride, W / stride].

    Args:
        width: C.
        wider: D.
        stride: 1, or 2 for an even height and width.
    """

    def __init__(self, width: int, wider: int, stride: int = 1) -> None:
        super().__init__(width, wider, kernel_size=3, stride=stride, padding=1, bias=False)
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return conv3x3(x, self.weight, self.stride[0])


class Residual(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))), 3x3 kernels; the second norm's scale starts at zero.

    Shape: [B, C, H, W] -> [B, C, H, W]. He et al., "Deep Residual Learning", CVPR 2016.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = Convolution(width, width), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = Convolution(width, width), nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(y)).add_(x))


class ResidualEmbed(ConvolutionalEmbed):
    """Halve the image until a pixel is a patch; residual blocks follow the halvings in between.

        [conv 3x3, stride 2 -> norm -> ReLU -> residual blocks], once a halving; none after the last

    The last halving has width D, each before it half of the next. Shape: [B, 3, H, W] -> [B, N, D]. Keywords as of
    timm's `PatchEmbed`, of which others than these are ignored.

    Args:
        img_size: height and width, pixels, multiples of the patch size.
        patch_size: P, a power of two.
        embed_dim: D, a multiple of P / 2.
        residual_blocks: number after each halving but the last, from the last but one backwards; then zero.
    """

    def __init__(
        self,
        img_size: int | PatchGrid,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        residual_blocks: Sequence[int] = (1, 1),
        **_: Any,
    ) -> None:
        widths = halving_widths(in_chans, embed_dim, patch_size)
        super().__init__(img_size, patch_size)
        halvings = len(widths) - 1
        blocks = [0, *residual_blocks, *[0] * halvings][:halvings][::-1]
        layers: list[nn.Module] = []
        for (width, wider), count in zip(pairwise(widths), blocks, strict=True):
            layers += [Convolution(width, wider, stride=2), nn.BatchNorm2d(wider), nn.ReLU(inplace=True)]
            layers += [Residual(wider) for _ in range(count)]
        self.stages = nn.Sequential(*layers)

    def tokens(self, images: Tensor) -> Tensor:
        return self.stages(images).flatten(2).mT


class HybridViT(VisionTransformer):
    """timm's ViT after `ResidualEmbed`.

    Args:
        residual_blocks: of `ResidualEmbed`.
        position_std: initial standard deviation of the learned position table.
        settings: keywords of timm's `VisionTransformer`.
    """

    def __init__(self, residual_blocks: Sequence[int] = (1, 1), position_std: float = 0.02, **settings: Any) -> None:
        for key in settings.keys() & {"embed_layer", "attn_layer", "dynamic_img_size"}:
            raise UserError(f"a hybrid ViT decides {key} itself, got {settings[key]!r}; leave it out")
        embed = partial(ResidualEmbed, residual_blocks=tuple(residual_blocks))
        super().__init__(embed_layer=embed, attn_layer=DroppedAttention, **settings)
        if not self.num_prefix_tokens:  # timm would slice off zero tokens by an operation that Core ML lacks
            self.pool_include_prefix = True
        for name, layer in self.blocks.named_modules():
            if isinstance(layer, nn.Linear) and name.endswith((".attn.proj", ".mlp.fc2")):
                nn.init.zeros_(layer.weight)
        if self.pos_embed is not None:
            nn.init.normal_(self.pos_embed, std=position_std)


SIZES: dict[str, dict[str, Any]] = {
    "hybrid_nano": {"embed_dim": 256, "depth": 2, "num_heads": 8, "mlp_ratio": 2},
    "hybrid_micro": {"embed_dim": 256, "depth": 4, "num_heads": 8, "mlp_ratio": 2},
}


def four_patches(image_size: tuple[int, int]) -> int:
    """Return the largest patch size up to 32, a power of two, that tiles the image into at least 4 x 4 patches, else 2.

    For 32 pixels patches of 8, for 64 and 96 patches of 16, for 128 and more (multiples of 32) patches of 32.
    """
    fitting = (p for p in (32, 16, 8, 4) if all(side % p == 0 and side >= MIN_PATCHES * p for side in image_size))
    return next(fitting, 2)


def create(variant: str, pretrained: bool = False, **settings: Any) -> HybridViT:
    """Build a key of `SIZES`; keywords of `HybridViT` override its sizes."""
    return build_model_with_cfg(
        HybridViT,
        variant,
        pretrained,
        feature_cfg={**FEATURES},
        **{"img_size": 32, "patch_size": 8, "class_token": False, "global_pool": "avg", **SIZES[variant], **settings},
    )


register(
    create,
    SIZES,
    "convolutions, then a few blocks; trains fast",
    timm_config(32, fixed_input_size=True, first_conv="patch_embed.stages.0"),
    fitting_patch=four_patches,
    hybrid=True,
)
