# SPDX-License-Identifier: Apache-2.0
"""How far and how widely the heads of every layer look: attention distance and entropy.

    statistics = AttentionStatistics()
    for images in batches:
        statistics.add(taps(images).attention, spacings(taps.layout))
    statistics.distance[layer], statistics.entropy[layer]       # [h] each

Both are of attention among patches: class and other prefix tokens are dropped from rows and columns before the
softmax, as in the analysis of Wang et al., "A Closer Look at Self-Supervised Lightweight Vision Transformers",
arXiv:2205.14443.

Distances are in pixels of the image that the student is given. The authors' code multiplies distances on the grid by
14 where its patches are 16 pixels wide, so what it plots is 14/16 of the distance in pixels.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..models.taps import AttentionReading, Layout
from ..models.vit.patches import PatchGrid
from .running_mean import RunningMean


def spacings(layout: Layout) -> list[float]:
    """Pixels between neighboring patches of every attention layer."""
    return [float(layout.patch * pooled) for pooled in layout.pooling]


def patch_attention(reading: AttentionReading) -> Tensor:
    """Attention among the patches, [B, h, P, P]; each row (a query) sums to 1."""
    patches = slice(reading.prefix, reading.prefix + reading.patches)
    return reading.scores()[..., patches, patches].softmax(-1)


def attention_entropy(attention: Tensor) -> Tensor:
    """How widely a head looks.

        H = - mean over queries i of sum over keys j of a_ij log a_ij

    Deviation: the authors' code takes log(a + 1e-6), which lowers H by at most P * 1e-6.

    Args:
        attention: rows that sum to 1, [B, h, P, P].

    Returns: [B, h], nats, from 0 (one patch alone) to log P (all alike).
    """
    return torch.special.entr(attention).sum(-1).mean(-1)


def attention_distance(attention: Tensor, grid: PatchGrid, spacing: float) -> Tensor:
    """How far a head looks.

        d = mean over queries i of sum over keys j of a_ij |x_i - x_j|

    Args:
        attention: rows that sum to 1, [B, h, P, P], patches row by row.
        grid: rows and columns of patches.
        spacing: pixels between neighboring patches.

    Returns: [B, h], pixels.
    Raises: UserError if the grid has another number of patches.
    """
    if attention.shape[-1] != math.prod(grid):
        raise UserError(
            f"distances need every patch of the grid, got {attention.shape[-1]} patches for a grid of "
            f"{grid[0]}x{grid[1]}; show the student whole images, none of their patches masked"
        )
    distances = spacing * grid_distances(grid).to(attention)
    return (attention * distances).sum(-1).mean(-1)


def grid_distances(grid: PatchGrid) -> Tensor:
    """Euclidean distance between every two patches, [P, P], where neighbors lie 1 apart."""
    rows, columns = (torch.arange(count, dtype=torch.float32) for count in grid)
    patches = torch.cartesian_prod(rows, columns)  # [P, 2], row by row
    return (patches[:, None] - patches).square().sum(-1).sqrt()  # torch.cdist is inexact for near points


def uniform_distance(grid: PatchGrid, spacing: float) -> float:
    """Distance of a head that attends to all patches alike: what a distance is to be read against, pixels.

    d = spacing / (R C)^2 * sum over row and column offsets (u, v) of (R - |u|) (C - |v|) sqrt(u^2 + v^2)
    """
    R, C = grid
    offsets = ((u, v) for u in range(1 - R, R) for v in range(1 - C, C))
    return spacing * sum((R - abs(u)) * (C - abs(v)) * math.hypot(u, v) for u, v in offsets) / (R * C) ** 2


class AttentionStatistics:
    """Entropy and distance of every head, mean over all images added; memory does not grow with their number.

    Deviation: the authors' code weights batches alike, so images of a smaller last batch count more; here all images
    count alike.
    """

    def __init__(self) -> None:
        self._entropy: list[RunningMean] = []
        self._distance: list[RunningMean] = []

    def add(self, readings: Sequence[AttentionReading], spacings: Sequence[float]) -> None:
        """Count a batch.

        Args:
            readings: one a layer, first to last.
            spacings: pixels between neighboring patches of each layer.
        """
        if not self._entropy:
            self._entropy = [RunningMean() for _ in readings]
            self._distance = [RunningMean() for _ in readings]
        layers = zip(readings, spacings, self._entropy, self._distance, strict=True)
        for reading, spacing, entropy, distance in layers:
            attention = patch_attention(reading)
            entropy.add(attention_entropy(attention))
            distance.add(attention_distance(attention, reading.grid, spacing))

    @property
    def entropy(self) -> list[Tensor]:
        """Nats, [h] for every layer."""
        return [mean.value() for mean in self._entropy]

    @property
    def distance(self) -> list[Tensor]:
        """Pixels, [h] for every layer."""
        return [mean.value() for mean in self._distance]
