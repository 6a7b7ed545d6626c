# SPDX-License-Identifier: Apache-2.0
"""Students without tokens for several teachers: one linear head per teacher on the same features.

Paper: Ren et al., "Co-advise", CVPR 2022, arXiv:2106.12378, Table 4. It does not say how its ResNet-10 and Mixer-Ti use
two teachers: `heads` 1 trains the one head with every teacher, `heads` 3 adds one per teacher to the label's.

    resnet10        ResNet of one block a stage; small_images keeps the resolution in the stem
    mixer_tiny      Mixer of width 192 and depth 12, any image and patch size

    timm.create_model("resnet10", num_classes=100, small_images=True, heads=3)

They are timm's `ResNet` and `MlpMixer` with those classes' keywords.
"""

from typing import Any

from timm.models import MlpMixer, ResNet, build_model_with_cfg
from timm.models.resnet import BasicBlock
from torch import nn

from ...errors import UserError
from ..heads import ClassifierHeads, Inference, check_inference
from ..registering import eight_patches, register, timm_config
from .rednet import keep_resolution


def _replace_head(net: Any, name: str, heads: int, inference: Inference) -> None:
    if heads < 1:
        raise UserError(f"heads must be at least 1, got {heads}")
    check_inference(inference)
    if heads > 1 and net.num_classes:
        net.add_module(name, ClassifierHeads(heads, net.num_features, net.num_classes, inference))


class ManyHeadedResNet(ResNet):
    """A ResNet of basic blocks.

    Args:
        layers: blocks of the four stages.
        heads: linear heads: the label's and one per teacher.
        inference: prediction in evaluation mode.
        small_images: 3x3 stem without stride or pooling, for images of about 32 pixels.
        settings: keywords of timm's `ResNet`.
    """

    def __init__(
        self,
        layers: tuple[int, ...],
        heads: int = 1,
        inference: Inference = "class",
        small_images: bool = False,
        **settings: Any,
    ) -> None:
        block: Any = BasicBlock
        super().__init__(block, layers, **settings)
        if small_images:
            width: Any = self.bn1.num_features
            conv = nn.Conv2d(settings.get("in_chans", 3), width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            self.add_module("conv1", conv)
            keep_resolution(self)
        _replace_head(self, "fc", heads, inference)


class ManyHeadedMixer(MlpMixer):
    """A Mixer; `heads` and `inference` as of `ManyHeadedResNet`, settings are keywords of timm's `MlpMixer`."""

    def __init__(self, heads: int = 1, inference: Inference = "class", **settings: Any) -> None:
        super().__init__(**settings)
        _replace_head(self, "head", heads, inference)


PARTS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "resnet10": (ManyHeadedResNet, {"layers": (1, 1, 1, 1)}),
    "mixer_tiny": (ManyHeadedMixer, {"patch_size": 16, "num_blocks": 12, "embed_dim": 192}),
}
"""Name -> class and sizes."""


def create(variant: str, pretrained: bool = False, **settings: Any) -> nn.Module:
    """Build a key of `PARTS`; keywords of its class override its sizes."""
    network, sizes = PARTS[variant]
    return build_model_with_cfg(network, variant, pretrained, **{**sizes, **settings})


PURPOSE = "no ViT; may have a head per teacher"
register(
    create, ["resnet10"], PURPOSE, timm_config(crop_pct=0.875, pool_size=(7, 7), first_conv="conv1", classifier="fc")
)
register(
    create,
    ["mixer_tiny"],
    PURPOSE,
    timm_config(crop_pct=0.875, fixed_input_size=True, first_conv="stem.proj"),
    fitting_patch=eight_patches,
)
