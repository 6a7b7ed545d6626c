# SPDX-License-Identifier: Apache-2.0
"""Decode any image file as it is displayed: upright, RGB, 8 bits a channel, the first frame; or with other channels and
value ranges (`format.PixelFormat`).

    gray, palette, CMYK, 1-bit   Pillow's conversion to RGB
    transparency                 laid on white, as a page shows it; the colors under transparent pixels are arbitrary
                                 (often black) and would otherwise be trained on
    16-bit                       scaled by its range, 255 / 65535, never clipped nor stretched to one image's values
    float                        in [0, 1]: times 255; in [0, 255]: as it is; else its own range becomes [0, 255]
    other whole numbers          in [0, 1]: times 255; in [0, 255]: as it is; else refused: their range is unknown
    zero as white (TIFF)         inverted: the largest number of so many bits, or 1 of floats in [0, 1], minus the
                                 file's; others are refused
    EXIF orientation             applied
    animation                    the first frame
    HEIC                         where pillow-heif is installed (extra `heic`)
    .npy, TIFF of many bands     their own numbers (arrays.py)

Four channels of a picture are red, green, blue and opacity. Gray, and colors of a PNG, keep all 16 bits until they
become uint8; colors of a TIFF come from Pillow with the upper 8, or from tifffile where they lie plane by plane or a
range is given.

A file that cannot be read raises `Unreadable`, whatever is wrong with it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from ...errors import UserError, received
from . import arrays, pillow
from .format import ANY_FORMAT, RGB, PixelFormat, Pixels, Unfit, as_picture, other_channels, value_range
from .pillow import SIDEWAYS, exif_orientation

if TYPE_CHECKING:
    from torch import Tensor

Decoded = NDArray[Any] | Image.Image
"""An image that needs no file: numbers [H, W] or [H, W, C], or a picture of Pillow's."""
DECODED = np.ndarray, Image.Image  # the same for `isinstance`, to tell it from an open file

CLOSED = "a picture of PIL was closed before its pixels were used; call its load() while it is open, or pass its copy()"


class Unreadable(UserError):
    """A file that is no image, or a broken one."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class OtherValues(Unreadable):
    """An image that can be read, but does not fit the pixel format."""


class DecodedImage(NamedTuple):
    """A decoded image."""

    pixels: Pixels  # upright, [H, W, C]; smaller than the original only where `shrink` allowed it
    height: int  # of the upright original, pixels
    width: int
    # How the file holds its colors, in Pillow's words: "L", "RGB", "CMYK", "P", ...; of numbers, how many of which
    # type: "5 x uint16".
    mode: str
    # Smallest and largest value in the file, where they have more than eight bits.
    value_range: tuple[float, float] | None = None
    first: bool = False  # True for the first of several pages or frames, of which the others are not read

    @property
    def image(self) -> Image.Image:
        """RGB, for display."""
        return Image.fromarray(as_picture(self.pixels))


def is_16_bit(mode: str) -> bool:
    """Return whether a file of this mode (`DecodedImage`) holds whole numbers of 16 bits."""
    return mode.startswith("I;16") or "uint16" in mode


def decode(
    file: BinaryIO | Decoded, name: str, shrink: int | None = None, pixel_format: PixelFormat = RGB
) -> DecodedImage:
    """Decode one file, or convert an array or a picture.

    Args:
        file: an open file at its start, numbers [H, W] or [H, W, C], or a picture of Pillow's.
        shrink: the side of the square that the image will be resized to, pixels. A JPEG of at least four times that
            is decoded at 1/2, 1/4 or 1/8 of its size (never below twice the square), which is several times faster.

    Raises: Unreadable.
    """
    with _naming(name):
        if isinstance(file, np.ndarray):
            return _from_array(file, pixel_format)
        if isinstance(file, Image.Image):
            return _from_picture(file, None, pixel_format)
        if (reader := _array_reader(file, pixel_format)) is not None:
            pixel_format.check(reader.shape(file))  # before an unfit image fills the memory
            return _from_array(reader.values(file), pixel_format)
        return pillow.read_file(file, lambda image: _from_picture(image, shrink, pixel_format))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise any error as `Unreadable` with the file's name."""
    try:
        yield
    except Unreadable:
        raise
    except Unfit as error:
        raise OtherValues(name, str(error)) from error
    except pillow.NotAnImage as error:
        raise Unreadable(name, str(error)) from error
    except Exception as error:  # Pillow passes on any error of its formats, a RuntimeError for AVIF
        raise Unreadable(name, reason(error)) from error


