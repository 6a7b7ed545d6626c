# SPDX-License-Identifier: Apache-2.0
"""Links between a CNN and a ViT: a table of their strength, and how large they grew from epoch to epoch."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ...analysis.link_extraction import TrainedLinks
from ...errors import counted
from ...models.links import LinkSet
from ...table import Column, Table
from ..charts.heat_map import Values, value_map
from ..document import Section

EPOCHS_SHOWN = 6


def link_table(stages: Sequence[str], strengths: Tensor, linked: LinkSet, note: str) -> Table:
    """One row a CNN block: the layers that its links keep, then their strength to every layer.

    Args:
        stages: name of every CNN block.
        strengths: [blocks, layers], in [0, 1].
        linked: the links that are kept.
        note: a sentence below the table.
    """
    blocks, layers = strengths.shape
    columns = [Column("CNN block"), Column("kept"), *(Column(str(layer), "decimal") for layer in range(layers))]
    rows = [
        (f"{block} {stages[block]}", ", ".join(map(str, linked[block])) or "none", *strengths[block].tolist())
        for block in range(blocks)
    ]
    return Table("Strength of links from CNN blocks to the ViT's layers, both counted from 0", columns, rows, note)


def links_section(trained: TrainedLinks, guide: str = "") -> Section:
    """Heat maps of mean |w| by CNN block and layer, as in AAL's Figures 2 and B: at the end, and on the way there.

    Args:
        trained: the links.
        guide: whose they are, where several have some.
    """
    stages = [f"block {number}, {name}" for number, name in enumerate(trained.links.channels)]
    layers = [f"layer {number}" for number in range(len(trained.links.heads))]
    maps = [_linked_only(magnitudes, trained.links.linked) for magnitudes in trained.magnitudes]
    last = len(maps) - 1
    moments = [f"after {counted(epoch, 'epoch')}" for epoch in range(len(maps))]
    if trained.inside:
        moments[last] = f"in epoch {last}"
    html = value_map(
        "Mean magnitude of the links from CNN blocks to layers of the ViT, both counted from 0",
        [(moments[last], maps[last])],
        stages,
        layers,
        "" if all(len(linked) == len(layers) for linked in trained.links.linked) else "Empty: not linked.",
    )
    shown = sorted({round(k * last / (EPOCHS_SHOWN - 1)) for k in range(EPOCHS_SHOWN)})
    numbers = [str(number) for number in range(len(stages))], [str(number) for number in range(len(layers))]
    html += value_map(
        "The same on the way, CNN blocks downwards, layers to the right",
        [(moments[epoch], maps[epoch]) for epoch in shown],
        *numbers,
    )
    return Section(f"Links to the teacher{guide and f' of {guide}'}", html)


def _linked_only(magnitudes: Tensor, linked: LinkSet) -> Values:
    values: Values = np.full(tuple(magnitudes.shape), np.nan)
    for block, layers in enumerate(linked):
        values[block, layers] = magnitudes[block, layers].double().numpy()
    return values
