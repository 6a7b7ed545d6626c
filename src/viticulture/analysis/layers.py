# SPDX-License-Identifier: Apache-2.0
"""Statistics of every layer of a trained network, collected in one pass over some images.

    analyze_layers(student, batches)                      # attention, CKA and Fourier amplitudes
    layer_similarity(student, another, pairs_of_batches)  # CKA between the layers of two students
    similarity = MinibatchCKA()                           # the same batch by batch: similarity.add(...), .matrix()

`reading` selects what stands for a layer:

    norms   the output of each block's first norm, so that layer 0 is the embedded patches, and at the end the last norm
            of the last block's output: Wang et al., arXiv:2205.14443
    blocks  the output of each block; also for other networks, CNNs included

Deviation: Wang et al. read a pre-trained MAE's last layer through a norm without weights; here it has its weights.
Fourier amplitudes follow Park and Kim, "How Do Vision Transformers Work?", ICLR 2022, arXiv:2202.06709, Figure 2, and
their notebook, which defines what Wang et al. plot. Minibatch CKA: Nguyen et al., "Do Wide and Deep Networks Learn the
Same Things?", ICLR 2021, arXiv:2010.15327, as Wang et al. use it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, unknown
from ..models.layout import Layout
from ..models.taps import Taps
from ..models.vit.patches import PatchGrid
from .attention import AttentionStatistics, RunningMean, patch_spacings, uniform_distance

MIN_IMAGES = 4  # in a batch; HSIC_1 divides by n - 3


def gram(features: Tensor) -> Tensor:
    """Compute inner products between the images of a batch with a zero diagonal, K~ of Eq. (3), double precision. The
    batch mean is subtracted first: HSIC_1 does not change, and single precision suffices for large means. `features`:
    [B, ...]; all but the first dimension is flattened. Returns: [B, B].
    """
    rows = features.flatten(1).float()
    rows = rows - rows.mean(0)
    products = (rows @ rows.T).double()
    return products - products.diag().diag()


def hsic(first: Tensor, second: Tensor) -> Tensor:
    """Estimate the Hilbert-Schmidt independence criterion between every two layers, without bias.

        HSIC_1(K, L) = (tr(K~ L~) + 1'K~1 1'L~1 / ((n-1) (n-2)) - 2 / (n-2) * 1'K~ L~1) / (n (n-3))     Eq. (3)

    Args:
        first: `gram` of every layer, [layers, n, n].
        second: the same of other layers for the same images, [other layers, n, n].

    Returns: [layers, other layers]; may be negative, its expectation is not.
    """
    n = first.shape[-1]
    ones_k, ones_l = first.sum(-1), second.sum(-1)  # K~1, [layers, n]
    trace = first.flatten(1) @ second.flatten(1).T  # both are symmetric
    sums = torch.outer(ones_k.sum(-1), ones_l.sum(-1))
    return (trace + sums / ((n - 1) * (n - 2)) - 2 / (n - 2) * ones_k @ ones_l.T) / (n * (n - 3))


class MinibatchCKA:
    """CKA between every two layers; memory does not grow with the number of images.

        CKA = sum over batches HSIC_1(K, L) / sqrt(sum HSIC_1(K, K) * sum HSIC_1(L, L))     Eq. (2)

    It does not change with rotations or one scale of all of a layer's features. It is 1 for equivalent layers and near
    0, positive or negative, for independent ones. All batches must have one size: each has the same weight.
    """

    def __init__(self) -> None:
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, first: Sequence[Tensor], second: Sequence[Tensor] | None = None) -> None:
        """Add a batch. `second`: another student's of the same images; None compares the first with itself. Raises:
        UserError for batches that are too small for an estimate, or have different numbers of images.
        """
        images = {len(layer) for layer in (*first, *(second or ()))}
        if len(images) != 1 or min(images) < MIN_IMAGES:
            raise UserError(
                f"CKA needs the same {MIN_IMAGES} or more images per batch in every layer, got {sorted(images)}; "
                "leave out a smaller last batch"
            )
        K = torch.stack([gram(layer) for layer in first])
        L = K if second is None else torch.stack([gram(layer) for layer in second])
        with_itself = (torch.cat([hsic(layer, layer).flatten() for layer in grams.unsqueeze(1)]) for grams in (K, L))
        cross, of_k, of_l = hsic(K, L), *with_itself
        if self._sums is not None:
            cross, of_k, of_l = self._sums[0] + cross, self._sums[1] + of_k, self._sums[2] + of_l
        self._sums = cross, of_k, of_l

    def matrix(self) -> Tensor:
        """Return [layers of the first, layers of the second]; NaN for a layer with the same features for all images.

        Raises: UserError before the first batch.
        """
        if self._sums is None:
            raise UserError("there is no CKA of no images; add a batch first")
        cross, of_k, of_l = self._sums
        return cross / torch.outer(of_k.sqrt(), of_l.sqrt())


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
    `batches`: images [B, channels, H, W]; a last batch of another size counts in all but CKA.
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
