# SPDX-License-Identifier: Apache-2.0
"""Compile one block of a network for all blocks, which takes a fraction of the time that the whole network takes.

What is outside the blocks runs uncompiled, and nothing is fused across their borders.
"""

from typing import Any

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn

from ..errors import UserError
from .layout import layout


class DropPathOfTensor(DropPath):
    """timm's DropPath with its probability in a tensor, so that blocks of different probabilities share one graph."""

    keep: Tensor

    def __init__(self, drop_prob: float, scale_by_keep: bool, device: torch.device) -> None:
        super().__init__(drop_prob, scale_by_keep)
        self.register_buffer("keep", torch.tensor(1 - drop_prob, device=device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = (torch.rand(len(x), *[1] * (x.ndim - 1), device=x.device) < self.keep).to(x.dtype)
        return x * (kept / self.keep if self.scale_by_keep else kept)


def compile_blocks(network: nn.Module, **options: Any) -> bool:
    """Compile the blocks of a network in place; without several equal blocks, return False and change nothing. Options
    are `torch.compile`'s.

    Blocks become instances of a subclass whose forward pass is compiled. So hooks run outside the graph, and copies of
    a block read their own weights.
    """
    try:
        blocks = [network.get_submodule(name) for name in layout(network).blocks]
    except UserError:  # it does not name its blocks
        return False
    if len(blocks) < 2 or any(_structure(block) != _structure(blocks[0]) for block in blocks):
        return False
    dropping = {name: m for block in blocks for name, m in block.named_modules() if isinstance(m, DropPath)}
    device = next(network.parameters()).device
    for block in blocks:
        for name, like in dropping.items():
            rate = getattr(block.get_submodule(name), "drop_prob", 0.0)  # an identity where it is 0
            block.set_submodule(name, DropPathOfTensor(rate, like.scale_by_keep, device).train(block.training))
    kind: Any = type(blocks[0])
    compiled = type(kind.__name__, (kind,), {"forward": torch.compile(kind.forward, **options)})
    for block in blocks:
        block.__class__ = compiled
    return True


def _structure(block: nn.Module) -> tuple[Any, ...]:
    """Return what blocks that share a graph have in common."""
    return type(block), *((name, weight.shape) for name, weight in block.named_parameters())
