# SPDX-License-Identifier: Apache-2.0
"""What goes on in every layer of a trained ViT, collected in one pass over some images.

    found = look_inside(student, batches)           # where its heads look, which layers are alike, what they smooth
    similarity(student, another, pairs_of_batches)  # which layers of two students are alike

What stands for a layer is said by `reading`:

    norms   what each block's first norm makes of its input, so that layer 0 is the embedded patches, and at the end
            what the last norm makes of the last block's output: Wang et al.'s reading, arXiv:2205.14443
    blocks  what each block gives, as it is; also for networks of other kinds, CNNs included

Deviation: Wang et al. read a pre-trained MAE's last layer through a norm without its weights; here it has them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, unknown
from ..models.taps import Layout, Taps
from ..models.vit.patches import PatchGrid
from .attention_statistics import AttentionStatistics, spacings, uniform_distance
from .cka import MinibatchCKA
from .fourier import frequencies, relative_log_amplitude
from .running_mean import RunningMean

READ = ("norms", "blocks")


@dataclass(frozen=True)
class Inside:
    """Attention statistics, CKA and Fourier amplitudes of a student, by layer from first to last.

    Args:
        images: how many were looked at.
        reading: what stands for a layer in `cka` and `amplitude`, one of READ.
        distance: of attention, [h] a layer, pixels.
        entropy: of attention, [h] a layer, nats.
        uniform: distance and entropy of a head that attends to all patches alike, one pair a layer.
        cka: between every two layers' features, [layers, layers].
        frequencies: of `amplitude`, units of pi a patch; none for grids that are not square.
        amplitude: relative log amplitude of every layer's features, [layers, frequencies].
    """

    images: int
    reading: str
    distance: list[Tensor]
    entropy: list[Tensor]
    uniform: list[tuple[float, float]]
    cka: Tensor
    frequencies: list[float]
    amplitude: Tensor

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON holds them; null for what is not defined."""
        return {
            "images": self.images,
            "reading": self.reading,
            "distance_pixels": [numbers(heads) for heads in self.distance],
            "entropy_nats": [numbers(heads) for heads in self.entropy],
            "uniform_distance_pixels": [distance for distance, _ in self.uniform],
            "uniform_entropy_nats": [entropy for _, entropy in self.uniform],
            "cka": numbers(self.cka),
            "frequencies_pi_a_patch": self.frequencies,
            "relative_log_amplitude": numbers(self.amplitude),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Inside":
        """The inverse of `to_dict`."""
        return cls(
            content["images"],
            content["reading"],
            [tensor(heads) for heads in content["distance_pixels"]],
            [tensor(heads) for heads in content["entropy_nats"]],
            list(zip(content["uniform_distance_pixels"], content["uniform_entropy_nats"], strict=True)),
            tensor(content["cka"]),
            content["frequencies_pi_a_patch"],
            tensor(content["relative_log_amplitude"]),
        )


def numbers(values: Tensor) -> Any:
    """A tensor as nested lists for JSON, with null for what is no number."""
    return [numbers(row) for row in values] if values.ndim > 1 else [None if v != v else v for v in values.tolist()]


def tensor(values: Any) -> Tensor:
    """The inverse of `numbers`, double precision."""
    if values and isinstance(values[0], list):
        return torch.stack([tensor(row) for row in values])
    return torch.tensor([math.nan if v is None else v for v in values], dtype=torch.float64)


def look_inside(student: nn.Module, batches: Iterable[Tensor], reading: str = "norms") -> Inside:
    """Attention statistics, CKA and Fourier amplitudes of a ViT; memory does not grow with the number of images.

    Args:
        student: in inference mode.
        batches: images [B, channels, H, W]; a last batch of another size counts in all but CKA.
        reading: what stands for a layer, see above.

    Raises: UserError for a student without attention or without what is to be read, or fewer images than CKA needs.
    """
    taps, statistics, cka = tapped(student, reading, "attention"), AttentionStatistics(), MinibatchCKA()
    assert taps.layout is not None
    pixels, size, images = spacings(taps.layout), 0, 0
    amplitudes: list[RunningMean] = []
    grids: list[PatchGrid] = []
    uniform: list[tuple[float, float]] = []
    for batch in batches:
        with torch.inference_mode():
            readings = taps(batch)
            statistics.add(readings.attention, pixels)
            layers, grids = patch_features(getattr(readings, reading), taps.layout, batch)
            size = size or len(batch)
            if len(batch) == size:
                cka.add(layers)
            if all(rows == columns for rows, columns in grids):
                amplitudes = amplitudes or [RunningMean() for _ in layers]
                for mean, tokens, grid in zip(amplitudes, layers, grids, strict=True):
                    mean.add(relative_log_amplitude(tokens, grid))
        looks = zip(readings.attention, pixels, strict=True)
        uniform = uniform or [(uniform_distance(r.grid, gap), math.log(math.prod(r.grid))) for r, gap in looks]
        images += len(batch)
    one_grid = bool(amplitudes) and len(set(grids)) == 1
    return Inside(
        images,
        reading,
        statistics.distance,
        statistics.entropy,
        uniform,
        cka.matrix(),
        frequencies(grids[0]) if one_grid else [],
        torch.stack([mean.value() for mean in amplitudes]) if one_grid else torch.zeros(len(grids), 0),
    )


def usual_reading(networks: Iterable[nn.Module]) -> str:
    """Norms, where all networks have one before each block; else blocks."""
    try:
        for network in networks:
            tapped(network, "norms")
    except UserError:
        return "blocks"
    return "norms"


def tapped(student: nn.Module, reading: str, *more: str) -> Taps:
    """A student that shows its layers. Raises: UserError if it has none."""
    if reading not in READ:
        raise unknown("reading of layers", reading, READ)
    return Taps(student, frozenset({reading, *more}))


def similarity(
    first: nn.Module, second: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], reading: str = "norms"
) -> Tensor:
    """CKA between the layers of two students, [layers of the first, layers of the second].

    Args:
        first: in inference mode; read by `blocks` any network that taps know, CNNs included.
        second: likewise.
        batches: the same images as each of the two takes them; a last batch of another size is left out.
        reading: what stands for a layer, see above.
    """
    taps, cka, size = [tapped(student, reading) for student in (first, second)], MinibatchCKA(), 0
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


def patch_features(layers: list[Tensor], layout: Layout, images: Tensor) -> tuple[list[Tensor], list[PatchGrid]]:
    """The patch tokens of every layer, [B, P, D] each, and their grids; other tokens are dropped."""
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
