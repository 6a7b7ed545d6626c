# SPDX-License-Identifier: Apache-2.0
"""PNGs that Pillow reads in part, or not at all.

Colors of 16 bits it loads with the upper 8: what it drops stays with the picture. A profile or text of over 1 MB, or a
wrong checksum of these, stops it: such chunks do not change pixels, and are left out.
"""

import io
import zlib
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from .orientation import turned

_LOWER = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L"}
"""How Pillow reads the upper bytes of a PNG's colors of 16 bits -> how it reads the lower ones."""
_WHITE = 65535
"""Of 16 bits; of opacity: whole."""
_KEPT = "viticulture"
"""Key in `Image.info`, where it goes with the picture into other processes."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_OF_PIXELS = (b"tRNS", b"acTL", b"fcTL", b"fdAT")
"""Ancillary chunks that pixels depend on."""
_OF_ORIENTATION = (b"eXIf", b"iTXtXML:com.adobe.xmp\0", b"tEXtRaw profile type exif\0", b"zTXtRaw profile type exif\0")
"""How those chunks begin that may say how the camera was held."""


def without_extras(file: BinaryIO) -> BinaryIO | None:
    """A PNG without the chunks that concern neither its pixels nor its orientation; None where it has no such chunk,
    and for any other file. An orientation whose checksum is wrong is left out, too."""
    file.seek(0)
    if file.read(len(_SIGNATURE)) != _SIGNATURE:
        return None
    parts, dropped = [_SIGNATURE], False
    while len(head := file.read(8)) == 8:
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        body, check = file.read(length), file.read(4)
        if kind[0] & 0x20 and kind not in _OF_PIXELS:  # a small first letter: ancillary
            sound = zlib.crc32(kind + body).to_bytes(4, "big") == check
            if not (sound and (kind + body[:32]).startswith(_OF_ORIENTATION)):
                dropped = True
                continue
        parts += [head, body, check]
    return io.BytesIO(b"".join(parts)) if dropped else None


def loaded(image: Image.Image) -> Image.Image:
    """The same picture of Pillow's, loaded, with what `kept_of` gives."""
    if isinstance(image, PngImageFile) and image.tile and image.fp is not None:  # not loaded yet, and open
        ways = {str(tile.args) for tile in image.tile}
        image.info[_KEPT] = ways, _lower_bytes(image) if ways & _LOWER.keys() else None
    image.load()
    return image


def kept_of(image: Image.Image) -> tuple[set[str], Image.Image | None]:
    """What `loaded` kept of a picture: how it is stored, in Pillow's words, and lower bytes of colors of 16 bits."""
    ways, lower = image.info.get(_KEPT, (set(), None)) if isinstance(image, PngImageFile) else (set(), None)
    return ways, None if lower is None or lower.size != image.size else lower  # a person may have made it smaller


def _lower_bytes(opened: PngImageFile) -> Image.Image:
    """Those of a PNG's colors of 16 bits that is not loaded yet."""
    assert opened.fp is not None, "a file is open until it is loaded"
    lower = Image.open(opened.fp, formats=("PNG",))
    assert isinstance(lower, PngImageFile)
    lower.tile = [tile._replace(args=_LOWER[str(tile.args)]) for tile in lower.tile]
    lower.load()
    return lower


def values_and_opacity(opened: Image.Image, lower: Image.Image | None) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Gray [H, W] or colors [H, W, 3], and opacity [H, W], turned as its camera was held; colors by their lower bytes
    and the upper ones, which Pillow gives."""
    values: NDArray[np.uint16] = np.asarray(turned(opened, opened)).astype(np.uint16)
    if lower is not None:
        values = (values << np.uint16(8)) + np.asarray(turned(opened, lower))
        if values.shape[2] == 4:
            return values[..., :3], values[..., 3]
    hidden = values == np.array(opened.info.get("transparency", -1))  # a gray value or a color, of 16 bits as well
    hidden = hidden.all(axis=-1) if values.ndim == 3 else hidden
    return values, np.where(hidden, 0, _WHITE).astype(np.uint16)


def on_white(values: NDArray[np.uint16], opacity: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Gray [H, W] or colors [H, W, 3] of 16 bits as a white page shows them through an opacity [H, W]."""
    whole = (opacity if values.ndim == 2 else opacity[..., None]).astype(np.uint32)
    return ((values * whole + _WHITE * (_WHITE - whole) + _WHITE // 2) // _WHITE).astype(np.uint16)
