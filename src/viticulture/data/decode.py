# SPDX-License-Identifier: Apache-2.0
"""Any image file as a person would see it: upright, RGB, eight bits a channel, the first frame; or with as many
channels, and by the values, that are to be kept (`channels.PixelFormat`).

    gray, palette, CMYK, 1-bit   Pillow's conversion to RGB
    transparency                 laid on white, as a page shows it; the colors under transparent pixels are arbitrary
                                 (often black) and would otherwise be learned
    16-bit                       scaled by its range, 255 / 65535, never clipped nor stretched to what one image holds
    float                        in [0, 1]: times 255; in [0, 255]: as it is; else its own range becomes [0, 255]
    other whole numbers          in [0, 1]: times 255; in [0, 255]: as it is; else refused: nobody knows their range
    zero as white (TIFF)         turned round: the greatest number of so many bits, or 1 of floats in [0, 1], less the
                                 file's; others are refused: which of them is black nobody knows
    EXIF orientation             applied
    animation                    the first frame
    HEIC                         where pillow-heif is installed (extra `heic`)
    .npy, TIFF of many bands     their own numbers (bands.py)

Of four channels that are kept, a picture's are red, green, blue and opacity. Gray, and colors of a PNG, keep all 16
bits until values become levels; colors of a TIFF come from Pillow with the upper 8, or from tifffile where they lie
plane by plane or a range is named.

A file that cannot be read raises `Unreadable`, whatever is wrong with it.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from ..errors import UserError
from . import bands
from .channels import AS_THEY_ARE, RGB, Levels, PixelFormat, Unfit, as_picture, other_channels, spread
from .deep import BITS, deep_values, is_deep, is_signed, of_known_range
from .deep_png import kept_of, loaded, on_white, values_and_opacity, without_extras
from .orientation import SIDEWAYS, exif_orientation, turned

MAX_PIXELS = 178_956_970
"""Largest image that is decoded (about 540 MB of RGB); more is a decompression bomb. Where Pillow itself refuses."""

# Named one by one: Pillow would also hand a file to other programs (EPS to Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "DIB")

Decoded = NDArray[Any] | Image.Image
"""What needs no file: numbers [H, W] or [H, W, C], or a picture of Pillow's."""
DECODED = np.ndarray, Image.Image
"""The same for `isinstance`, which tells it from an open file."""

_T = TypeVar("_T")
Reader = Callable[[BinaryIO], NDArray[Any]]
_SHAPE_BY_HEADER: dict[Reader, Callable[[BinaryIO], tuple[int, ...]]] = {
    bands.npy_values: bands.npy_shape,
    bands.tiff_values: bands.tiff_shape,
}

# Pillow's warnings about odd tags and large images say nothing that `Unreadable` does not.
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


class OtherValues(Unreadable):
    """An image that can be read, but does not hold the channels or the values that are to be kept."""


class DecodedImage(NamedTuple):
    """A decoded image.

    Args:
        pixels: upright, [H, W, C]; smaller than the original only where `shrink` allowed it.
        height: of the upright original, pixels.
        width: of the upright original, pixels.
        mode: how the file holds its colors, in Pillow's words: "L", "RGB", "CMYK", "P", ...; of numbers, how many of
            which type: "5 x uint16".
        span: least and greatest value in the file, where they have more than eight bits.
        first: whether it is the first of several pages or frames, of which the others are not read.
    """

    pixels: Levels
    height: int
    width: int
    mode: str
    span: tuple[float, float] | None = None
    first: bool = False

    @property
    def image(self) -> Image.Image:
        """What a person is shown, RGB."""
        return Image.fromarray(as_picture(self.pixels))


