# SPDX-License-Identifier: Apache-2.0
"""Names and shapes of the Bootstrapping ViTs code, converted to ours: weights, statistics and gradients."""

import re

from torch import Tensor

from viticulture.models.agent.agent_cnn import by_own_names as agent

Arrays = dict[str, Tensor]

VIT = (
    (r"^pos_embed\.pos_embed$", "pos_embed"),
    (r"^transformer\.layers\.", "blocks."),
    (r"^transformer\.norm\.", "norm."),
    (r"\.attention\.linear_qkv\.", ".attn.qkv."),
    (r"\.attention\.linear_out\.", ".attn.proj."),
    (r"\.mlp\.linear(\d)\.", r".mlp.fc\1."),
    (r"^cls_head\.", "head."),
)
LENT = (
    (r"^layers\.(\d+)\.cnn_block\.mhsa\.", r"transformer.layers.\1.attention."),
    (r"^layers\.(\d+)\.mlp_block\.(?=linear)", r"transformer.layers.\1.mlp."),
)


def vit(arrays: Arrays) -> Arrays:
    """Convert arrays of their ViT to timm's `VisionTransformer`."""
    return {renamed(name, VIT): x.transpose(0, 1) if name.startswith("pos_embed") else x for name, x in arrays.items()}


def both(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Convert arrays of a joint or shared model to (student's, agent's); shared ones are the student's."""
    student, rest = {}, {}
    for name, x in arrays.items():
        part, _, name = name.removeprefix("models.").partition(".")
        lent = renamed(name, LENT)
        if part == "vit" or lent != name:
            student[lent] = x
        else:
            rest[name] = x
    return vit(student), agent(rest)


def renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, ours in rules:
        name = re.sub(pattern, ours, name)
    return name
