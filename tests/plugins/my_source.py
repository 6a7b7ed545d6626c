# SPDX-License-Identifier: Apache-2.0
"""A source outside the package: striped images, vertical or horizontal."""

import numpy as np

from viticulture.plugins import Reader, Source

CLASSES = ("upright", "lying")


class Stripes(Reader):
    """Image i has stripes of width 1 + i % 3. Args: side: pixels."""

    def __init__(self, side: int) -> None:
        self.side = side

    def open(self, i: int) -> np.ndarray:
        stripes = (np.arange(self.side) // (1 + i % 3) % 2 * 200).astype(np.uint8)
        pixels = np.broadcast_to(stripes, (self.side, self.side))
        return np.ascontiguousarray(pixels if i % 2 == 0 else pixels.T)


def open_stripes(side: str = "8") -> Source:
    """48 images. Args: side: pixels."""
    numbers = np.arange(48)
    return Source(
        name=f"stripes of {side} pixels",
        classes=CLASSES,
        labels=numbers % 2,
        names=[f"stripes/{i}" for i in numbers],
        splits={"train": numbers[:36], "test": numbers[36:]},
        fingerprints=[f"{side} {i % 3}" for i in numbers],
        reader=Stripes(int(side)),
    )


def open_nothing() -> list[int]:
    """No source."""
    return []
