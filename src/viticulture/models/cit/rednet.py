# SPDX-License-Identifier: Apache-2.0
"""Involution, a separate kernel for every pixel, computed from that pixel and shared by channels; and RedNet, a ResNet
with involutions in place of its 3x3 convolutions, registered with timm.

Paper: Li et al., "Involution: Inverting the Inherence of Convolution for Visual Recognition", CVPR 2021,
arXiv:2103.06255. Teachers of Co-advise (arXiv:2106.12378); the stem of CiT (cit.py) has an involution, too. The product
with the neighborhoods, which takes little memory, is in cpu/involution.py. Recipes: recipes/co_advise/.

    rednet26, rednet38, rednet50, rednet101, rednet152

    timm.create_model("rednet26", num_classes=10, small_images=True)

A RedNet is timm's `ResNet`: features, feature maps, pooling and keywords (`channels`, `drop_path_rate`, ...) are that
class's. Equal to the authors' code, whose checkpoints load; unlike there, a stride need not divide the image, and this
runs in mixed precision.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.conv_bn_act import ConvNormAct
from timm.models import ResNet, build_model_with_cfg
from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from ...errors import UserError
from ..cpu.involution import involve
from ..registering import register, timm_config


class Involution(nn.Module):
    """Compute a kernel at every pixel from its channels, and apply it.

        kernels = W2 ReLU(BN(W1 pool(x))) + b,    y = involve(x, kernels)

    pool averages s x s pixels, W1 maps C to C / 4. Shape: [B, C, H, W] -> [B, C, H / s, W / s], rounded up.

    Args:
        channels: C, a multiple of group_width.
        kernel_size: K, odd.
        group_width: number of neighboring channels that share a kernel.
    """

    def __init__(self, channels: int, kernel_size: int = 7, stride: int = 1, group_width: int = 16) -> None:
        super().__init__()
        if channels % group_width:
            raise UserError(
                f"channels must be a multiple of an involution's group_width, got {channels} and {group_width}"
            )
        if kernel_size % 2 == 0:
            raise UserError(f"kernel_size of an involution must be odd, got {kernel_size}")
        self.groups, self.stride = channels // group_width, stride
        narrow = max(1, channels // 4)
        self.conv1 = ConvNormAct(channels, narrow, 1)
        self.conv2 = nn.Conv2d(narrow, kernel_size**2 * self.groups, 1)
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    def pool(self, x: Tensor) -> Tensor:
        """Average s x s pixels; at the lower and right edge the last pixels are repeated."""
        if self.stride == 1:
            return x
        down, right = -x.shape[2] % self.stride, -x.shape[3] % self.stride
        if down or right:
            x = F.pad(x, (0, right, 0, down), mode="replicate")
        return F.avg_pool2d(x, self.stride)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.conv2(self.conv1(self.pool(x)))
        return involve(x, torch.unflatten(kernels, 1, (self.groups, -1)), self.stride)


def stem(widths: tuple[int, int], stride: int = 2, in_chans: int = 3) -> nn.Sequential:
    """Build conv 3x3 with the stride, involution 3x3, conv 3x3, each with BN and ReLU: [B, 3, H, W] -> [B, D, ...]."""
    narrow, wide = widths
    return nn.Sequential(
        ConvNormAct(in_chans, narrow, 3, stride=stride),
        Involution(narrow, kernel_size=3),
        nn.BatchNorm2d(narrow),
        nn.ReLU(inplace=True),
        ConvNormAct(narrow, wide, 3),
    )


class RedBlock(Bottleneck):
    """ResNet's bottleneck with a 7x7 involution in the middle. Shape: [B, C, H, W] -> [B, 4 planes, H / s, W / s]."""

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None, **settings: Any
    ) -> None:
        super().__init__(inplanes, planes, stride, downsample, **settings)
        self.add_module("conv2", Involution(self.conv2.out_channels, kernel_size=7, stride=stride))


class RedNet(ResNet):
    """Stem with an involution, four stages of bottlenecks with involutions, mean over the image, linear head.

    Args:
        layers: blocks of the four stages.
        small_images: keep the resolution in the stem (no stride, no pooling), for images of about 32 pixels.
        stem_width: channels of the stem's first two layers; its output has twice as many.
        settings: keywords of timm's `ResNet`.
    """

    def __init__(
        self,
        layers: tuple[int, ...],
        small_images: bool = False,
        stem_width: int = 32,
        in_chans: int = 3,
        **settings: Any,
    ) -> None:
        block: Any = RedBlock
        super().__init__(block, layers, in_chans=in_chans, stem_type="deep", stem_width=stem_width, **settings)
        replaced = {"conv1": stem((stem_width, 2 * stem_width), 1 if small_images else 2, in_chans)}
        for name, layer in {**replaced, "bn1": nn.Identity(), "act1": nn.Identity()}.items():
            self.add_module(name, layer)
        if small_images:
            keep_resolution(self)
        self.init_weights(settings.get("zero_init_last", True))


def keep_resolution(net: ResNet) -> None:
    """Remove the pooling after a stem without stride: every map is four times larger (the stem's twice)."""
    net.add_module("maxpool", nn.Identity())
    stages: list[dict[str, Any]] = net.feature_info
    for stage in stages:
        stage["reduction"] = max(1, stage["reduction"] // 4)


def checkpoint_filter_fn(state: dict[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Return a checkpoint's weights, the authors' or ours, as the model names them."""
    weights: dict[str, Tensor] = state.get("state_dict", state)
    return {_name(key): weight for key, weight in weights.items()}


def _name(key: str) -> str:
    for prefix in ("module.", "backbone.", "model."):
        key = key.removeprefix(prefix)
    for theirs, ours in (("stem.", "conv1."), ("head.fc.", "fc."), ("classifier.", "fc.")):
        key = ours + key.removeprefix(theirs) if key.startswith(theirs) else key
    return key.replace("conv2.conv.", "conv2.")


LAYERS = {
    "rednet26": (1, 2, 4, 1),  #  9.2 M parameters, 1.7 G MACs
    "rednet38": (2, 3, 5, 2),  # 12.4 M, 2.2 G
    "rednet50": (3, 4, 6, 3),  # 15.5 M, 2.6 G
    "rednet101": (3, 4, 23, 3),  # 25.7 M, 4.7 G
    "rednet152": (3, 8, 36, 3),  # 34.0 M, 6.7 G
}
"""Blocks of the four stages."""


def create(variant: str, pretrained: bool = False, **settings: Any) -> RedNet:
    """Build a key of `LAYERS`, with keywords of `RedNet`."""
    return build_model_with_cfg(
        RedNet,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        **{"layers": LAYERS[variant], **settings},
    )


register(
    create,
    LAYERS,
    "involutions, no ViT; a teacher",
    timm_config(pool_size=(7, 7), crop_pct=0.875, interpolation="bilinear", first_conv="conv1.0.conv", classifier="fc"),
)
