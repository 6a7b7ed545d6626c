# SPDX-License-Identifier: Apache-2.0
"""Images that are in memory already."""

import hashlib
from collections.abc import Sequence

import numpy as np

from .source import Reader, Source


class ArrayReader(Reader):
    """Images held as arrays.

    Args:
        pixels: [N, H, W] or [N, H, W, C] of numbers.
    """

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def open(self, i: int) -> np.ndarray:
        return np.ascontiguousarray(self.pixels[i])


def from_arrays(name: str, classes: Sequence[str], parts: dict[str, tuple[np.ndarray, np.ndarray]]) -> Source:
    """Make a source of images in memory.

    Args:
        name: what to call it.
        classes: class names in the order of the labels.
        parts: "train", "val", "test" -> images [N, H, W] or [N, H, W, C], labels [N] (-1 without).
    """
    splits, names, start = {}, [], 0
    for kind, (_, labels) in parts.items():
        splits[kind] = np.arange(start, start + len(labels))
        names += [f"{kind}/{i:05d}" for i in range(len(labels))]
        start += len(labels)
    pixels = np.concatenate([images for images, _ in parts.values()])
    return Source(
        name=name,
        classes=tuple(classes),
        labels=np.concatenate([np.asarray(labels, dtype=np.int64) for _, labels in parts.values()]),
        names=names,
        splits=splits,
        fingerprints=[hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() for image in pixels],
        reader=ArrayReader(pixels),
    )
