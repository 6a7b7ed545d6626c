# SPDX-License-Identifier: Apache-2.0
"""Attention as maps and as numbers, recomputed from queries and keys so that training keeps its fused attention.

    taps = Taps(student, frozenset({"attention"}))
    readings = taps(images).attention                # one per layer
    class_map(readings[layer], grid)                 # what the class token (or the mean patch) attends to
    mean_attention(readings[layer])                  # DHVT [1], Figures 3 and 7
    head_token_maps(readings[layer], grid)           # DHVT [1], Figures 4 and 5
    statistics = AttentionStatistics()
    statistics.add(readings, patch_spacings(taps.layout))
    statistics.distance[layer], statistics.entropy[layer]       # [h] each

Distance and entropy are of attention among patches: prefix tokens are dropped from rows and columns before the softmax,
as in Wang et al. [2]. Distances are in pixels of the network's input. The authors' code multiplies grid distances by 14
where patches are 16 pixels wide, so it plots 14/16 of the distance in pixels.

[1] Lu et al., NeurIPS 2022, arXiv:2210.05958, supplement.
[2] Wang et al., "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..models.layout import Layout
from ..models.taps import AttentionReading
from ..models.vit.patches import PatchGrid


def default_layers(depth: int) -> list[int]:
    """Return up to four layers (0-based) spread over the depth: the 2nd, 5th, 8th and 11th of twelve, as in [1]."""
    count = min(4, depth)
    return [math.ceil((k + 0.5) * depth / count) - 1 for k in range(count)]


def selected_layers(layers: Sequence[int], depth: int, network: str = "the student") -> list[int]:
    """Convert layers counted from 1 to sorted, unique layers counted from 0; none selects `default_layers`.

    Raises: UserError for a layer that does not exist.
    """
    if absent := [layer for layer in layers if not 1 <= layer <= depth]:
        raise UserError(f"layers of {network} must lie in 1 to {depth}, got {absent[0]}")
    return sorted({layer - 1 for layer in layers}) or default_layers(depth)


@torch.no_grad()
def mean_attention(reading: AttentionReading) -> Tensor:
    """Return attention of every token to every token, mean over heads, [B, T, T]; each row (a query) sums to 1.

    Tokens in their order: class (and distillation), patches row by row, DHVT's head tokens.
    """
    return reading.scores().softmax(-1).mean(1)


@torch.no_grad()
def class_map(reading: AttentionReading, grid: PatchGrid) -> Tensor:
    """Return attention of the class token to the patches, mean over heads, [B, rows, columns]; sums to 1.

    Without a class token, the mean over all patches as queries takes its place.
    """
    if not reading.class_token:
        return patch_attention(reading).mean((1, 2)).unflatten(-1, grid)  # type: ignore[no-untyped-call]
    return reading.class_scores().softmax(-1).mean(1).unflatten(-1, grid)  # type: ignore[no-untyped-call]


@torch.no_grad()
def head_token_maps(reading: AttentionReading, grid: PatchGrid) -> Tensor:
    """Return attention of head token i to the patches in its head i, [B, h, rows, columns]; shares of all tokens.

    Raises: UserError for a student without head tokens.
    """
    attention = reading.scores().softmax(-1)  # [B, h, T, T]
    heads = attention.shape[1]
    first = reading.prefix + reading.patches
    if attention.shape[-1] - first != heads:
        raise UserError(
            f"head tokens are DHVT's; this student has {attention.shape[-1] - first} tokens behind its patches"
        )
    head = torch.arange(heads, device=attention.device)
    maps = attention[:, head, first + head, reading.prefix : first]  # [B, h, P]
    return maps.unflatten(-1, grid)  # type: ignore[no-untyped-call]


def patch_spacings(layout: Layout) -> list[float]:
    """Return the pixels between neighboring patches in every attention layer."""
    return [float(layout.patch * pooled) for pooled in layout.pooling]


def patch_attention(reading: AttentionReading) -> Tensor:
    """Return attention among the patches, [B, h, P, P]; each row (a query) sums to 1."""
    patches = slice(reading.prefix, reading.prefix + reading.patches)
    return reading.scores()[..., patches, patches].softmax(-1)


def attention_entropy(attention: Tensor) -> Tensor:
    """Compute how widely each head attends.

        H = - mean over queries i of sum over keys j of a_ij log a_ij

    Deviation: the authors' code takes log(a + 1e-6), which lowers H by at most P * 1e-6.

    Args:
        attention: rows that sum to 1, [B, h, P, P].

    Returns: [B, h], nats, from 0 (a single patch) to log P (uniform).
    """
    return torch.special.entr(attention).sum(-1).mean(-1)


def attention_distance(attention: Tensor, grid: PatchGrid, spacing: float) -> Tensor:
    """Compute how far each head attends.

        d = mean over queries i of sum over keys j of a_ij |x_i - x_j|

    Args:
        attention: rows that sum to 1, [B, h, P, P], patches row by row.
        spacing: pixels between neighboring patches.

    Returns: [B, h], pixels.
    Raises: UserError if the grid has another number of patches.
    """
    if attention.shape[-1] != math.prod(grid):
        raise UserError(
            f"distances need every patch of the grid, got {attention.shape[-1]} patches for a grid of "
            f"{grid[0]}x{grid[1]}; use whole images without masked patches"
        )
    distances = spacing * grid_distances(grid).to(attention)
    return (attention * distances).sum(-1).mean(-1)


def grid_distances(grid: PatchGrid) -> Tensor:
    """Return the Euclidean distance between every two patches, [P, P]; neighbors are 1 apart."""
    rows, columns = (torch.arange(count, dtype=torch.float32) for count in grid)
    patches = torch.cartesian_prod(rows, columns)  # [P, 2], row by row
    return (patches[:, None] - patches).square().sum(-1).sqrt()  # torch.cdist is inexact for near points


def uniform_distance(grid: PatchGrid, spacing: float) -> float:
    """Return the distance of a head with uniform attention, the reference for other distances, pixels.

    d = spacing / (R C)^2 * sum over row and column offsets (u, v) of (R - |u|) (C - |v|) sqrt(u^2 + v^2)
    """
    R, C = grid
    offsets = ((u, v) for u in range(1 - R, R) for v in range(1 - C, C))
    return spacing * sum((R - abs(u)) * (C - abs(v)) * math.hypot(u, v) for u, v in offsets) / (R * C) ** 2


class RunningMean:
    """Mean over all images of values that come in batches of any size; needs memory for one image."""

    def __init__(self) -> None:
        self.images = 0
        self._sum: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Add a batch, [B, ...]."""
        total = values.detach().sum(0).cpu().double()
        self._sum = total if self._sum is None else self._sum + total
        self.images += len(values)

    def value(self) -> Tensor:
        """Return the mean so far, [...], double precision. Raises: UserError before the first image."""
        if self._sum is None or self.images == 0:
            raise UserError("there is no mean of no images; add a batch first")
        return self._sum / self.images


class AttentionStatistics:
    """Entropy and distance of every head, mean over all images added. Deviation: the authors' code weights batches
    equally, so images of a smaller last batch count more; here all images have the same weight.
    """

    def __init__(self) -> None:
        self._means: list[tuple[RunningMean, RunningMean]] = []

    def add(self, readings: Sequence[AttentionReading], spacings: Sequence[float]) -> None:
        """Add a batch."""
        self._means = self._means or [(RunningMean(), RunningMean()) for _ in readings]
        for reading, spacing, (entropy, distance) in zip(readings, spacings, self._means, strict=True):
            attention = patch_attention(reading)
            entropy.add(attention_entropy(attention))
            distance.add(attention_distance(attention, reading.grid, spacing))

    @property
    def entropy(self) -> list[Tensor]:
        """Nats, [h] for every layer."""
        return [entropy.value() for entropy, _ in self._means]

    @property
    def distance(self) -> list[Tensor]:
        """Pixels, [h] for every layer."""
        return [distance.value() for _, distance in self._means]
