# SPDX-License-Identifier: Apache-2.0
"""One image of any library, as the numbers that its file would give."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import UserError, shortened
from .decode import upright

Pixels = NDArray[Any]
"""[H, W, C] of any numbers; `decode.decode` makes levels of them."""


def as_pixels(image: Any) -> Pixels:
    """One image as numbers, [H, W, C].

    Args:
        image: PIL's, RGB as a person would see it, of gray in 16 bits its own numbers; an array [H, W] or [H, W, C]; a
            tensor [H, W] or [C, H, W].

    Raises: UserError for anything else.
    """
    if isinstance(image, Image.Image):
        pixels = np.asarray(image if image.mode.startswith("I;16") else upright(image))
        return pixels[..., None] if pixels.ndim == 2 else pixels
    if isinstance(image, Tensor):
        image = image.detach().movedim(-3, -1).numpy(force=True) if image.ndim == 3 else image.numpy(force=True)
    if isinstance(image, np.ndarray) and image.dtype.kind in "buif":
        array = image[..., None] if image.ndim == 2 else image
        if array.ndim != 3 or not array.size:
            raise UserError(f"an array is an image if it is [H, W] or [H, W, channels], got {list(image.shape)}")
        return array
    raise UserError(f"no image: {shortened(repr(image))}; give a picture of PIL, an array or a tensor")
