# SPDX-License-Identifier: Apache-2.0
"""Pictures of one channel of more than eight bits, or of eight and a sign: their numbers and these numbers' range."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import TiffImageFile

from . import bands
from .channels import Levels, spread
from .orientation import turned

BITS, _SIGN = ExifTags.Base.BitsPerSample, ExifTags.Base.SampleFormat


def is_of_16_bits(mode: str) -> bool:
    """Whether a file whose mode is called so (`DecodedImage`) holds whole numbers of 16 bits."""
    return mode.startswith("I;16") or "uint16" in mode


def is_deep(mode: str) -> bool:
    """Whether a mode of Pillow's holds one channel of more than eight bits."""
    return mode.startswith("I;16") or mode in ("I", "F")


def is_signed(image: Image.Image) -> bool:
    """Whether a TIFF's numbers of eight bits go below 0, which Pillow takes for levels above 127."""
    return isinstance(image, TiffImageFile) and image.mode == "L" and image.tag_v2.get(_SIGN) == (2,)


def deep_values(image: Image.Image) -> NDArray[Any]:
    """The numbers of one channel of more than eight bits, or of eight and a sign, [H, W], turned as its camera was
    held, of the file's type."""
    values = np.asarray(turned(image, image))
    if not isinstance(image, TiffImageFile):
        return values
    tags = image.tag_v2
    (bits,) = tags.get(BITS, (8 * values.itemsize,))
    if image.mode == "L":
        values = values.view(np.int8)
    elif image.mode == "I":  # int32, though the file may hold int16 or, beyond 2^31 as negative numbers, uint32
        values = values.astype(f"{'i' if tags.get(_SIGN) == (2,) else 'u'}{bits // 8}")
    return bands.zero_as_black(values, tags.get(ExifTags.Base.PhotometricInterpretation), bits)


def of_known_range(values: NDArray[Any], kind: str | None) -> NDArray[Any]:
    """One channel as a type whose range black and white are, floats by `_ranged`, whole numbers where it can be told;
    else as they are.

    Args:
        values: [H, W].
        kind: Pillow's name of the file's format; None for a picture without a file.
    """
    if values.dtype.kind == "f":
        return _ranged(values.astype(np.float64))
    if (values.dtype.kind, values.dtype.itemsize) == ("u", 2):
        return values
    if kind not in (None, "TIFF"):  # PGM, which Pillow scales to 16 bits
        return values.astype(np.uint16)
    low, high = spread(values)
    return (values * (255 if high <= 1 else 1)).astype(np.uint8) if low >= 0 and high <= 255 else values


def _ranged(values: np.ndarray) -> Levels:
    """Floats of unknown range as 0..255."""
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError("no finite pixel")
    low, high = values[finite].min(), values[finite].max()
    if low >= 0 and high <= 1:
        scaled = values * 255
    elif low >= 0 and high <= 255:
        scaled = values
    else:
        scaled = (values - low) * (255 / ((high - low) or 1))
    return np.where(finite, scaled, 0).round().clip(0, 255).astype(np.uint8)
