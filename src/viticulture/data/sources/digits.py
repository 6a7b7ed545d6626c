# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's handwritten digits, which every installation holds."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from .. import subsets
from .arrays import from_arrays
from .source import Source


def open_digits() -> Source:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, 0..16 scaled to 0..255; 897 to train and 900 to test, stratified.

    They are read from scikit-learn's file, since importing `sklearn.datasets` takes longer than a second.
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
