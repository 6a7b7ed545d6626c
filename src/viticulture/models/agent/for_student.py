# SPDX-License-Identifier: Apache-2.0
"""An agent for a student: its sizes are read off the ViT, and its maps must fit the ViT's sequence."""

from typing import Any

from torch import nn

from ...errors import UserError
from ..data_spec import DataSpec
from .agent_cnn import AgentCNN, AgentShape, PlainStem, Sizes


def sizes_of(student: nn.Module) -> Sizes:
    """Read off a ViT what its agent takes over: ours, DHVT, or any of timm's that keeps one width and one grid.

    Raises: UserError for other networks.
    """
    known: Any = student
    try:
        mlp, dim = known.blocks[0].mlp, known.embed_dim
        patch = known.feature_info[0]["reduction"]
        (last, *_) = (layer for layer in mlp.modules() if isinstance(layer, nn.Linear) and layer.out_features == dim)
        sizes = Sizes(patch, dim, len(known.blocks), known.blocks[0].attn.num_heads, last.in_features, rate_of(mlp))
    except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"an agent is made from a ViT whose blocks hold attention and MLP, on one grid; {type(student).__name__} "
            "is none"
        ) from error
    if not isinstance(patch, int):
        raise UserError(f"an agent needs square patches, the student's have {patch[0]}x{patch[1]} pixels")
    return sizes


def rate_of(layer: nn.Module) -> float:
    """The dropout of an MLP or attention layer: of its first module that has one, else 0."""
    return next((float(part.p) for part in layer.modules() if isinstance(part, nn.Dropout)), 0.0)


def agent_for(student: nn.Module, data_spec: DataSpec, shape: AgentShape = AgentShape()) -> AgentCNN:
    """An agent with weights of its own for a ViT, of the ViT's width, depth, heads and patches ("joint" training).

    Args:
        student: a ViT, DHVT included; only its sizes are read.
        data_spec: classes and image size of the student.
        shape: what is the agent's own.

    Raises: UserError for a student that is no ViT, or where the maps do not fit the student's grid.
    """
    sizes = sizes_of(student)
    agent = AgentCNN(sizes, shape, in_chans=data_spec.channels, num_classes=len(data_spec.classes))
    check_maps(agent, sizes, data_spec)
    return agent


def check_maps(agent: AgentCNN, sizes: Sizes, data_spec: DataSpec) -> None:
    """Every map must be halved without remainder, and be as long as the student's sequence or a multiple or part of it.

    Raises: UserError naming the map and what to change.
    """
    rows, columns = (-(-side // sizes.patch_size) for side in data_spec.image_size)
    pixels = agent.feature_info[0]["reduction"]
    cut = isinstance(agent.stem, PlainStem)  # off what fills no patch
    height, width = (side // pixels if cut else -(-side // pixels) for side in data_spec.image_size)
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
