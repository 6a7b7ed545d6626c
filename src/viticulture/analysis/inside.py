# SPDX-License-Identifier: Apache-2.0
"""What goes on in every layer of a trained ViT, collected in one pass over some images.

    found = look_inside(student, batches)           # where its heads look, which layers are alike, what they smooth
    similarity(student, another, pairs_of_batches)  # which layers of two students are alike

Deviation: Wang et al., arXiv:2205.14443, take what a block's first norm makes of its input; here a layer's features are
its block's output, as it is.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models.taps import Grid, Layout, Seen, Taps
from .attention_statistics import AttentionStatistics, spacings, uniform_distance
from .cka import MinibatchCKA
from .fourier import frequencies, relative_log_amplitude
from .running_mean import RunningMean


@dataclass(frozen=True)
class Inside:
    """Every layer, first to last.

    Args:
        images: how many were looked at.
        distance: of attention, [h] a layer, pixels.
        entropy: of attention, [h] a layer, nats.
        uniform: distance and entropy of a head that attends to all patches alike, one pair a layer.
        cka: between every two layers' features, [layers, layers].
        frequencies: of `amplitude`, units of pi a patch; none for grids that are not square.
        amplitude: relative log amplitude of every layer's features, [layers, frequencies].
    """

    images: int
    distance: list[Tensor]
    entropy: list[Tensor]
    uniform: list[tuple[float, float]]
    cka: Tensor
    frequencies: list[float]
    amplitude: Tensor


def look_inside(student: nn.Module, batches: Iterable[Tensor]) -> Inside:
    """Attention statistics, CKA and Fourier amplitudes of a ViT; memory does not grow with the number of images.

    Args:
        student: in inference mode.
        batches: images [B, 3, H, W]; a last batch of another size counts in all but CKA.

    Raises: UserError for a student without attention, or fewer images than CKA needs.
    """
    taps, statistics, cka = Taps(student, frozenset({"blocks", "attention"})), AttentionStatistics(), MinibatchCKA()
    assert taps.layout is not None
    pixels, size, images = spacings(taps.layout), 0, 0
    amplitudes: list[RunningMean] = []
    grids: list[Grid] = []
    uniform: list[tuple[float, float]] = []
    for batch in batches:
        with torch.inference_mode():
            seen = taps(batch)
            statistics.add(seen.attention, pixels)
            layers, grids = patch_features(seen, taps.layout, batch)
            size = size or len(batch)
            if len(batch) == size:
                cka.add(layers)
            if all(rows == columns for rows, columns in grids):
                amplitudes = amplitudes or [RunningMean() for _ in layers]
                for mean, tokens, grid in zip(amplitudes, layers, grids, strict=True):
                    mean.add(relative_log_amplitude(tokens, grid))
        looks = zip(seen.attention, pixels, strict=True)
        uniform = uniform or [(uniform_distance(r.grid, gap), math.log(math.prod(r.grid))) for r, gap in looks]
        images += len(batch)
    one_grid = bool(amplitudes) and len(set(grids)) == 1
    return Inside(
        images,
        statistics.distance,
        statistics.entropy,
        uniform,
        cka.matrix(),
        frequencies(grids[0]) if one_grid else [],
        torch.stack([mean.value() for mean in amplitudes]) if one_grid else torch.zeros(len(grids), 0),
    )


def similarity(first: nn.Module, second: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """CKA between the layers of two students, [layers of the first, layers of the second].

    Args:
        first: in inference mode; any network that taps know, CNNs included.
        second: likewise.
        batches: the same images as each of the two takes them; a last batch of another size is left out.
    """
    taps, cka, size = [Taps(student, frozenset({"blocks"})) for student in (first, second)], MinibatchCKA(), 0
    for pair in batches:
        size = size or len(pair[0])
        if len(pair[0]) == size:
            found = []
            for tap, batch in zip(taps, pair, strict=True):
                assert tap.layout is not None
                with torch.inference_mode():
                    found.append(patch_features(tap(batch), tap.layout, batch)[0])
            cka.add(*found)
    return cka.matrix()


def patch_features(seen: Seen, layout: Layout, images: Tensor) -> tuple[list[Tensor], list[Grid]]:
    """The patch tokens of every block's output, [B, P, D] each, and their grids; other tokens are dropped."""
    first = layout.grid((images.shape[-2], images.shape[-1]))
    tokens, grids = [], []
    for block in seen.blocks:
        if block.ndim == 4:  # [B, D, rows, columns]
            tokens.append(block.flatten(2).transpose(1, 2))
            grids.append((block.shape[2], block.shape[3]))
        else:
            tokens.append(block[:, layout.prefix : layout.prefix + math.prod(first)])
            grids.append(first)
    return tokens, grids
