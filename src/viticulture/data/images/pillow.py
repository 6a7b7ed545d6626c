# SPDX-License-Identifier: Apache-2.0
"""Pictures of Pillow's: opened safely, turned upright, converted to RGB, or read with all of their 16 bits.

Pillow loads a PNG's 16-bit colors with the upper 8 bits alone: the lower ones are read apart and travel with the
picture. A profile or text of over 1 MB in a PNG, or a wrong checksum of these, stops Pillow: such chunks do not change
pixels, and are left out.
"""

import io
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from .arrays import zero_as_black
from .format import Pixels, value_range

MAX_PIXELS = 178_956_970
"""Largest image that is decoded (about 540 MB of RGB); more is a decompression bomb. Where Pillow itself refuses."""

# Listed one by one: Pillow would also hand a file to other programs (EPS to Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "DIB")

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the operation that turns pixels upright."""
SIDEWAYS = (5, 6, 7, 8)  # orientations that swap height and width
BITS, _SIGN = ExifTags.Base.BitsPerSample, ExifTags.Base.SampleFormat

_LOWER = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L"}
"""How Pillow reads the upper bytes of a PNG's 16-bit colors -> how it reads the lower ones."""
_WHITE = 65535  # of 16 bits; of opacity: opaque
_KEY = "viticulture"  # in `Image.info`, which travels with the picture into other processes
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_OF_PIXELS = (b"tRNS", b"acTL", b"fcTL", b"fdAT")  # ancillary chunks that pixels depend on
_OF_ORIENTATION = (b"eXIf", b"iTXtXML:com.adobe.xmp\0", b"tEXtRaw profile type exif\0", b"zTXtRaw profile type exif\0")
"""Beginnings of chunks that may hold the EXIF orientation."""

_T = TypeVar("_T")

# Pillow's warnings about odd tags and large images say nothing that `Unreadable` does not.
warnings.filterwarnings("ignore", module=r"PIL\.")


class NotAnImage(ValueError):
    """A file that Pillow cannot open; its text says why."""


def read_file(file: BinaryIO, read: Callable[[Image.Image], _T]) -> _T:
    """Open a file and return the result of `read`; without a PNG's profile and texts where they stop Pillow.

    Raises: NotAnImage, and any error of Pillow's.
    """
    try:
        return read(_open(file))
    except Exception:
        if (plain := _without_extras(file)) is None:
            raise
        return read(_open(plain))


def _open(file: BinaryIO) -> Image.Image:
    start = file.read(16)
    if not start:
        raise NotAnImage("empty file")
    if start[4:8] == b"ftyp" and start[8:11] in (b"hei", b"hev", b"mif") and "HEIF" not in _formats():
        raise NotAnImage("HEIC needs pillow-heif (pip install 'viticulture[heic]'), or convert it to JPEG")
    file.seek(0)
    try:
        image = Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        _raise_damage(file, start)
        raise NotAnImage(f"not an image (begins with {repr(start)[1:]})") from None
    except Image.DecompressionBombError:
        raise NotAnImage(f"more than {MAX_PIXELS:,} pixels") from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise NotAnImage(f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    return image


def _raise_damage(file: BinaryIO, start: bytes) -> None:
    """Raise the error of the format that a file's start names, in place of Pillow's "cannot identify"."""
    for name in _formats():
        make, accepts = Image.OPEN[name]
        if accepts is not None and accepts(start) is True:
            file.seek(0)
            make(file, "")


@cache
def _formats() -> tuple[str, ...]:
    """Return the `FORMATS` that this Pillow was built with, and HEIC where pillow-heif is installed."""
    Image.init()
    if find_spec("pillow_heif") is not None:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in (*FORMATS, "HEIF") if name in Image.OPEN)


def _without_extras(file: BinaryIO) -> BinaryIO | None:
    """Return a PNG without the chunks that concern neither its pixels nor its orientation; None where it has none, and
    for any other file. An orientation with a wrong checksum is left out, too."""
    file.seek(0)
    if file.read(len(_SIGNATURE)) != _SIGNATURE:
        return None
    parts, dropped = [_SIGNATURE], False
    while len(head := file.read(8)) == 8:
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        body, check = file.read(length), file.read(4)
        if kind[0] & 0x20 and kind not in _OF_PIXELS:  # a small first letter: ancillary
            intact = zlib.crc32(kind + body).to_bytes(4, "big") == check
            if not (intact and (kind + body[:32]).startswith(_OF_ORIENTATION)):
                dropped = True
                continue
        parts += [head, body, check]
    return io.BytesIO(b"".join(parts)) if dropped else None


def exif_orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 (upright) where there is none that can be read."""
    if image.format == "JPEG" and not {"exif", "xmp"} & image.info.keys():
        return 1  # Pillow takes a while to find nothing
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged tag says nothing about the pixels
        return 1


def turned(image: Image.Image, converted: Image.Image) -> Image.Image:
    """Turn a conversion of an image upright, by the image's orientation."""
    turn = exif_orientation(image)
    return converted.transpose(UPRIGHT[turn]) if turn in UPRIGHT else converted


