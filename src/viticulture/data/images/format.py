# SPDX-License-Identifier: Apache-2.0
"""The format of decoded images: how many channels, and which values become black and white.

Networks are fed uint8, 0 to 255. Values of more bits are mapped linearly,

    pixel = 255 (value - low) / (high - low),  rounded and clipped

by the whole range of their type, or by a given value range (`images.range`). Values closer together than
(high - low) / 255 become equal: of 12 bits stored in 16, the whole range of 16 bits leaves 17 levels, and their
own range, 0 to 4095, all 256.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import counted

Pixels = NDArray[np.uint8]  # [H, W, C]

Ranges = tuple[tuple[float, float], ...]  # low and high, of all channels or of each

LUMA = (19595, 38470, 7471)  # of red, green and blue, over 65536: ITU-R 601-2, as Pillow computes it


class Unfit(ValueError):
    """Values that do not fit the format; its text says why, and what to do."""


@dataclass(frozen=True)
class PixelFormat:
    """Channels and value range of decoded images."""

    channels: int | None = 3
    # Values that become black and white; empty takes those of the type: 0 and 255, 0 and 65535, of floats 0 and 1.
    range: Ranges = ()

    @property
    def fingerprint(self) -> str:
        """Changes with the resulting pixels; empty for the default format."""
        return "" if self == RGB else f"{self.channels} channels {self.range}"

    def __call__(self, values: NDArray[Any]) -> Pixels:
        """Convert values [H, W] or [H, W, C], of any numbers. One channel is repeated three times; three are converted
        to gray where one is requested. Raises: Unfit for another number of channels, or an unknown value range.
        """
        values = values[..., None] if values.ndim == 2 else values
        if values.ndim != 3 or not values.size:
            raise Unfit(f"an image is [H, W] or [H, W, channels], got {list(values.shape)}")
        self.check(values.shape)
        there, requested = values.shape[2], self.channels or values.shape[2]
        # Repeated before they become pixels: a range for each channel makes three different ones of a gray value.
        pixels = self._pixels(np.repeat(values, requested, axis=2) if there < requested else values)
        return gray(pixels) if there > requested else pixels

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises: Unfit where an image [H, W] or [H, W, C] cannot be converted to the channels."""
        there = shape[2] if len(shape) == 3 else 1
        if self.channels not in (None, there) and (there, self.channels) not in ((1, 3), (3, 1)):
            raise Unfit(other_channels((*shape[:2], there), self.channels))

    def _pixels(self, values: NDArray[Any]) -> Pixels:
        if self.range:
            return mapped(values, *np.array(self.range, dtype=np.float64).T)
        if values.dtype == np.uint8:
            return values
        if values.dtype == bool:
            return values.astype(np.uint8) * np.uint8(255)
        if (values.dtype.kind, values.dtype.itemsize) == ("u", 2):  # in either order of bytes
            return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
        low, high = value_range(values)
        finite = bool(np.isfinite(values).all())
        if values.dtype.kind == "f" and low >= 0 and high <= 1 and finite:
            return np.rint(values * 255).astype(np.uint8)
        if self.channels is None:
            return mapped(values, np.float64(low), np.float64(high if high > low else low + 1))
        numbers = f"{low:.6g} to {high:.6g}" + ("" if finite else ", nan or infinity among them")
        example = f", such as [{low:.6g}, {high:.6g}]" if low < high else ""
        raise Unfit(
            f"holds {values.dtype} from {numbers}; known ranges are 8 or 16 bits, or floats from 0 to 1 (leave "
            f"normalization to images.normalize); for others give the values of black and white: images.range{example}"
        )


RGB = PixelFormat()
ANY_FORMAT = PixelFormat(None)


def mapped(values: NDArray[Any], low: Any, high: Any) -> Pixels:
    """Map values to uint8, low to 0 and high to 255; nan becomes 0."""
    precise = np.float32 if values.dtype.itemsize <= 2 else np.float64  # exact for 16 bits
    scaled = (values.astype(precise) - low.astype(precise)) * (255 / (high - low)).astype(precise)
    pixels: Pixels = np.nan_to_num(np.rint(scaled), nan=0).clip(0, 255).astype(np.uint8)
    return pixels


def value_range(values: NDArray[Any]) -> tuple[float, float]:
    """Smallest and largest finite value; 0, 0 where none is."""
    finite = values if values.dtype.kind != "f" else values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def levels_left(extent: float) -> str:
    """Say how many of the 256 levels are left of 16-bit values in 0..extent."""
    return counted(1 + round(extent * 255 / 65535), "level")


def gray(pixels: Pixels) -> Pixels:
    """The gray value of each pixel, as Pillow computes it: [H, W, 3] -> [H, W, 1]."""
    return ((pixels.astype(np.uint32) @ np.array(LUMA, np.uint32) + 32768) >> 16).astype(np.uint8)[..., None]


def as_picture(pixels: Pixels) -> Pixels:
    """Convert to [H, W, 3] for display: one channel as gray, of two the mean, of more the first 3."""
    if pixels.shape[-1] >= 3:
        return pixels[..., :3]
    mean = pixels.mean(axis=-1, keepdims=True).round().astype(np.uint8) if pixels.shape[-1] == 2 else pixels
    return np.repeat(mean, 3, axis=-1)


def displayed(channels: int) -> str:
    """Say how `as_picture` displays images, with a space before; empty where nothing is left out."""
    if channels == 2:
        return " Images have 2 channels, displayed is their mean."
    more = f" Images have {channels} channels, the first three are displayed as red, green and blue."
    return more if channels > 3 else ""


def other_channels(shape: tuple[int, ...], channels: int) -> str:
    """Say why an image of this shape does not have so many channels, and what to do."""
    why = f"holds {counted(shape[2], 'channel')}, and images.channels is {channels}"
    if shape[0] == channels < shape[2]:
        return f"{why}; it may be [channels, H, W], got {list(shape)}: save it as [H, W, channels]"
    return f"{why}: --images.channels {shape[2]} uses all of them to train a student"
