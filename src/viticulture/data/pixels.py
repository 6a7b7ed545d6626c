# SPDX-License-Identifier: Apache-2.0
"""One image of any library, as its file would give it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from torch import Tensor

from ..errors import UserError, received
from .decode import Decoded
from .deep_png import loaded

CLOSED = "a picture of PIL was closed before its pixels were used; call its load() while it is open, or give its copy()"


def as_pixels(image: Any) -> Decoded:
    """One image as `decode.decode` takes it: numbers [H, W, C], or Pillow's picture, loaded.

    Args:
        image: Pillow's; an array [H, W] or [H, W, C]; a tensor [H, W] or [C, H, W], or [H, W, C] of one or three
            channels.

    Raises: UserError for anything else, and for a picture that was closed; what Pillow raises of one that is damaged.
    """
    if isinstance(image, Image.Image):
        if isinstance(image, ImageFile) and image.tile and image.fp is None:
            raise UserError(CLOSED)
        try:
            return loaded(image)  # here, as a picture reads its file once, whichever thread asks
        except ValueError as error:  # of Pillow, or of the file that a program gave it
            if "closed" not in str(error):
                raise
            raise UserError(CLOSED) from error
    if isinstance(image, Tensor):
        image = in_numpy(image if channels_stand_last(image) or image.ndim != 3 else image.movedim(-3, -1))
    if isinstance(image, np.ndarray) and image.dtype.kind in "buif":
        array = image[..., None] if image.ndim == 2 else image
        if array.ndim != 3 or not array.size:
            raise UserError(f"an array is an image if it is [H, W] or [H, W, channels], got {list(image.shape)}")
        return array
    raise UserError(f"no image: {received(image)}; give a picture of PIL, an array or a tensor")


def channels_stand_last(images: Tensor) -> bool:
    """Return whether tensors are [..., H, W, C] and not [..., C, H, W]: three or one stand last alone."""
    return images.ndim >= 3 and images.shape[-1] in (1, 3) and images.shape[-3] not in (1, 3)


def in_numpy(values: Tensor) -> NDArray[Any]:
    """A tensor's values as an array; those of bfloat16, which NumPy does not know, as float32."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)
