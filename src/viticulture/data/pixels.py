# SPDX-License-Identifier: Apache-2.0
"""One image of any library, as the pixels that its file would give."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import UserError, shortened
from .decode import upright

Pixels = NDArray[np.uint8]
"""[H, W, 3]."""


def as_pixels(image: Any) -> Pixels:
    """One image as a person would see it, [H, W, 3] uint8.

    Args:
        image: PIL's; an array [H, W], [H, W, 1] or [H, W, 3]; a tensor [H, W], [1, H, W] or [3, H, W]; the numbers are
            uint8, or floats in [0, 1].

    Raises: UserError for anything else, or numbers that are no colors.
    """
    if isinstance(image, Image.Image):
        return np.asarray(upright(image))
    if isinstance(image, Tensor):
        image = image.detach().movedim(-3, -1).numpy(force=True) if image.ndim == 3 else image.numpy(force=True)
    if isinstance(image, np.ndarray) and image.dtype != object:
        return _colors(image)
    raise UserError(f"no image: {shortened(repr(image))}; give a picture of PIL, an array or a tensor")


def _colors(array: NDArray[Any]) -> Pixels:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3) or not array.size:
        raise UserError(f"an array is an image if it is [H, W], [H, W, 1] or [H, W, 3], got {list(array.shape)}")
    if array.dtype != np.uint8:
        if not np.issubdtype(array.dtype, np.floating):
            raise UserError(f"an array is an image if it holds uint8, or floats in [0, 1], got {array.dtype}")
        if not (array.min() >= 0 and array.max() <= 1):  # a NaN is no color
            raise UserError(f"floats of an image lie in [0, 1], got {array.min():.3g} to {array.max():.3g}")
        array = np.rint(array * 255).astype(np.uint8)
    return np.broadcast_to(array, (*array.shape[:2], 3))