def decode(
    file: BinaryIO | Decoded, name: str, shrink: int | None = None, pixel_format: PixelFormat = RGB
) -> DecodedImage:
    """Decode one file, or take what is decoded already.

    Args:
        file: an open file at its start, numbers [H, W] or [H, W, C], or a picture of Pillow's.
        name: how to call it in an error.
        shrink: the side of the square that the image will be squeezed to, pixels. A JPEG of at least four times that
            is decoded at 1/2, 1/4 or 1/8 of its size (never below twice the square), which is several times faster.
        pixel_format: how many channels, and which values become black and white.

    Raises: Unreadable.
    """
    with _naming(name):
        if isinstance(file, np.ndarray):
            return _numbers(file, pixel_format)
        if isinstance(file, Image.Image):
            return _picture(file, None, pixel_format)
        if (read := _reader(file, pixel_format)) is not None:
            pixel_format.check(_SHAPE_BY_HEADER[read](file))  # before what is of no use fills the memory
            return _numbers(read(file), pixel_format)
        return _without_extras(file, name, lambda image: _picture(image, shrink, pixel_format))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Whatever is wrong with a file is raised as `Unreadable`, by its name."""
    try:
        yield
    except Unreadable:
        raise
    except Unfit as error:
        raise OtherValues(name, str(error)) from error
    except Exception as error:  # Pillow hands on whatever its formats raise, a RuntimeError for AVIF
        raise Unreadable(name, reason(error)) from error


def _reader(file: BinaryIO, pixel_format: PixelFormat) -> Reader | None:
    """What reads a file's own numbers where Pillow does not, or would change them."""
    start = file.read(bands.START)
    file.seek(0)
    if bands.is_npy(start):
        return bands.npy_values
    if not bands.is_tiff(start):
        return None
    if pixel_format.channels not in (None, 1, 3):
        return bands.tiff_values
    try:
        opened = Image.open(file, formats=("TIFF",))
        assert isinstance(opened, TiffImageFile)
        colors = not is_deep(opened.mode) and max(opened.tag_v2.get(BITS, (8,))) > 8
        cut = colors and (bool(pixel_format.range) or _is_scrambled(opened))
    except UnidentifiedImageError:
        cut = find_spec("tifffile") is not None
    except Exception:  # told by what opens it next
        cut = False
    file.seek(0)
    return bands.tiff_values if cut else None


def _is_scrambled(opened: TiffImageFile) -> bool:
    """Whether Pillow takes planes of colors of 16 bits for pixels: where nothing compresses them."""
    tags = opened.tag_v2
    return tags.get(ExifTags.Base.PlanarConfiguration) == 2 and tags.get(ExifTags.Base.Compression, 1) == 1


def _numbers(values: NDArray[Any], pixel_format: PixelFormat) -> DecodedImage:
    pixels, plain = np.array(pixel_format(values)), values.dtype == np.uint8  # a copy: what is given stays as it is
    height, width = pixels.shape[:2]
    channels = 1 if values.ndim == 2 else values.shape[2]
    mode = {1: "L", 3: "RGB"}.get(channels) if plain else None
    span = None if plain else spread(values)
    return DecodedImage(pixels, height, width, mode or f"{channels} x {values.dtype.name}", span)


def _picture(opened: Image.Image, shrink: int | None, pixel_format: PixelFormat) -> DecodedImage:
    mode, (width, height) = opened.mode, opened.size
    drafted = shrink is not None and opened.draft("RGB", (2 * shrink, 2 * shrink)) is not None
    ways, lower = kept_of(loaded(opened))
    png = isinstance(opened, PngImageFile)
    span = None
    if png and (is_deep(mode) or lower is not None):
        values, opacity = values_and_opacity(opened, lower)
        span, mode = spread(values[opacity > 0]), mode if values.ndim == 2 else f"{len(mode)} x uint16"
        four = pixel_format.channels == 4 and values.ndim == 3
        pixels = pixel_format(np.dstack([values, opacity]) if four else on_white(values, opacity))
    elif pixel_format.range and "LA;16B" in ways:
        raise Unfit("Pillow reads its gray of 16 bits as 8, and images.range means all of them; save it as TIFF")
    elif is_deep(mode) or is_signed(opened):
        values = deep_values(opened)
        span = spread(values)
        pixels = pixel_format(values if pixel_format.range else of_known_range(values, opened.format))
    elif pixel_format.channels == 4:
        pixels = pixel_format(np.array(turned(opened, _with_opacity(opened))))
    else:
        pixels = pixel_format(np.array(upright(opened)))
    if not drafted:
        height, width = pixels.shape[:2]
    elif exif_orientation(opened) in SIDEWAYS:
        width, height = height, width
    return DecodedImage(pixels, height, width, mode, span, _is_first(opened))