def _array_reader(file: BinaryIO, pixel_format: PixelFormat) -> arrays.ArrayReader | None:
    """Return the reader of a file's numbers where Pillow cannot read it, or would change them."""
    start = file.read(arrays.START)
    file.seek(0)
    if start.startswith(arrays.NPY_START):
        return arrays.NPY
    if not start.startswith(arrays.TIFF_STARTS):
        return None
    if pixel_format.channels not in (None, 1, 3):
        return arrays.TIFF
    try:
        opened = Image.open(file, formats=("TIFF",))
        assert isinstance(opened, TiffImageFile)
        tags = opened.tag_v2
        # Pillow takes uncompressed planes of 16-bit colors for pixels.
        planar = tags.get(ExifTags.Base.PlanarConfiguration) == 2 and tags.get(ExifTags.Base.Compression, 1) == 1
        by_tifffile = pillow.is_deep_color(opened) and (bool(pixel_format.range) or planar)
    except UnidentifiedImageError:
        by_tifffile = find_spec("tifffile") is not None
    except Exception:  # reported by the next attempt to open it
        by_tifffile = False
    file.seek(0)
    return arrays.TIFF if by_tifffile else None


def _from_array(values: NDArray[Any], pixel_format: PixelFormat) -> DecodedImage:
    pixels, is_bytes = np.array(pixel_format(values)), values.dtype == np.uint8  # a copy: the input stays as it is
    height, width = pixels.shape[:2]
    channels = 1 if values.ndim == 2 else values.shape[2]
    mode = {1: "L", 3: "RGB"}.get(channels) if is_bytes else None
    extremes = None if is_bytes else value_range(values)
    return DecodedImage(pixels, height, width, mode or f"{channels} x {values.dtype.name}", extremes)


def _from_picture(opened: Image.Image, shrink: int | None, pixel_format: PixelFormat) -> DecodedImage:
    mode, (width, height) = opened.mode, opened.size
    drafted = shrink is not None and opened.draft("RGB", (2 * shrink, 2 * shrink)) is not None
    raw_modes, lower = pillow.raw_modes(pillow.loaded(opened))
    extremes = None
    if isinstance(opened, PngImageFile) and (pillow.is_single_channel(mode) or lower is not None):
        values, opacity = pillow.values_and_opacity(opened, lower)
        extremes = value_range(values[opacity > 0])
        mode = mode if values.ndim == 2 else f"{len(mode)} x uint16"
        four = pixel_format.channels == 4 and values.ndim == 3
        pixels = pixel_format(np.dstack([values, opacity]) if four else pillow.on_white(values, opacity))
    elif pixel_format.range and "LA;16B" in raw_modes:
        raise Unfit("Pillow reads its 16-bit gray as 8 bits, and images.range needs all of them; save it as TIFF")
    elif pixel_format.range and isinstance(opened, TiffImageFile) and pillow.is_deep_color(opened):
        raise Unfit("Pillow reads its 16-bit colors as 8 bits, and images.range needs all of them; name its file")
    elif pillow.is_single_channel(mode) or pillow.is_signed(opened):
        values = pillow.single_channel(opened)
        extremes = value_range(values)
        pixels = pixel_format(values if pixel_format.range else pillow.of_known_range(values, opened.format))
    elif pixel_format.channels == 4:
        if opened.mode not in ("RGB", "RGBA", "P", "PA", "LA", "La", "RGBa"):
            raise Unfit(other_channels((*opened.size, len(opened.getbands())), 4))
        pixels = pixel_format(np.array(pillow.turned(opened, opened.convert("RGBA"))))
    else:
        pixels = pixel_format(np.array(pillow.upright_rgb(opened)))
    if not drafted:
        height, width = pixels.shape[:2]
    elif exif_orientation(opened) in SIDEWAYS:
        width, height = height, width
    return DecodedImage(pixels, height, width, mode, extremes, _is_first(opened))


