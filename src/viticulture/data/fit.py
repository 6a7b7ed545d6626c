# SPDX-License-Identifier: Apache-2.0
"""Keep oblong images whole: padded or stretched to a square before anything else sees them.

A fitted image takes the place of the original, with the square's size: a store, crops, pages and predictions need not
know of it.
"""

from dataclasses import dataclass
from typing import Literal

from PIL import Image

from .decode import MAX_PIXELS, DecodedImage, Unreadable


@dataclass(frozen=True)
class Fit:
    """How an image becomes a square.

    Args:
        kind: pad: the longer side is the square's, and the image stands in the middle of a plain color; stretch: each
            side becomes the square's.
        fill: that color, 0 to 255.
    """

    kind: Literal["pad", "stretch"]
    fill: tuple[int, int, int]

    @property
    def mark(self) -> str:
        """Changes with what it does to pixels."""
        return self.kind if self.kind == "stretch" else f"pad {self.fill}"

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the square that stands for an image, pixels."""
        return max(height, width), max(height, width)

    def __call__(self, decoded: DecodedImage, name: str) -> DecodedImage:
        """The square that stands for an image. A stretched one has its old pixels: what squeezes it does the rest.

        Raises: Unreadable for a strip so long that its square would fill memory.
        """
        height, width = self.size(decoded.height, decoded.width)
        image = decoded.image
        if self.kind == "pad" and image.height != image.width:
            side = max(image.size)
            if side * side > MAX_PIXELS:
                raise Unreadable(name, f"padded to {side} x {side} it is more than {MAX_PIXELS:,} pixels")
            square = Image.new("RGB", (side, side), self.fill)
            square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
            image = square
        return DecodedImage(image, height, width, decoded.mode)