def _is_first(opened: Image.Image) -> bool:
    """Whether pages or frames lie behind the one that was read, which may be damaged; a camera's preview is none."""
    try:
        return opened.format != "MPO" and bool(getattr(opened, "is_animated", False))
    except Exception:
        return False


def upright(image: Image.Image) -> Image.Image:
    """A picture of Pillow's as a person would see it: RGB, turned as its camera was held."""
    return turned(image, _rgb(image))


def numbers_of(image: Image.Image) -> NDArray[Any]:
    """[H, W] or [H, W, C] as a person would see it: what is deeper than eight bits, or shows what lies below, as it is;
    else red, green and blue."""
    if is_deep(image.mode) or is_signed(image):
        return deep_values(image)
    if (lower := kept_of(image)[1]) is not None:
        return np.dstack(values_and_opacity(image, lower))
    return np.asarray(turned(image, image.convert("RGBA")) if image.has_transparency_data else upright(image))


def _with_opacity(image: Image.Image) -> Image.Image:
    """Red, green, blue and opacity, which is whole where the file knows none."""
    if image.mode not in ("RGB", "RGBA", "P", "PA", "LA", "La", "RGBa"):
        raise Unfit(other_channels((*image.size, len(image.getbands())), 4))
    return image.convert("RGBA")


def image_size(file: BinaryIO | Decoded, name: str) -> tuple[int, int]:
    """Height and width of the upright image, pixels, from its header alone.

    Raises: Unreadable, though damage behind the header goes unnoticed.
    """
    if isinstance(file, np.ndarray):
        return file.shape[0], file.shape[1]
    with _naming(name):
        if not isinstance(file, Image.Image) and (read := _reader(file, AS_THEY_ARE)) is not None:
            height, width = _SHAPE_BY_HEADER[read](file)[:2]
            return height, width
        opened = file if isinstance(file, Image.Image) else _without_extras(file, name, lambda opened: opened)
        width, height = opened.size
        # TIFF's sizes come upright from Pillow already.
        sideways = opened.format != "TIFF" and exif_orientation(opened) in SIDEWAYS
    return (width, height) if sideways else (height, width)


def load_picture(file: BinaryIO, name: str) -> Image.Image:
    """Pillow's picture of a file as it is, neither turned nor converted, loaded.

    Raises: Unreadable.
    """
    with _naming(name):
        return _without_extras(file, name, loaded)


def _without_extras(file: BinaryIO, name: str, read: Callable[[Image.Image], _T]) -> _T:
    """Return what is read of a file; leave out a PNG's profile and texts where it cannot be read with them."""
    try:
        return read(_open(file, name))
    except Exception:
        if (plain := without_extras(file)) is None:
            raise
        return read(_open(plain, name))


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
        _raise_damage(file, start)
        raise Unreadable(name, f"not an image (begins with {repr(start)[1:]})") from None
    except Image.DecompressionBombError:
        raise Unreadable(name, f"more than {MAX_PIXELS:,} pixels") from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Unreadable(name, f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    return image


def _raise_damage(file: BinaryIO, start: bytes) -> None:
    """Raise what a format finds wrong with a file that begins as its own do; Pillow says of it that none knows it."""
    for name in _formats():
        make, accepts = Image.OPEN[name]
        if accepts is not None and accepts(start) is True:
            file.seek(0)
            make(file, "")


@cache
def _formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow was built with, and HEIC where pillow-heif is installed."""
    Image.init()
    if find_spec("pillow_heif") is not None:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in (*FORMATS, "HEIF") if name in Image.OPEN)


def orientation_of(file: BinaryIO, name: str, pixel_format: PixelFormat) -> int:
    """How a file's pixels lie, 1 to 8; numbers, which no camera turned, lie upright (1).

    Raises: Unreadable.
    """
    with _naming(name):
        return 1 if _reader(file, pixel_format) is not None else _without_extras(file, name, exif_orientation)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")


def reason(error: BaseException) -> str:
    """What is wrong with a file, in a few words."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return "truncated" if "truncated" in text else f"broken: {text}"