def upright_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB on white and turn upright."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return turned(image, image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return turned(image, Image.alpha_composite(page, layer).convert("RGB"))
    return turned(image, image.convert("RGB"))


def is_single_channel(mode: str) -> bool:
    """Return whether a mode of Pillow's holds one channel of more than eight bits."""
    return mode.startswith("I;16") or mode in ("I", "F")


def is_deep_color(image: TiffImageFile) -> bool:
    """Return whether a TIFF holds colors of more than eight bits, of which Pillow reads the upper eight."""
    return not is_single_channel(image.mode) and max(image.tag_v2.get(BITS, (8,))) > 8


def is_signed(image: Image.Image) -> bool:
    """Return whether a TIFF's 8-bit numbers go below 0, which Pillow takes for values above 127."""
    return isinstance(image, TiffImageFile) and image.mode == "L" and image.tag_v2.get(_SIGN) == (2,)


def single_channel(image: Image.Image) -> NDArray[Any]:
    """Return the numbers of one channel of more than eight bits, or of eight signed, [H, W], upright, in the file's
    type."""
    values = np.asarray(turned(image, image))
    if not isinstance(image, TiffImageFile):
        return values
    tags = image.tag_v2
    (bits,) = tags.get(BITS, (8 * values.itemsize,))
    if image.mode == "L":
        values = values.view(np.int8)
    elif image.mode == "I":  # int32, though the file may hold int16 or, beyond 2^31 as negative numbers, uint32
        values = values.astype(f"{'i' if tags.get(_SIGN) == (2,) else 'u'}{bits // 8}")
    return zero_as_black(values, tags.get(ExifTags.Base.PhotometricInterpretation), bits)


def of_known_range(values: NDArray[Any], kind: str | None) -> NDArray[Any]:
    """Convert one channel [H, W] to a type of known range, if its range can be determined; floats to uint8."""
    if values.dtype.kind == "f":
        return _floats_as_bytes(values.astype(np.float64))
    if (values.dtype.kind, values.dtype.itemsize) == ("u", 2):
        return values
    if kind not in (None, "TIFF"):  # PGM, which Pillow scales to 16 bits
        return values.astype(np.uint16)
    low, high = value_range(values)
    return (values * (255 if high <= 1 else 1)).astype(np.uint8) if low >= 0 and high <= 255 else values


def _floats_as_bytes(values: np.ndarray) -> Pixels:
    """Scale floats in [0, 1] by 255, leave those in [0, 255], stretch others over their own range."""
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


def loaded(image: Image.Image) -> Image.Image:
    """Load a picture of Pillow's, a PNG together with the lower bytes of its 16-bit colors (`raw_modes`)."""
    if isinstance(image, PngImageFile) and image.tile and image.fp is not None:  # not loaded yet, and open
        modes = {str(tile.args) for tile in image.tile}
        image.info[_KEY] = modes, _lower_bytes(image) if modes & _LOWER.keys() else None
    image.load()
    return image


def raw_modes(image: Image.Image) -> tuple[set[str], Image.Image | None]:
    """Return how a PNG stores its pixels, in Pillow's words, and the lower bytes of 16-bit colors, if `loaded` found
    any."""
    modes, lower = image.info.get(_KEY, (set(), None)) if isinstance(image, PngImageFile) else (set(), None)
    return modes, None if lower is None or lower.size != image.size else lower  # the user may have made it smaller


def _lower_bytes(opened: PngImageFile) -> Image.Image:
    assert opened.fp is not None, "a file is open until it is loaded"
    lower = Image.open(opened.fp, formats=("PNG",))
    assert isinstance(lower, PngImageFile)
    lower.tile = [tile._replace(args=_LOWER[str(tile.args)]) for tile in lower.tile]
    lower.load()
    return lower


def values_and_opacity(opened: Image.Image, lower: Image.Image | None) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """16-bit gray [H, W] or colors [H, W, 3], and opacity [H, W], upright; colors by their lower bytes and Pillow's
    upper ones."""
    values: NDArray[np.uint16] = np.asarray(turned(opened, opened)).astype(np.uint16)
    if lower is not None:
        values = (values << np.uint16(8)) + np.asarray(turned(opened, lower))
        if values.shape[2] == 4:
            return values[..., :3], values[..., 3]
    hidden = values == np.array(opened.info.get("transparency", -1))  # a gray value or a color, of 16 bits as well
    hidden = hidden.all(axis=-1) if values.ndim == 3 else hidden
    return values, np.where(hidden, 0, _WHITE).astype(np.uint16)


def on_white(values: NDArray[np.uint16], opacity: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Lay 16-bit gray [H, W] or colors [H, W, 3] of an opacity [H, W] on white."""
    opaque = (opacity if values.ndim == 2 else opacity[..., None]).astype(np.uint32)
    return ((values * opaque + _WHITE * (_WHITE - opaque) + _WHITE // 2) // _WHITE).astype(np.uint16)
