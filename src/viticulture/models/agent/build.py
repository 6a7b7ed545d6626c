# SPDX-License-Identifier: Apache-2.0
"""The agent CNNs of the Bootstrapping paper under timm names, and an agent in the sizes of any ViT.

    agent_small    width 288,  6 blocks of 9 heads, pre-norm, for ViT-S
    agent_base     width 384, 12 blocks of 6 heads, post-norm, for ViT-B

    timm.create_model("agent_small", num_classes=10, stem="plain")

Any image size; `img_size` has no effect. Further keywords: those of `Sizes` and `AgentShape`, and `stem_width`.
agent_base halves its maps where the released configuration does. Table 7 has pool_after [1, 3], and the GFLOPs of
Table 1 belong to about [3, 9], those of agent_small to [1, 4].
"""

from dataclasses import fields, replace
from typing import Any

from timm.models import build_model_with_cfg
from torch import nn

from ...errors import UserError, unknown
from ..data_spec import DataSpec
from ..registering import register, timm_config
from .agent_cnn import AgentCNN, AgentShape, PlainStem, Sizes

PAPER = {
    "agent_small": (Sizes(), AgentShape()),
    "agent_base": (
        Sizes(embed_dim=384, depth=12, num_heads=6, hidden=1536),
        AgentShape(norm="post", pool_after=[2, 8]),
    ),
}
SHAPE = {field.name for field in fields(AgentShape)}
SIZES = {field.name for field in fields(Sizes)} - SHAPE  # both have a dropout, and the shape's takes precedence
OTHERS = {"num_classes", "in_chans", "stem_width", "img_size"}


def create(variant: str, pretrained: bool = False, **settings: Any) -> AgentCNN:
    """Build a key of `PAPER`; keywords see above. A plain stem has no pools unless `pool_after` names some."""

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
        build, variant, pretrained, feature_cfg={"out_indices": 3, "feature_cls": "hook"}, **settings
    )


register(create, PAPER, "CNN, no ViT; a guide", timm_config())


def sizes_of(student: nn.Module) -> Sizes:
    """Read a ViT's sizes for its agent: ours, DHVT, or any of timm's that keeps one width and one grid.

    Raises: UserError for other networks.
    """
    vit: Any = student
    try:
        mlp, dim = vit.blocks[0].mlp, vit.embed_dim
        patch = vit.feature_info[0]["reduction"]
        (last, *_) = (layer for layer in mlp.modules() if isinstance(layer, nn.Linear) and layer.out_features == dim)
        sizes = Sizes(patch, dim, len(vit.blocks), vit.blocks[0].attn.num_heads, last.in_features, rate_of(mlp))
    except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"an agent is made from a ViT whose blocks hold attention and MLP, on one grid; {type(student).__name__} "
            "is none"
        ) from error
    if not isinstance(patch, int):
        raise UserError(f"an agent needs square patches, the student's have {patch[0]}x{patch[1]} pixels")
    return sizes


def rate_of(layer: nn.Module) -> float:
    """Return the dropout rate of an MLP or attention layer: that of its first dropout module, else 0."""
    return next((float(part.p) for part in layer.modules() if isinstance(part, nn.Dropout)), 0.0)


def agent_for(student: nn.Module, data_spec: DataSpec, shape: AgentShape = AgentShape()) -> AgentCNN:
    """Build an agent with separate weights in a ViT's width, depth, heads and patches ("joint" training)."""
    sizes = sizes_of(student)
    agent = AgentCNN(sizes, shape, in_chans=data_spec.channels, num_classes=len(data_spec.classes))
    check_maps(agent, sizes, data_spec)
    return agent


def check_maps(agent: AgentCNN, sizes: Sizes, data_spec: DataSpec) -> None:
    """Check that every map halves evenly, and that its area divides the student's number of patches or the reverse.

    Raises: UserError naming the map and what to change.
    """
    rows, columns = (-(-side // sizes.patch_size) for side in data_spec.image_size)
    pixels = agent.feature_info[0]["reduction"]
    crops = isinstance(agent.stem, PlainStem)  # pixels that fill no patch
    height, width = (side // pixels if crops else -(-side // pixels) for side in data_spec.image_size)
    for block in range(sizes.depth):
        shorter, longer = sorted((rows * columns, height * width))
        if not shorter or longer % shorter:
            raise UserError(
                f"the agent's map of {height}x{width} in block {block} and the student's {rows}x{columns} tokens must "
                f"divide one another; take an image size that is a multiple of {sizes.patch_size} pixels"
            )
        if block in agent.pool_after:
            if height % 2 or width % 2:
                fitting = sorted(pool for pool in agent.pool_after if pool < block)
                raise UserError(
                    f"the agent's map of {height}x{width} behind block {block} cannot be halved; "
                    f"set pool_after to {fitting}, or take larger images or smaller patches"
                )
            height, width = height // 2, width // 2
