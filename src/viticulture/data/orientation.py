# SPDX-License-Identifier: Apache-2.0
"""How a camera was held: the EXIF orientation of a file, and its pixels turned upright."""

from PIL import ExifTags, Image

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what turns pixels upright."""
SIDEWAYS = (5, 6, 7, 8)
"""Orientations that swap height and width."""


def exif_orientation(image: Image.Image) -> int:
    """How the file's pixels lie, 1 to 8; 1 (upright) where it says nothing that can be read."""
    if image.format == "JPEG" and not {"exif", "xmp"} & image.info.keys():
        return 1  # Pillow takes a while to find nothing
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged tag says nothing about the pixels
        return 1


def turned(image: Image.Image, seen: Image.Image) -> Image.Image:
    """What was made of an image, turned as its camera was held."""
    turn = exif_orientation(image)
    return seen.transpose(UPRIGHT[turn]) if turn in UPRIGHT else seen
