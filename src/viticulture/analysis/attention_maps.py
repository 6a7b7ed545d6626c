# SPDX-License-Identifier: Apache-2.0
"""Attention as maps: who looks at what, recomputed from queries and keys, so that training keeps its fused attention.

    taps = Taps(student, frozenset({"attention"}))
    readings = taps(images)
    for layer in shown_layers(len(readings.attention)):
        class_map(readings.attention[layer], grid)      # where the class token (or the mean patch) looks
        averaged(readings.attention[layer])             # DHVT [1], Figures 3 and 7
        head_token_maps(readings.attention[layer], grid)  # DHVT [1], Figures 4 and 5

[1] Lu et al., NeurIPS 2022, arXiv:2210.05958, supplement.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..models.taps import AttentionReading
from ..models.vit.patches import PatchGrid
from .attention_statistics import patch_attention


def shown_layers(depth: int) -> list[int]:
    """Up to four layers (0-based) spread over the depth as the supplement picks them: the 2nd, 5th, 8th and 11th of
    twelve."""
    count = min(4, depth)
    return [math.ceil((k + 0.5) * depth / count) - 1 for k in range(count)]


def chosen_layers(layers: Sequence[int], depth: int, whose: str = "the student") -> list[int]:
    """Layers that a person names, counted from 1, as layers counted from 0, in order and once each; where none is named
    those of `shown_layers`. Raises: UserError for one that is not there."""
    if absent := [layer for layer in layers if not 1 <= layer <= depth]:
        raise UserError(f"layers of {whose} must lie in 1 to {depth}, got {absent[0]}")
    return sorted({layer - 1 for layer in layers}) or shown_layers(depth)


@torch.no_grad()
def averaged(reading: AttentionReading) -> Tensor:
    """Attention of every token to every token, mean over heads, [B, T, T]; each row (a query) sums to 1.

    Tokens in their order: class (and distillation), patches row by row, DHVT's head tokens.
    """
    return reading.scores().softmax(-1).mean(1)


@torch.no_grad()
def class_map(reading: AttentionReading, grid: PatchGrid) -> Tensor:
    """Attention among the patches of what the class is read from, mean over heads, [B, rows, columns]; sums to 1.

    That is the class token; where a student has none and averages over its patches, it is their mean.
    """
    if not reading.class_token:
        return patch_attention(reading).mean((1, 2)).unflatten(-1, grid)  # type: ignore[no-untyped-call]
    return reading.class_scores().softmax(-1).mean(1).unflatten(-1, grid)  # type: ignore[no-untyped-call]


@torch.no_grad()
def head_token_maps(reading: AttentionReading, grid: PatchGrid) -> Tensor:
    """Attention of head token i to the patches in its own head i, [B, h, rows, columns]; shares of all tokens.

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
