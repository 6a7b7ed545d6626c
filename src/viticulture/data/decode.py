# SPDX-License-Identifier: Apache-2.0
"""Any image file as a person would see it: upright, RGB, eight bits a channel, the first frame.

    gray, palette, CMYK, 1-bit   Pillow's conversion to RGB
    transparency                 laid on white, as a page shows it; the colors under transparent pixels are arbitrary
                                 (often black) and would otherwise be learned
    16-bit                       scaled by its range, 255 / 65535, never clipped nor stretched to what one image holds
    32-bit and float             in [0, 1]: times 255; in [0, 255]: as it is; else its own range becomes [0, 255]
    EXIF orientation             applied
    animation                    the first frame
    HEIC                         where pillow-heif is installed (extra `heic`)

A file that cannot be read raises `Unreadable`, whatever is wrong with it.
"""

import warnings
from functools import cache
from importlib.util import find_spec
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from ..errors import UserError

MAX_PIXELS = 178_956_970
"""Largest image that is decoded (about 540 MB of RGB); more is a decompression bomb. Where Pillow itself refuses."""

# Named one by one: Pillow would also hand a file to other programs (EPS to Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "DIB")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)

# Pillow's remarks about odd tags and large images say nothing that `Unreadable` does not.
warnings.filterwarnings("ignore", module=r"PIL\.")


class Unreadable(UserError):
    """A file that is no image, or a broken one.

    Args:
        name: path or name, as a person knows it.
        reason: what is wrong with it, in a few words.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class DecodedImage(NamedTuple):
    """A decoded image.

    Args:
        image: upright RGB; smaller than the original only where `shrink` allowed it.
        height: of the upright original, pixels.
        width: of the upright original, pixels.
        mode: how the file holds its colors, in Pillow's words: "L", "RGB", "CMYK", "P", ...
    """

    image: Image.Image
    height: int
    width: int
    mode: str


def decode(file: BinaryIO | np.ndarray, name: str, shrink: int | None = None) -> DecodedImage:
    """Decode one file, or wrap pixels that are decoded already.

    Args:
        file: an open file at its start, or [H, W] or [H, W, 3] uint8.
        name: how to call it in an error.
        shrink: the side of the square that the image will be squeezed to, pixels. A JPEG of at least four times that
            is decoded at 1/2, 1/4 or 1/8 of its size (never below twice the square), which is several times faster.

    Raises: Unreadable.
    """
    if isinstance(file, np.ndarray):
        image = Image.fromarray(file)
        return DecodedImage(image.convert("RGB"), image.height, image.width, image.mode)
    try:
        opened = _open(file, name)
        mode, (width, height) = opened.mode, opened.size
        drafted = shrink is not None and opened.draft("RGB", (2 * shrink, 2 * shrink)) is not None
        opened.load()
        image = upright(opened)
        if not drafted:
            width, height = image.size
        elif _orientation(opened) in _SIDEWAYS:
            width, height = height, width
    except Unreadable:
        raise
    except Exception as error:  # Pillow hands on whatever its formats raise, a RuntimeError for AVIF
        raise Unreadable(name, reason(error)) from error
    return DecodedImage(image, height, width, mode)


def upright(image: Image.Image) -> Image.Image:
    """A picture of Pillow's as a person would see it: RGB, turned as its camera was held."""
    turn, seen = _orientation(image), _rgb(image)
    return seen.transpose(_UPRIGHT[turn]) if turn in _UPRIGHT else seen


def image_size(file: BinaryIO | np.ndarray, name: str) -> tuple[int, int]:
    """Height and width of the upright image, pixels, from its header alone.

    Raises: Unreadable, though damage behind the header goes unnoticed.
    """
    if isinstance(file, np.ndarray):
        return file.shape[0], file.shape[1]
    try:
        opened = _open(file, name)
        width, height = opened.size
        # TIFF's sizes come upright from Pillow already.
        sideways = opened.format != "TIFF" and _orientation(opened) in _SIDEWAYS
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(name, reason(error)) from error
    return (width, height) if sideways else (height, width)


def _open(file: BinaryIO, name: str) -> Image.Image:
    start = file.read(16)
    if not start:
        raise Unreadable(name, "empty file")
    if start[4:8] == b"ftyp" and start[8:11] in (b"hei", b"hev", b"mif") and "HEIF" not in _formats():
        raise Unreadable(name, "HEIC needs pillow-heif (pip install 'viticulture[heic]'), or convert it to JPEG")
    file.seek(0)
    try:
        image = Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        raise Unreadable(name, f"not an image (begins with {start!r})") from None
    except Image.DecompressionBombError:
        raise Unreadable(name, f"more than {MAX_PIXELS:,} pixels") from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Unreadable(name, f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    return image


@cache
def _formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow was built with, and HEIC where pillow-heif is installed."""
    Image.init()
    if find_spec("pillow_heif") is not None:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in (*FORMATS, "HEIF") if name in Image.OPEN)


def _orientation(image: Image.Image) -> int:
    if image.format == "JPEG" and not {"exif", "xmp"} & image.info.keys():
        return 1  # Pillow takes a while to find nothing
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged tag says nothing about the pixels
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.uint32)
        return _gray((values * 255 + 32767) // 65535)
    if image.mode in ("I", "F"):
        return _gray(_ranged(np.asarray(image, dtype=np.float64), whole=image.mode == "I"))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")


def _ranged(values: np.ndarray, whole: bool) -> np.ndarray:
    """Numbers of unknown range as 0..255; `whole` says that they are integers, 16 bits in a 32-bit file as a rule."""
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError("no finite pixel")
    low, high = values[finite].min(), values[finite].max()
    if whole and low >= 0 and high <= 65535:
        scaled = values * (255 / 65535)
    elif low >= 0 and high <= 1:
        scaled = values * 255
    elif low >= 0 and high <= 255:
        scaled = values
    else:
        scaled = (values - low) * (255 / ((high - low) or 1))
    return np.where(finite, scaled, 0).round().clip(0, 255)


def _gray(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def reason(error: BaseException) -> str:
    """What is wrong with a file, in a few words."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return "truncated" if "truncated" in text else f"broken: {text}"
