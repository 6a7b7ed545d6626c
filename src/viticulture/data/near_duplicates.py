# SPDX-License-Identifier: Apache-2.0
"""Pictures that are nearly the same, shrunk, recompressed or slightly changed, found by small gray thumbnails."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16
"""Of a thumbnail, pixels."""
LEAST_SIDE = 32
"""Of an image: of smaller ones a thumbnail tells too little."""
MOST_BITS = 6
"""Of 64, in which two copies may differ."""
MOST_LEVELS = 4.0
"""Gray levels by which thumbnails of two copies may differ, mean over their pixels."""
LEAST_SPREAD = 8.0
"""Gray levels, standard deviation of a thumbnail: a flatter image resembles every other flat one."""
CROWD = 200
"""Images that share a part of their hash: it tells nothing of them."""

Thumbnail = NDArray[np.uint8]
"""[SIDE, SIDE] gray levels."""


def thumbnail(image: Image.Image) -> Thumbnail | None:
    """What two copies of a picture share; None for images that are too small."""
    if min(image.size) < LEAST_SIDE:
        return None
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


def near_duplicates(thumbnails: Mapping[int, Thumbnail], kind_of: Mapping[int, str]) -> list[tuple[int, int]]:
    """Pairs of images of different kinds that look the same, the lower number first.

    A hash has 64 bits: whether a pixel of the halved thumbnail is lighter than the next one in its row. Images are
    compared that share 16 of them at their place.

    Args:
        thumbnails: number of an image -> its thumbnail.
        kind_of: number -> its kind, such as its split; images without are left out.
    """
    numbers = [i for i, pixels in thumbnails.items() if i in kind_of and pixels.std() >= LEAST_SPREAD]
    if not numbers:
        return []
    pixels = np.stack([thumbnails[i] for i in numbers]).astype(np.float32)
    bits = _bits(pixels)
    pairs: set[tuple[int, int]] = set()
    for part in np.split(np.packbits(bits, axis=1).view(np.uint16), 4, axis=1):
        order = np.argsort(part[:, 0], kind="stable")
        edges = np.flatnonzero(np.diff(part[order, 0])) + 1
        for group in np.split(order, edges):
            if 1 < len(group) <= CROWD:
                pairs |= _same(group.tolist(), bits, pixels)
    alike = sorted(tuple(sorted((numbers[a], numbers[b]))) for a, b in pairs)
    return [(a, b) for a, b in alike if kind_of[a] != kind_of[b]]


def _bits(pixels: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[N, SIDE, SIDE] -> [N, 64]: rows halved, of nine columns the differences of neighbors."""
    rows = pixels.reshape(len(pixels), 8, 2, SIDE).mean(2)  # [N, 8, SIDE]
    nine = rows[:, :, np.linspace(0, SIDE - 1, 9).round().astype(int)]
    return (nine[:, :, 1:] > nine[:, :, :-1]).reshape(len(pixels), 64)


def _same(group: Sequence[int], bits: NDArray[np.bool_], pixels: NDArray[np.float32]) -> set[tuple[int, int]]:
    apart = (bits[group][:, None] ^ bits[group][None]).sum(2)
    close = np.argwhere(np.triu(apart <= MOST_BITS, 1)).tolist()
    pairs = [(group[a], group[b]) for a, b in close]
    return {(min(a, b), max(a, b)) for a, b in pairs if np.abs(pixels[a] - pixels[b]).mean() <= MOST_LEVELS}
