# SPDX-License-Identifier: Apache-2.0
"""Images in memory, and scikit-learn's handwritten digits, which every installation has."""

import gzip
import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import subsets
from .source import Reader, Source


class ArrayReader(Reader):
    """Images held as an array [N, H, W] or [N, H, W, C]."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def open(self, i: int) -> np.ndarray:
        return np.ascontiguousarray(self.pixels[i])


def from_arrays(name: str, classes: Sequence[str], parts: dict[str, tuple[np.ndarray, np.ndarray]]) -> Source:
    """Make a source of images in memory. `parts`: "train", "val", "test" -> images [N, H, W] or [N, H, W, C], labels
    [N] (-1 without).
    """
    counts = [len(labels) for _, labels in parts.values()]
    ends = np.cumsum(counts)
    pixels = np.concatenate([images for images, _ in parts.values()])
    return Source(
        name=name,
        classes=tuple(classes),
        labels=np.concatenate([np.asarray(labels, dtype=np.int64) for _, labels in parts.values()]),
        names=[f"{kind}/{i:05d}" for kind, count in zip(parts, counts, strict=True) for i in range(count)],
        splits={kind: np.arange(end - n, end) for kind, end, n in zip(parts, ends, counts, strict=True)},
        fingerprints=[hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() for image in pixels],
        reader=ArrayReader(pixels),
    )


def open_digits() -> Source:
    """Open scikit-learn's 1,797 digits of 8 x 8 pixels, 0..16 scaled to 0..255; 897 to train and 900 to test,
    stratified. They are read from scikit-learn's file, since importing `sklearn.datasets` takes longer than a second.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    table = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(table, "rt") as file:
        rows = np.loadtxt(file, delimiter=",")  # 64 pixels and the digit
    pixels, labels = rows[:, :64].reshape(-1, 8, 8), rows[:, 64].astype(np.int64)
    pixels = np.round(pixels * (255 / 16)).astype(np.uint8)
    train, test = subsets.holdout(labels, 900 / 1797, seed=0)
    parts = {kind: (pixels[rows], labels[rows]) for kind, rows in (("train", train), ("test", test))}
    return from_arrays("digits", [str(digit) for digit in range(10)], parts)
