# SPDX-License-Identifier: Apache-2.0
"""Statistics of every layer of a trained network, collected in one pass over some images.

    analyze_layers(student, batches)                      # attention, CKA and Fourier amplitudes
    layer_similarity(student, another, pairs_of_batches)  # CKA between the layers of two students

`reading` selects what stands for a layer:

    norms   the output of each block's first norm, so that layer 0 is the embedded patches, and at the end the last norm
            of the last block's output: Wang et al., arXiv:2205.14443
    blocks  the output of each block; also for other networks, CNNs included

Deviation: Wang et al. read a pre-trained MAE's last layer through a norm without weights; here it has its weights.
Fourier amplitudes follow Park and Kim, "How Do Vision Transformers Work?", ICLR 2022, arXiv:2202.06709, Figure 2, and
their notebook, which defines what Wang et al. plot.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, unknown
from ..models.layout import Layout
from ..models.taps import Taps
from ..models.vit.patches import PatchGrid
from .attention import AttentionStatistics, RunningMean, patch_spacings, uniform_distance
from .cka import MinibatchCKA

READINGS = ("norms", "blocks")
EPSILON = 1e-6  # keeps the logarithm finite; the authors'


@dataclass(frozen=True)
class LayerAnalysis:
    """Attention statistics, CKA and Fourier amplitudes, by layer from first to last."""

    images: int
    reading: str
    distance: list[Tensor]  # of attention, [h] per layer, pixels
    entropy: list[Tensor]  # of attention, [h] per layer, nats
    uniform: list[tuple[float, float]]  # distance and entropy of a head with uniform attention, one pair per layer
    cka: Tensor  # between every two layers' features, [layers, layers]
    frequencies: list[float]  # of `amplitude`, units of pi per patch; empty for non-square grids
    amplitude: Tensor  # relative log amplitude of every layer's features, [layers, frequencies]

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers for JSON; null for NaN."""
        return {
            "images": self.images,
            "reading": self.reading,
            "distance_pixels": [to_lists(heads) for heads in self.distance],
            "entropy_nats": [to_lists(heads) for heads in self.entropy],
            "uniform_distance_pixels": [distance for distance, _ in self.uniform],
            "uniform_entropy_nats": [entropy for _, entropy in self.uniform],
            "cka": to_lists(self.cka),
            "frequencies_pi_a_patch": self.frequencies,
            "relative_log_amplitude": to_lists(self.amplitude),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "LayerAnalysis":
        """Invert `to_dict`."""
        return cls(
            content["images"],
            content["reading"],
            [to_tensor(heads) for heads in content["distance_pixels"]],
            [to_tensor(heads) for heads in content["entropy_nats"]],
            list(zip(content["uniform_distance_pixels"], content["uniform_entropy_nats"], strict=True)),
            to_tensor(content["cka"]),
            content["frequencies_pi_a_patch"],
            to_tensor(content["relative_log_amplitude"]),
        )


def to_lists(values: Tensor) -> Any:
    """Convert a tensor to nested lists for JSON, with null for NaN."""
    return [to_lists(row) for row in values] if values.ndim > 1 else [None if v != v else v for v in values.tolist()]


def to_tensor(values: Any) -> Tensor:
    """Invert `to_lists`, double precision."""
    if values and isinstance(values[0], list):
        return torch.stack([to_tensor(row) for row in values])
    return torch.tensor([math.nan if v is None else v for v in values], dtype=torch.float64)


def analyze_layers(student: nn.Module, batches: Iterable[Tensor], reading: str = "norms") -> LayerAnalysis:
    """Compute attention statistics, CKA and Fourier amplitudes of a ViT; memory does not grow with the images.
    `batches`: images [B, channels, H, W]; a last batch of another size counts in all but CKA. Raises: UserError for a
    student without attention or without such a reading, or fewer images than CKA needs.
    """
    taps, statistics, cka = layer_taps(student, reading, "attention"), AttentionStatistics(), MinibatchCKA()
    assert taps.layout is not None
    spacings, size, images = patch_spacings(taps.layout), 0, 0
    amplitudes: list[RunningMean] = []
    grids: list[PatchGrid] = []
    uniform: list[tuple[float, float]] = []
    for batch in batches:
        with torch.inference_mode():
            readings = taps(batch)
            statistics.add(readings.attention, spacings)
            layers, grids = patch_features(getattr(readings, reading), taps.layout, batch)
            size = size or len(batch)
            if len(batch) == size:
                cka.add(layers)
            if all(rows == columns for rows, columns in grids):
                amplitudes = amplitudes or [RunningMean() for _ in layers]
                for mean, tokens, grid in zip(amplitudes, layers, grids, strict=True):
                    mean.add(relative_log_amplitude(tokens, grid))
        layer_grids = zip((each.grid for each in readings.attention), spacings, strict=True)
        uniform = uniform or [(uniform_distance(grid, gap), math.log(math.prod(grid))) for grid, gap in layer_grids]
        images += len(batch)
    one_grid = bool(amplitudes) and len(set(grids)) == 1
    return LayerAnalysis(
        images,
        reading,
        statistics.distance,
        statistics.entropy,
        uniform,
        cka.matrix(),
        frequencies(grids[0]) if one_grid else [],
        torch.stack([mean.value() for mean in amplitudes]) if one_grid else torch.zeros(len(grids), 0),
    )


def layer_similarity(
    first: nn.Module, second: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], reading: str = "norms"
) -> Tensor:
    """Compute CKA between the layers of two students, [layers of the first, layers of the second].

    Args:
        first: in inference mode; with `blocks` any network that taps support, CNNs included.
        batches: the same images as each of the two takes them; a last batch of another size is left out.
    """
    taps, cka, size = [layer_taps(student, reading) for student in (first, second)], MinibatchCKA(), 0
    for pair in batches:
        size = size or len(pair[0])
        if len(pair[0]) == size:
            layers = []
            for tap, batch in zip(taps, pair, strict=True):
                assert tap.layout is not None
                with torch.inference_mode():
                    layers.append(patch_features(getattr(tap(batch), reading), tap.layout, batch)[0])
            cka.add(*layers)
    return cka.matrix()


