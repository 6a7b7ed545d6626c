# SPDX-License-Identifier: Apache-2.0
"""What a person hands over as images: files, folders, pictures of any library, alone or many."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import UserError, shortened

Pixels = NDArray[np.uint8]
"""[H, W, 3]."""


def as_images(given: Any) -> list[Path | Pixels]:
    """One item an image or folder, in order.

    Args:
        given: a path (str or Path); PIL's image; an array [H, W] or [H, W, 3], or a tensor [3, H, W] or [1, H, W],
            uint8 or floats in [0, 1]; a batch of arrays or tensors; any iterable of these, such as a list or a column
            of a data frame.

    Raises: UserError for anything else, or an array whose numbers are no colors.
    """
    if isinstance(given, (str, os.PathLike)):
        if not os.fspath(given):
            raise UserError("an image's name is empty; name image files, or folders (. is the one you are in)")
        return [Path(given)]
    if isinstance(given, Image.Image):
        return [np.asarray(ImageOps.exif_transpose(given).convert("RGB"))]
    if isinstance(given, Tensor):
        given = given.detach().cpu().movedim(-3, -1).numpy() if given.ndim in (3, 4) else given.numpy(force=True)
    if isinstance(given, np.ndarray) and given.dtype != object:
        if given.ndim == 4:
            return [_pixels(one) for one in given]
        return [_pixels(given)]
    if isinstance(given, Iterable) and not isinstance(given, (bytes, dict)):
        return [image for item in given for image in as_images(item)]
    raise UserError(f"no image: {shortened(repr(given))}; give a path, a picture of PIL, an array or a tensor")


def _pixels(array: NDArray[Any]) -> Pixels:
    """[H, W], [H, W, 1] or [H, W, 3] of uint8, or of floats in [0, 1], as [H, W, 3] uint8."""
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
