# SPDX-License-Identifier: Apache-2.0
"""Keep images whole: padded or stretched to the shape of the network's input before anything else sees them.

A fitted image takes the place of the original, with a size of that shape: a store, crops, pages and predictions need
not know of it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .decode import MAX_PIXELS, DecodedImage, Unreadable


@dataclass(frozen=True)
class Fit:
    """How an image gets another shape.

    Args:
        kind: pad: the image stands in the middle of a plain color, as much of it as is needed; stretch: its sides are
            scaled apart.
        fill: that color, 0 to 255 in each channel.
        shape: height and width of the network's input; their ratio is the shape.
    """

    kind: Literal["pad", "stretch"]
    fill: tuple[int, ...]
    shape: tuple[int, int] = (1, 1)

    @property
    def fingerprint(self) -> str:
        """Changes with what it does to pixels."""
        return f"{self.kind} {self.fill} {self.shape}"

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the smallest rectangle of that shape around an image, pixels."""
        H, W = self.shape
        return max(height, round(width * H / W)), max(width, round(height * W / H))

    def __call__(self, decoded: DecodedImage, name: str) -> DecodedImage:
        """What stands for an image. A stretched one has its old pixels: what squeezes it does the rest.

        Raises: Unreadable for a strip so long that it would fill memory.
        """
        height, width = self.size(decoded.height, decoded.width)
        pixels = decoded.pixels
        rows, columns = pixels.shape[:2]
        tall, wide = self.size(rows, columns)  # of a JPEG, a fraction of the others
        if self.kind == "pad" and (tall, wide) != (rows, columns):
            if tall * wide > MAX_PIXELS:
                raise Unreadable(name, f"padded to {wide} x {tall} it is more than {MAX_PIXELS:,} pixels")
            page = np.full((tall, wide, len(self.fill)), self.fill, dtype=np.uint8)
            top, left = (tall - rows) // 2, (wide - columns) // 2
            page[top : top + rows, left : left + columns] = pixels
            pixels = page
        return decoded._replace(pixels=pixels, height=height, width=width)
