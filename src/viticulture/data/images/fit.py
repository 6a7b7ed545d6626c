# SPDX-License-Identifier: Apache-2.0
"""Keep images whole: pad or stretch them to the shape of the network's input before anything else.

A fitted image takes the place of the original, with a size of that shape: the cache, crops, pages and predictions are
not affected.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .decode import DecodedImage, Unreadable
from .pillow import MAX_PIXELS


@dataclass(frozen=True)
class Fit:
    """Gives an image another shape."""

    kind: Literal["pad", "stretch"]  # pad puts the image in the middle of a plain color; stretch scales its sides apart
    fill: tuple[int, ...]  # that color, 0 to 255 in each channel
    shape: tuple[int, int] = (1, 1)  # height and width of the network's input; their ratio is the shape

    @property
    def fingerprint(self) -> str:
        """Changes with the resulting pixels."""
        return f"{self.kind} {self.fill} {self.shape}"

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the smallest rectangle of that shape around an image, pixels."""
        H, W = self.shape
        return max(height, round(width * H / W)), max(width, round(height * W / H))

    def __call__(self, decoded: DecodedImage, name: str) -> DecodedImage:
        """Fit an image. A stretched one keeps its pixels: resizing to the cache's square does the rest.

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