def default_reading(networks: Iterable[nn.Module]) -> str:
    """Return norms if all networks have one before each block, else blocks."""
    try:
        for network in networks:
            layer_taps(network, "norms")
    except UserError:
        return "blocks"
    return "norms"


def layer_taps(student: nn.Module, reading: str, *more: str) -> Taps:
    """Return taps on a student's layers. Raises: UserError for an unknown reading, or one that the student lacks."""
    if reading not in READINGS:
        raise unknown("reading of layers", reading, READINGS)
    return Taps(student, frozenset({reading, *more}))


def patch_features(layers: list[Tensor], layout: Layout, images: Tensor) -> tuple[list[Tensor], list[PatchGrid]]:
    """Return the patch tokens of every layer, [B, P, D] each, and their grids; other tokens are dropped."""
    first = layout.grid((images.shape[-2], images.shape[-1]))
    tokens, grids = [], []
    for block in layers:
        if block.ndim == 4:  # [B, D, rows, columns]
            tokens.append(block.flatten(2).transpose(1, 2))
            grids.append((block.shape[2], block.shape[3]))
        else:
            tokens.append(block[:, layout.prefix : layout.prefix + math.prod(first)])
            grids.append(first)
    return tokens, grids


def relative_log_amplitude(tokens: Tensor, grid: PatchGrid) -> Tensor:
    """Compute the Fourier amplitude of a layer along the diagonal of frequencies, relative to that of frequency zero.

        A(f) = mean over channels of log(|F(f, f)| + 1e-6) - the same of F(0, 0)

    The last value is Park and Kim's delta log amplitude: the more negative, the more the layer smooths.

    Args:
        tokens: patch tokens row by row, [B, P, D]; no class token.
        grid: rows and columns of patches, which must be equal.

    Returns: [B, K], natural logarithm, at the frequencies of `frequencies`; the first value is 0.
    Raises: UserError for a grid that is not square or has another number of patches.
    """
    if grid[0] != grid[1] or tokens.shape[1] != math.prod(grid):
        raise UserError(
            f"the diagonal of frequencies needs a square grid and all of its patches, got {tokens.shape[1]} patches "
            f"and a grid of {grid[0]}x{grid[1]}; use square images"
        )
    maps = torch.unflatten(tokens.float(), 1, grid)  # [B, rows, columns, D]
    spectrum = torch.fft.fft2(maps, dim=(1, 2))
    half = torch.arange((grid[0] + 1) // 2)
    amplitude = (spectrum[:, half, half].abs() + EPSILON).log().mean(-1)  # [B, K]
    return amplitude - amplitude[:, :1]


def frequencies(grid: PatchGrid) -> list[float]:
    """Return the frequencies of `relative_log_amplitude`, in units of pi per patch, from 0 to the last one below 1.

    The authors label the last one 1.0 pi for every grid.
    """
    return [2 * k / grid[0] for k in range((grid[0] + 1) // 2)]
