# SPDX-License-Identifier: Apache-2.0
"""What a person hands over as images: files, folders, pictures of any library, alone or many."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ..data.decode import Decoded
from ..data.pixels import as_pixels
from ..errors import UserError, described


def as_images(given: Any) -> list[Path | Decoded]:
    """One item an image or folder, in order.

    Args:
        given: a path (str or Path); PIL's image; an array [H, W] or [H, W, C], or a tensor [C, H, W], uint8, uint16 or
            floats in [0, 1], or of any numbers where the run has their `images.range`; a batch of arrays or tensors;
            any iterable of these, such as a list or a column of a data frame.

    Raises: UserError for anything else.
    """
    if isinstance(given, (str, os.PathLike)):
        if not os.fspath(given):
            raise UserError("an image's name is empty; name image files, or folders (. is the one you are in)")
        return [Path(given)]
    if isinstance(given, (Image.Image, Tensor)) or (isinstance(given, np.ndarray) and given.dtype.kind not in "OU"):
        if isinstance(given, (Tensor, np.ndarray)) and given.ndim == 4:
            return [as_pixels(image) for image in given]
        return [as_pixels(given)]
    if isinstance(given, Iterable) and not isinstance(given, (bytes, dict)):
        return [image for item in given for image in as_images(item)]
    raise UserError(f"no image: {described(given)}; give a path, a picture of PIL, an array or a tensor")
