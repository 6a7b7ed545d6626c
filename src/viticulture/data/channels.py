# SPDX-License-Identifier: Apache-2.0
"""What is kept of an image: how many channels, and which of its values become black and white.

Networks learn from levels of eight bits, 0 to 255. Values of more bits are mapped to them linearly,

    level = 255 (value - low) / (high - low),  rounded and cut off

by the whole range of their type, or by a range that is named (`images.range`). What lies closer together than
(high - low) / 255 becomes one level: of 12 bits stored in 16, the whole range of 16 bits leaves 17 levels, and their
own range, 0 to 4095, all 256.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import counted

Levels = NDArray[np.uint8]
"""[H, W, C]."""

Ranges = tuple[tuple[float, float], ...]
"""Low and high, of all channels or of each."""

LUMA = (19595, 38470, 7471)
"""Of red, green and blue, over 65536: ITU-R 601-2, as Pillow computes it."""


class Unfit(ValueError):
    """Values that are not what is to be kept; its text says why, and what to do."""


@dataclass(frozen=True)
class PixelFormat:
    """What is kept of an image.

    Args:
        channels: how many; None keeps as many as there are, to look at them.
        range: values that become black and white; empty takes those of the type: 0 and 255, 0 and 65535, of floats 0
            and 1.
    """

    channels: int | None = 3
    range: Ranges = ()

    @property
    def fingerprint(self) -> str:
        """Changes with what becomes of pixels; empty for what most images are kept as."""
        return "" if self == RGB else f"{self.channels} channels {self.range}"

    def __call__(self, values: NDArray[Any]) -> Levels:
        """Values [H, W] or [H, W, C], of any numbers, as they are kept.

        One channel is taken three times, three become their gray value where one is kept; no others are made.

        Raises: Unfit for another number of channels, or values whose range is not known.
        """
        values = values[..., None] if values.ndim == 2 else values
        if values.ndim != 3 or not values.size:
            raise Unfit(f"an image is [H, W] or [H, W, channels], got {list(values.shape)}")
        self.check(values.shape)
        there, wanted = values.shape[2], self.channels or values.shape[2]
        # Before they become levels: a range of each channel makes three different ones of a gray value.
        levels = self._levels(np.repeat(values, wanted, axis=2) if there < wanted else values)
        return gray(levels) if there > wanted else levels

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises: Unfit where an image [H, W] or [H, W, C] has channels that these cannot be made of."""
        there = shape[2] if len(shape) == 3 else 1
        if self.channels not in (None, there) and (there, self.channels) not in ((1, 3), (3, 1)):
            raise Unfit(other_channels((*shape[:2], there), self.channels))

    def _levels(self, values: NDArray[Any]) -> Levels:
        if self.range:
            return mapped(values, *np.array(self.range, dtype=np.float64).T)
        if values.dtype == np.uint8:
            return values
        if values.dtype == bool:
            return values.astype(np.uint8) * np.uint8(255)
        if (values.dtype.kind, values.dtype.itemsize) == ("u", 2):  # in either order of bytes
            return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
        low, high = spread(values)
        finite = bool(np.isfinite(values).all())
        if values.dtype.kind == "f" and low >= 0 and high <= 1 and finite:
            return np.rint(values * 255).astype(np.uint8)
        if self.channels is None:
            return mapped(values, np.float64(low), np.float64(high if high > low else low + 1))
        numbers = f"{low:.6g} to {high:.6g}" + ("" if finite else ", nan or infinity among them")
        such = f", such as [{low:.6g}, {high:.6g}]" if low < high else ""
        raise Unfit(
            f"holds {values.dtype} from {numbers}; levels are 8 or 16 bits, or floats from 0 to 1 (leave normalization "
            f"to images.normalize); of others say which are black and white: images.range{such}"
        )


RGB = PixelFormat()
AS_THEY_ARE = PixelFormat(None)


def mapped(values: NDArray[Any], low: Any, high: Any) -> Levels:
    """Values as levels, low as 0 and high as 255; what is no number is 0."""
    precise = np.float32 if values.dtype.itemsize <= 2 else np.float64  # exact for 16 bits
    levels = (values.astype(precise) - low.astype(precise)) * (255 / (high - low)).astype(precise)
    kept: Levels = np.nan_to_num(np.rint(levels), nan=0).clip(0, 255).astype(np.uint8)
    return kept


def spread(values: NDArray[Any]) -> tuple[float, float]:
    """Least and greatest of the values that are numbers; 0, 0 where none is."""
    finite = values if values.dtype.kind != "f" else values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def levels_left(extent: float) -> str:
    """How many levels 8 bits of the whole range of 16 leave values that lie so far apart, in words."""
    return counted(1 + round(extent * 255 / 65535), "level")


def gray(levels: Levels) -> Levels:
    """The gray value of each pixel, as Pillow computes it: [H, W, 3] -> [H, W, 1]."""
    return ((levels.astype(np.uint32) @ np.array(LUMA, np.uint32) + 32768) >> 16).astype(np.uint8)[..., None]


def as_picture(levels: Levels) -> Levels:
    """What a person is shown, [H, W, 3]: color as it is, one channel as gray, of two the mean, of more the first 3."""
    if levels.shape[-1] >= 3:
        return levels[..., :3]
    mean = levels.mean(axis=-1, keepdims=True).round().astype(np.uint8) if levels.shape[-1] == 2 else levels
    return np.repeat(mean, 3, axis=-1)


def shown(channels: int) -> str:
    """A sentence that says so, with a space before it; empty where nothing is left out."""
    if channels == 2:
        return " Images have 2 channels, shown is their mean."
    return (
        f" Images have {channels} channels, the first three are shown as red, green and blue." if channels > 3 else ""
    )


def other_channels(shape: tuple[int, ...], wanted: int) -> str:
    """Why an image of this shape does not have so many channels, and what to do."""
    why = f"holds {counted(shape[2], 'channel')}, and images.channels is {wanted}"
    if shape[0] == wanted < shape[2]:
        return f"{why}; it may be [channels, H, W], got {list(shape)}: save it as [H, W, channels]"
    return f"{why}: --images.channels {shape[2]} keeps them where a student is trained"
