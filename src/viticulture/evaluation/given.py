# SPDX-License-Identifier: Apache-2.0
"""Images of a Python program: files, folders, pictures of any library, encoded bytes, one or many."""

import os
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image
from torch import Tensor

from ..data.decode import Decoded, Unreadable, reason
from ..data.pixels import as_pixels
from ..data.sources.table import column_of, is_frame
from ..errors import UserError, received

ImageInput = Path | Decoded | BinaryIO | Unreadable
"""One image: a file here, pixels, an open file at its start, or the reason why an object is no image."""


def as_images(given: Any) -> list[ImageInput]:
    """One item an image or folder, in order; an object that is no image, or a damaged one, is an `Unreadable`.

    Args:
        given: a path (str or Path); PIL's image; an array [H, W] or [H, W, C], or a tensor [C, H, W] or, of colors,
            [H, W, 3], uint8, uint16 or floats in [0, 1], or of any numbers where the run has their `images.range`; a
            batch of arrays or tensors; the bytes of an image file, or an open one; any iterable of these, such as a
            list or a column of a data frame; a data frame with the column path.

    Raises: UserError for an empty list, an empty name, and a data frame without the column.
    """
    items = list(_items(given))
    if not items:
        raise UserError(f"no images were given, got {received(given)}; give at least one")
    return items


def _items(given: Any) -> Iterator[ImageInput]:
    if isinstance(given, (str, os.PathLike)):
        if not os.fspath(given):
            raise UserError("an image's name is empty; name image files, or folders (. is the one you are in)")
        yield Path(given)
    elif is_frame(given):
        yield from _items(list(column_of(given, "path")))
    elif isinstance(given, (bytes, bytearray, memoryview)):
        yield BytesIO(given)
    elif isinstance(given, np.ndarray) and given.ndim == 0:
        yield from _items(given.item())
    elif isinstance(given, (Tensor, np.ndarray)) and given.ndim == 4:
        yield from map(_pixels, given)
    elif isinstance(given, (Image.Image, Tensor)) or (isinstance(given, np.ndarray) and given.dtype.kind not in "OSU"):
        yield _pixels(given)
    elif hasattr(given, "read"):
        yield _content(given)
    elif isinstance(given, Iterable) and not isinstance(given, dict):
        for item in given:
            yield from _items(item)
    else:
        yield _pixels(given)


def _pixels(image: Any) -> Decoded | Unreadable:
    """An image's pixels, or what is wrong with it, whatever its library raises."""
    try:
        return as_pixels(image)
    except UserError as error:
        return Unreadable("image", str(error))
    except Exception as error:
        return Unreadable("image", reason(error))


def _content(file: Any) -> BinaryIO | Unreadable:
    """The rest of an open file."""
    try:
        content = file.read()
    except (OSError, ValueError) as error:  # a closed one
        return Unreadable("image", f"an open file cannot be read: {error}")
    if not isinstance(content, bytes):
        return Unreadable("image", "an open file must be binary, as open(path, 'rb')")
    return BytesIO(content)
