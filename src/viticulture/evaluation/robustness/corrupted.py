# SPDX-License-Identifier: Apache-2.0
"""A split as a student is shown it, corrupted on the fly; kept in the cache of decoded images where there is room."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...cache import cache_folder, digest, publish, refusals
from ...parallel import in_parallel
from .corrupt import corrupt
from .strengths import CORRUPTIONS, SEVERITIES

Batches = Iterator[tuple[Tensor, Tensor]]
"""Images [B, 3, H, W] uint8 and labels [B], on the CPU."""

BATCH = 128
SEED = 0
_VERSION = "1"  # of the corruptions; raised when one of them changes


@dataclass(frozen=True, eq=False)
class Views:
    """Images as they are shown, before normalization.

    Args:
        open: all of them, in order, as often as it is called.
        labels: [N].
        numbers: [N] of the images in their split; they draw the noise, so that a part of a split is spoilt as in whole.
        size: H, W, pixels.
    """

    open: Callable[[], Batches]
    labels: Tensor
    numbers: Tensor
    size: tuple[int, int]

    @cached_property
    def content(self) -> str:
        """32 hexadecimal digits that change with a pixel, a label or a number."""
        pixels = hashlib.blake2b(digest_size=16)
        for some, _ in self.open():
            pixels.update(some.contiguous().numpy().tobytes())
        return digest([pixels.hexdigest(), *map(str, self.labels.tolist()), *map(str, self.numbers.tolist())])


def corrupted(views: Views, corruption: str, severity: int, budget: int) -> Batches:
    """The images, spoilt; the same whatever was asked for before.

    Args:
        views: clean.
        corruption: one of `strengths.CORRUPTIONS`.
        severity: 1 to 5.
        budget: bytes that all corruptions of these images may take in the cache; without room they are made each time.
    """
    height, width = views.size
    stores = cache_folder() / "decoded"
    stores.mkdir(parents=True, exist_ok=True)
    need = len(CORRUPTIONS) * len(SEVERITIES) * len(views.numbers) * 3 * height * width
    if need > min(budget, shutil.disk_usage(stores).free / 2):
        return _made(views, corruption, severity)

    key = digest([_VERSION, str(SEED), views.content, corruption, str(severity)])
    folder = stores / key
    with refusals(folder):
        publish(folder, lambda made: _fill(made / "pixels.npy", views, corruption, severity), holds=["pixels.npy"])
        kept: Tensor = torch.from_numpy(np.load(folder / "pixels.npy", mmap_mode="c", allow_pickle=False))
    return zip(torch.split(kept, BATCH), torch.split(views.labels, BATCH), strict=True)


def _made(views: Views, corruption: str, severity: int) -> Batches:
    done = 0
    for pixels, labels in views.open():
        pictures, numbers = pixels.permute(0, 2, 3, 1).numpy(), views.numbers[done : done + len(pixels)].tolist()
        done += len(pixels)

        def spoil(i: int, pictures: np.ndarray = pictures, numbers: list[int] = numbers) -> np.ndarray:
            return corrupt(pictures[i], corruption, severity, SEED, numbers[i])

        spoilt = np.stack(list(in_parallel(spoil, range(len(numbers)))))
        yield torch.from_numpy(spoilt).permute(0, 3, 1, 2), labels


def _fill(file: Path, views: Views, corruption: str, severity: int) -> None:
    with file.open("wb") as out:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(views.numbers), 3, *views.size)}
        np.lib.format.write_array_header_2_0(out, header)
        for pixels, _ in _made(views, corruption, severity):
            out.write(pixels.contiguous().numpy().tobytes())
