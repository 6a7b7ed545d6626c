# SPDX-License-Identifier: Apache-2.0
"""The agent CNNs of the Bootstrapping paper as students of their own, registered with timm.

    agent_small    width 288,  6 blocks of 9 heads, pre-norm, for ViT-S
    agent_base     width 384, 12 blocks of 6 heads, post-norm, for ViT-B

    timm.create_model("agent_small", num_classes=10, stem="plain")

Any image size; `img_size` changes nothing. Further keywords: those of `Sizes` and `AgentShape`, and `stem_width`.
agent_base halves its maps where the released configuration does. Table 7 has pool_after [1, 3], and the GFLOPs of
Table 1 belong to about [3, 9], those of agent_small to [1, 4].
"""

from dataclasses import fields, replace
from typing import Any

from timm.models import build_model_with_cfg

from ...errors import unknown
from ..registering import register, timm_config
from .agent_cnn import AgentCNN, AgentShape, Sizes

PAPER = {
    "agent_small": (Sizes(), AgentShape()),
    "agent_base": (
        Sizes(embed_dim=384, depth=12, num_heads=6, hidden=1536),
        AgentShape(norm="post", pool_after=[2, 8]),
    ),
}

SHAPE = {field.name for field in fields(AgentShape)}
SIZES = {field.name for field in fields(Sizes)} - SHAPE  # both have a dropout, and the shape's goes before the ViT's
OTHERS = {"num_classes", "in_chans", "stem_width", "img_size"}


def create(variant: str, pretrained: bool = False, **settings: Any) -> AgentCNN:
    """Build a model by timm's habits. `settings`: see above; `stem` plain takes the pools away unless it names some."""

    def build(**keywords: Any) -> AgentCNN:
        for keyword in keywords.keys() - {*SIZES, *SHAPE, *OTHERS}:
            raise unknown(f"setting of {variant}", keyword, {*SIZES, *SHAPE, *OTHERS})
        keywords.pop("img_size", None)
        sizes, shape = PAPER[variant]
        sizes = replace(sizes, **{name: keywords.pop(name) for name in SIZES & keywords.keys()})
        if keywords.get("stem") == "plain":
            keywords.setdefault("pool_after", None)
        shape = replace(shape, **{name: keywords.pop(name) for name in SHAPE & keywords.keys()})
        return AgentCNN(sizes, shape, **keywords)

    return build_model_with_cfg(
        build,
        variant,
        pretrained,
        feature_cfg={"out_indices": 3, "feature_cls": "hook"},
        **settings,
    )


register(create, PAPER, timm_config())
