# SPDX-License-Identifier: Apache-2.0
"""Trainable links from a ViT's attention maps to a CNN's activation maps, and sets of them.

    A+_c = sum over the heads m and layers n linked to map c of w_c^(m,n) A_(m,n)  + b_c       AAL [1], Eq. (4)

A link set lists the layers that each CNN block is linked to: `full`, `alpha`, `beta`, or a YAML file such as

    0: [0, 1, 2]            # CNN block: layers of the ViT, both counted from 0
    1: [0, 1, 2, 3, 4, 7]

[1] Jin and Choi, "Adaptive Attention Link-based Regularization for Vision Transformers", arXiv:2211.13852.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..disk import read_text
from ..errors import UserError
from ..text import read_yaml
from .vit.patches import PatchGrid

LinkSet = list[list[int]]  # for every CNN block its linked layers, counted from 0, in order

TABLE_1: dict[str, LinkSet] = {  # the paper's, which counts from 1: seven blocks of EfficientNet-B3, twelve layers
    name: [list(range(first - 1, last)) for first, last in spans]
    for name, spans in {
        "alpha": [(1, 3), (1, 5), (3, 5), (4, 6), (4, 6), (6, 11), (7, 12)],
        "beta": [(1, 2), (1, 5), (3, 5), (4, 6), (4, 7), (6, 10), (7, 10)],
    }.items()
}


class Group(NamedTuple):
    """CNN blocks that are linked to the same layers, all of one grid."""

    grid: PatchGrid
    layers: tuple[int, ...]
    blocks: tuple[int, ...]


class Links(nn.Module):
    """Trainable links: one 1x1 convolution for all CNN blocks that are linked to the same layers.

    Every map has separate weights, so blocks in one convolution are independent. Layers whose maps differ in size
    (PiT's stages) reach a block by one convolution per size: A+ exists once in every size.

    Args:
        channels: name of a CNN block -> its number of maps.
        heads: of every layer of the ViT.
        grids: for every layer, rows and columns of its maps.
        linked: link set.
    """

    def __init__(
        self, channels: Mapping[str, int], heads: Sequence[int], grids: Sequence[PatchGrid], linked: LinkSet
    ) -> None:
        super().__init__()
        self.channels, self.heads = dict(channels), list(heads)
        self.grids, self.linked = [(rows, columns) for rows, columns in grids], [list(layers) for layers in linked]
        blocks: dict[tuple[PatchGrid, tuple[int, ...]], list[int]] = {}
        for block, layers in enumerate(self.linked):
            for grid in dict.fromkeys(self.grids[layer] for layer in layers):
                of_grid = tuple(layer for layer in layers if self.grids[layer] == grid)
                blocks.setdefault((grid, of_grid), []).append(block)
        if not blocks:
            raise UserError("a link set must link at least one CNN block to a layer, this one is empty")
        self.groups = [Group(grid, layers, tuple(numbers)) for (grid, layers), numbers in blocks.items()]
        counts = list(self.channels.values())
        self.convolutions = nn.ModuleList(
            nn.Conv2d(sum(self.heads[n] for n in group.layers), sum(counts[b] for b in group.blocks), 1)
            for group in self.groups
        )

    def forward(self, attention: Sequence[Tensor]) -> list[Tensor]:
        """Eq. (4): maps of every layer, [B, h, rows, columns] -> A+ of every group, [B, its maps, rows, columns]."""
        return [
            links(torch.cat([attention[layer] for layer in group.layers], 1))
            for group, links in zip(self.groups, self.convolutions, strict=True)
        ]

    def weights(self) -> dict[tuple[int, int], Tensor]:
        """Return (CNN block, layer), counted from 0 -> their weights, [maps of the block, heads of the layer]."""
        counts = list(self.channels.values())
        weights: dict[tuple[int, int], Tensor] = {}
        for group, links in zip(self.groups, self.convolutions, strict=True):
            assert isinstance(links, nn.Conv2d)
            of_blocks = torch.split(links.weight.detach()[:, :, 0, 0], [counts[block] for block in group.blocks], 0)
            for block, rows in zip(group.blocks, of_blocks, strict=True):
                of_layers = torch.split(rows, [self.heads[layer] for layer in group.layers], 1)
                weights |= {(block, layer): part for layer, part in zip(group.layers, of_layers, strict=True)}
        return weights

    def magnitudes(self) -> Tensor:
        """Return the mean of |w| of every CNN block and layer, [blocks, layers]; 0 where there is no link (Fig. 2)."""
        magnitudes = torch.zeros(len(self.channels), len(self.heads), device=next(self.parameters()).device)
        for block_layer, weights in self.weights().items():
            magnitudes[block_layer] = weights.abs().mean()
        return magnitudes

    def about(self) -> dict[str, Any]:
        """Return the constructor's arguments in plain types."""
        return {"channels": self.channels, "heads": self.heads, "grids": self.grids, "linked": self.linked}


def read_link_set(name: str, blocks: int, layers: int) -> LinkSet:
    """Return a link set by its name: full, alpha, beta, or a YAML file.

    Raises: UserError if it is none of these, or names more than the CNN's blocks and the ViT's layers with class token.
    """
    if name == "full":
        return [list(range(layers))] * blocks
    if name in TABLE_1:
        if (blocks, layers) != (7, 12):
            raise UserError(
                f"the {name} links are between the 7 blocks of an EfficientNet and 12 layers, but there are {blocks} "
                f"blocks and {layers} layers; train with links: full and extract your own by `viticulture links RUN`"
            )
        return TABLE_1[name]
    if not name.endswith((".yaml", ".yml")) or not Path(name).is_file():
        raise UserError(f"links must be full, alpha, beta or a YAML file that exists, got {name!r}")
    content = read_yaml(read_text(Path(name), "link set"), f"link set {name}")
    if not isinstance(content, dict):
        raise UserError(f"{name} must map CNN blocks to layers, as in `0: [0, 1, 2]`")
    return _parsed(content, name, blocks, layers)


def _parsed(content: Mapping[str, Any], name: str, blocks: int, layers: int) -> LinkSet:
    linked: LinkSet = [[] for _ in range(blocks)]
    for block, chosen in content.items():
        if isinstance(chosen, str | int):
            raise UserError(
                f"{name} holds `{block}: {chosen}`; a link set lists layers, it and they counted from 0, as in "
                "`0: [0, 1, 2]`; extract it again by `viticulture links RUN`"
            )
        if block not in map(str, range(blocks)):
            raise UserError(f"{name} links CNN block {block}, but the teacher has blocks 0 to {blocks - 1}")
        if not isinstance(chosen, list) or not chosen or not all(type(layer) is int for layer in chosen):
            raise UserError(f"{name} must list the layers of block {block} as in `[0, 1, 2]`, got {chosen!r}")
        if not 0 <= min(chosen) <= max(chosen) < layers:
            raise UserError(
                f"{name} links block {block} to layers {chosen}, but the student has layers 0 to {layers - 1}"
            )
        linked[int(block)] = sorted(set(chosen))
    return linked


def write_link_set(linked: LinkSet) -> str:
    """Return a link set as the text of a YAML file, without blocks that have no links."""
    return "".join(f"{block}: {layers}\n" for block, layers in enumerate(linked) if layers)
