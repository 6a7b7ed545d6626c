# SPDX-License-Identifier: Apache-2.0
"""Links between a CNN and a ViT as a table."""

from collections.abc import Sequence

from torch import Tensor

from ..models.links import LinkSet, write_link_set
from .sheet import Column, Sheet


def link_table(stages: Sequence[str], strengths: Tensor, linked: LinkSet, note: str) -> Sheet:
    """One row a CNN block: the layers that its links keep, then their strength to every layer.

    Args:
        stages: name of every CNN block.
        strengths: [blocks, layers], in [0, 1].
        linked: the links that are kept.
        note: a sentence below the table.
    """
    blocks, layers = strengths.shape
    kept = dict(line.split(": ") for line in write_link_set(linked).splitlines())
    columns = [Column("CNN block"), Column("kept"), *(Column(str(layer + 1), "decimal") for layer in range(layers))]
    rows = [
        (f"{block + 1} {stages[block]}", kept.get(str(block + 1), "none"), *strengths[block].tolist())
        for block in range(blocks)
    ]
    return Sheet("Strength of links from CNN blocks to the ViT's layers", columns, rows, note)