def _is_first(opened: Image.Image) -> bool:
    """Return whether other pages or frames follow, which may be damaged; a camera's preview is none."""
    try:
        return opened.format != "MPO" and bool(getattr(opened, "is_animated", False))
    except Exception:
        return False


def numbers_of(image: Image.Image) -> NDArray[Any]:
    """[H, W] or [H, W, C], upright: a picture's numbers where it has more than eight bits or transparency, else
    red, green and blue."""
    if pillow.is_single_channel(image.mode) or pillow.is_signed(image):
        return pillow.single_channel(image)
    if (lower := pillow.raw_modes(image)[1]) is not None:
        return np.dstack(pillow.values_and_opacity(image, lower))
    if image.has_transparency_data:
        return np.asarray(pillow.turned(image, image.convert("RGBA")))
    return np.asarray(pillow.upright_rgb(image))


def image_size(file: BinaryIO | Decoded, name: str) -> tuple[int, int]:
    """Height and width of the upright image, pixels, from its header alone.

    Raises: Unreadable, though damage behind the header goes unnoticed.
    """
    if isinstance(file, np.ndarray):
        return file.shape[0], file.shape[1]
    with _naming(name):
        if not isinstance(file, Image.Image) and (reader := _array_reader(file, ANY_FORMAT)) is not None:
            height, width = reader.shape(file)[:2]
            return height, width
        opened = file if isinstance(file, Image.Image) else pillow.read_file(file, lambda opened: opened)
        width, height = opened.size
        # TIFF's sizes come upright from Pillow already.
        sideways = opened.format != "TIFF" and exif_orientation(opened) in SIDEWAYS
    return (width, height) if sideways else (height, width)


def load_picture(file: BinaryIO, name: str) -> Image.Image:
    """Load Pillow's picture of a file, neither turned nor converted."""
    with _naming(name):
        return pillow.read_file(file, pillow.loaded)


def orientation_of(file: BinaryIO, name: str, pixel_format: PixelFormat) -> int:
    """EXIF orientation of a file, 1 to 8; numbers lie upright (1)."""
    with _naming(name):
        return 1 if _array_reader(file, pixel_format) is not None else pillow.read_file(file, exif_orientation)


def reason(error: BaseException) -> str:
    """Say in a few words what is wrong with a file."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return "truncated" if "truncated" in text else f"broken: {text}"


def as_pixels(image: Any) -> Decoded:
    """Convert one image of any library to what `decode` takes: numbers [H, W, C], or Pillow's picture, loaded. `image`:
    Pillow's; an array [H, W] or [H, W, C]; a tensor [H, W] or [C, H, W], or [H, W, C] of one or three channels. Raises:
    UserError for anything else, and for a closed picture; any error of Pillow's for a damaged one.
    """
    if isinstance(image, Image.Image):
        if isinstance(image, ImageFile) and image.tile and image.fp is None:
            raise UserError(CLOSED)
        try:
            return pillow.loaded(image)  # now, as a picture reads its file once, in whichever thread
        except ValueError as error:  # of Pillow, or of a file object of the user's
            if "closed" not in str(error):
                raise
            raise UserError(CLOSED) from error
    if (torch := sys.modules.get("torch")) and isinstance(image, torch.Tensor):
        image = in_numpy(image if channels_stand_last(image) or image.ndim != 3 else image.movedim(-3, -1))
    if isinstance(image, np.ndarray) and image.dtype.kind in "buif":
        array = image[..., None] if image.ndim == 2 else image
        if array.ndim != 3 or not array.size:
            raise UserError(f"an array is an image if it is [H, W] or [H, W, channels], got {list(image.shape)}")
        return array
    raise UserError(f"no image: {received(image)}; pass a picture of PIL, an array or a tensor")


def channels_stand_last(images: "Tensor") -> bool:
    """Return whether tensors are [..., H, W, C] and not [..., C, H, W]: only the last side is three or one."""
    return images.ndim >= 3 and images.shape[-1] in (1, 3) and images.shape[-3] not in (1, 3)


def in_numpy(values: "Tensor") -> NDArray[Any]:
    """Convert a tensor to an array; bfloat16, which NumPy lacks, to float32."""
    import torch

    return (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)
