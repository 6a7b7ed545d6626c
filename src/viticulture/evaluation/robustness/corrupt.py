# SPDX-License-Identifier: Apache-2.0
"""One image, one corruption, one severity: a pure function of the image and of (seed, number of the image).

Source of all 19: Hendrycks and Dietterich, ICLR 2019, arXiv:1903.12261; strengths: strengths.py. Deviations from the
published sets: see blur.py, weather.py, digital.py; random numbers are ours. Corruptions by noise are in this file.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from ...cache import cache_folder, digest, publish, refusals
from ...parallel import in_parallel
from . import blur, digital, weather
from .blur import ImageArray
from .strengths import CORRUPTIONS, SEVERITIES, level

Batches = Iterator[tuple[Tensor, Tensor]]  # images [B, 3, H, W] uint8 and labels [B], on the CPU

BATCH = 128
SEED = 0
_VERSION = "1"  # of the corruptions; raised when one of them changes


def gaussian_noise(image: ImageArray, draw: Generator, sd: float) -> ImageArray:
    """Compute image + sd n, n ~ N(0, 1): low light."""
    return image + sd * draw.standard_normal(image.shape)


def shot_noise(image: ImageArray, draw: Generator, photons: float) -> ImageArray:
    """Compute Poisson(photons image) / photons: discrete light."""
    return draw.poisson(photons * image) / photons


def impulse_noise(image: ImageArray, draw: Generator, share: float) -> ImageArray:
    """Set this share of all values to 0 or 1, half each: bit errors."""
    u = draw.random(image.shape)
    return np.where(u < share, u < share / 2, image)


def speckle_noise(image: ImageArray, draw: Generator, sd: float) -> ImageArray:
    """Compute image + sd image n, n ~ N(0, 1)."""
    return image * (1 + sd * draw.standard_normal(image.shape))


_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    name: function
    for module in (globals(), vars(blur), vars(weather), vars(digital))
    for name, function in module.items()
    if name in CORRUPTIONS
}


def corrupt(image: np.ndarray, corruption: str, severity: int, seed: int, number: int) -> np.ndarray:
    """Corrupt an image, with the strength of the published set of the nearest size. `image`: [H, W, 3] uint8, at least
    8 pixels a side. Returns: [H, W, 3] uint8; clipped to [0, 255] and rounded down, like the published sets.
    """
    numbers = level(corruption, severity, min(image.shape[:2]))
    draw = np.random.default_rng((seed, number, CORRUPTIONS.index(corruption), severity))
    corrupted = _FUNCTIONS[corruption](image / 255, draw, *numbers)
    return (255 * np.clip(corrupted, 0, 1) + 1e-6).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class CleanImages:
    """Images in the size of the network's input, before normalization."""

    open: Callable[[], Batches]
    labels: Tensor
    # [N] of the images in their split; they seed the noise, so that a part of a split is corrupted like the whole.
    numbers: Tensor
    size: tuple[int, int]

    @cached_property
    def content(self) -> str:
        """32 hexadecimal digits that change with a pixel, a label or a number."""
        pixels = hashlib.blake2b(digest_size=16)
        for some, _ in self.open():
            pixels.update(some.contiguous().numpy().tobytes())
        return digest([pixels.hexdigest(), *map(str, self.labels.tolist()), *map(str, self.numbers.tolist())])


def corrupted_batches(clean: CleanImages, corruption: str, severity: int, budget: int) -> Batches:
    """Corrupt images, or read them from the cache; the result does not depend on earlier calls. `budget`: bytes that
    all corruptions of these images may take in the cache; beyond it they are not cached.
    """
    height, width = clean.size
    folder = cache_folder() / "decoded"
    folder.mkdir(parents=True, exist_ok=True)
    need = len(CORRUPTIONS) * len(SEVERITIES) * len(clean.numbers) * 3 * height * width
    if need > min(budget, shutil.disk_usage(folder).free / 2):
        return _corrupted(clean, corruption, severity)

    folder /= digest([_VERSION, str(SEED), clean.content, corruption, str(severity)])
    with refusals(folder):
        publish(folder, lambda made: _write(made / "pixels.npy", clean, corruption, severity), holds=["pixels.npy"])
        pixels: Tensor = torch.from_numpy(np.load(folder / "pixels.npy", mmap_mode="c", allow_pickle=False))
    return zip(torch.split(pixels, BATCH), torch.split(clean.labels, BATCH), strict=True)


def _corrupted(clean: CleanImages, corruption: str, severity: int) -> Batches:
    done = 0
    for pixels, labels in clean.open():
        images, numbers = pixels.permute(0, 2, 3, 1).numpy(), clean.numbers[done : done + len(pixels)].tolist()
        done += len(pixels)

        def one(i: int, images: np.ndarray = images, numbers: list[int] = numbers) -> np.ndarray:
            return corrupt(images[i], corruption, severity, SEED, numbers[i])

        batch = np.stack(list(in_parallel(one, range(len(numbers)))))
        yield torch.from_numpy(batch).permute(0, 3, 1, 2), labels


def _write(file: Path, clean: CleanImages, corruption: str, severity: int) -> None:
    with file.open("wb") as out:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(clean.numbers), 3, *clean.size)}
        np.lib.format.write_array_header_2_0(out, header)
        for pixels, _ in _corrupted(clean, corruption, severity):
            out.write(pixels.contiguous().numpy().tobytes())
