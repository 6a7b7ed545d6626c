# SPDX-License-Identifier: Apache-2.0
"""Students without tokens that several teachers can teach: one linear head a teacher on shared features.

Paper: Ren et al., "Co-advise", CVPR 2022, arXiv:2106.12378, Table 4. How its ResNet-10 and Mixer-Ti were given to two
teachers is not said: `heads` 1 puts every teacher on the one head, `heads` 3 gives each its own beside the label's.

    resnet10        ResNet of one block a stage; small_images keeps the resolution in the stem
    mixer_tiny      Mixer of width 192 and depth 12, any image and patch size

    timm.create_model("resnet10", num_classes=100, small_images=True, heads=3)

They are timm's `ResNet` and `MlpMixer` with those classes' keywords.
"""

from typing import Any

from timm.models import MlpMixer, ResNet, build_model_with_cfg
from timm.models.resnet import BasicBlock
from torch import Tensor, nn

from ...errors import UserError
from ..registering import register, timm_config
from .cit import Inference, combine
from .rednet import keep_resolution

OPEN = ("mixer_tiny",)
"""Models that leave their patch to the data."""


class ClassifierHeads(nn.ModuleList):
    """Linear classifiers on the same features: all logits in training, the label's head first; else one answer.

    Args:
        heads: at least 2.
        features: length of the features.
        classes: length of the logits.
        inference: what answers in evaluation mode: the first head ("class") or their mean.
    """

    def __init__(self, heads: int, features: int, classes: int, inference: Inference) -> None:
        super().__init__(nn.Linear(features, classes) for _ in range(heads))
        self.inference = inference

    def forward(self, features: Tensor) -> Any:
        logits = tuple(head(features) for head in self)
        return logits if self.training else combine(logits, self.inference)


def _several(net: Any, name: str, heads: int, inference: Inference) -> None:
    """Put several heads in the place of one."""
    if heads < 1:
        raise UserError(f"heads must be at least 1, got {heads}")
    if inference not in ("class", "mean"):
        raise UserError(f"inference must be class or mean, got {inference!r}")
    if heads > 1 and net.num_classes:
        net.add_module(name, ClassifierHeads(heads, net.num_features, net.num_classes, inference))


class ManyHeadedResNet(ResNet):
    """A ResNet of basic blocks.

    Args:
        layers: blocks of the four stages.
        heads: linear heads: the label's and one a teacher.
        inference: what answers in evaluation mode: the label's head ("class") or the mean of all.
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
        _several(self, "fc", heads, inference)


class ManyHeadedMixer(MlpMixer):
    """A Mixer.

    Args:
        heads: linear heads: the label's and one a teacher.
        inference: what answers in evaluation mode: the label's head ("class") or the mean of all.
        settings: keywords of timm's `MlpMixer`.
    """

    def __init__(self, heads: int = 1, inference: Inference = "class", **settings: Any) -> None:
        super().__init__(**settings)
        _several(self, "head", heads, inference)


def head_switches(student: nn.Module) -> list[nn.Module]:
    """The modules whose own `training` decides whether a student answers with every head or with one."""
    inner: list[nn.Module] = [module for module in student.modules() if isinstance(module, ClassifierHeads)]
    return inner or ([student] if hasattr(student, "set_distilled_training") else [])


def every_head(student: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """The logits of all heads, [B, C] each, class token first, of a student in evaluation mode too.

    Nothing but its heads takes it for training: dropout and batch statistics stay as they are.
    """
    switches = head_switches(student)
    before = [module.training for module in switches]
    for module in switches:
        module.training = True
    try:
        logits: Tensor | tuple[Tensor, ...] = student(images)
    finally:
        for module, training in zip(switches, before, strict=True):
            module.training = training
    return (logits,) if isinstance(logits, Tensor) else tuple(logits)


PARTS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "resnet10": (ManyHeadedResNet, {"layers": (1, 1, 1, 1)}),
    "mixer_tiny": (ManyHeadedMixer, {"patch_size": 16, "num_blocks": 12, "embed_dim": 192}),
}
"""Name -> class and sizes."""


def create(variant: str, pretrained: bool = False, **settings: Any) -> nn.Module:
    """Build a model by timm's habits: a key of `PARTS`, and keywords of its class that go before its sizes."""
    made, sizes = PARTS[variant]
    return build_model_with_cfg(made, variant, pretrained, **{**sizes, **settings})


RESNET = timm_config(crop_pct=0.875, pool_size=(7, 7), first_conv="conv1", classifier="fc")
register(create, ["resnet10"], RESNET)
register(create, ["mixer_tiny"], timm_config(crop_pct=0.875, fixed_input_size=True, first_conv="stem.proj"))
