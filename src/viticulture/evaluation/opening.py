# SPDX-License-Identifier: Apache-2.0
"""Images that a person names, holds or sends, decoded as a run's store keeps its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..config.resolve import Config
from ..data.channels import RGB, PixelFormat
from ..data.dataset import prepare_test
from ..data.decode import DECODED, DecodedImage, Unreadable, decode, image_size
from ..data.images import CachedImages, Images, Records
from ..data.resample import squeeze
from ..data.sources.files import FileReader
from ..data.sources.folders import images_among, scan
from ..data.sources.source import Source
from ..errors import UserError
from ..text import readable
from ..training.progress import showing
from .given import ImageInput
from .subject import Subject

MAX_SENT_PIXELS = 50_000_000
"""Largest image that is decoded for somebody who sent it: 150 MB of RGB, a third of what a file named here may take."""

Item = tuple[str, ImageInput]
"""A name, and the image."""


def named(images: Sequence[ImageInput]) -> Iterator[Item]:
    """One by one what is named: files, the images in folders, and all else, called `image 0` after their place.

    Raises: UserError if a path is not there or no file or folder.
    """
    for place, image in enumerate(images):
        yield from _named(place, image)


def _named(place: int, image: ImageInput) -> Iterator[Item]:
    if not isinstance(image, Path):
        yield f"image {place}", image
    elif image.is_dir():
        for name in sorted(file.path for file in images_among(scan(image)[0])):
            yield str(image / name), image / name
    elif image.is_file():
        yield str(image), image
    elif image.exists():
        raise UserError(f"{image} is no file")  # a pipe would be waited for
    else:
        raise UserError(f"there is no file or folder {image}")


@dataclass(frozen=True, eq=False)
class OpenedItems:
    """Images as a run's store keeps them.

    Args:
        images: those that could be read, in order; None where none could.
        names: of all items, as text.
        errors: why an item could not be read; empty where it could.
    """

    images: CachedImages | None
    names: list[str]
    errors: list[str]


def open_items(subject: Subject, items: Sequence[Item], most: int | None = None) -> OpenedItems:
    """Decode images for a run's student; what cannot be read is told with its reason.

    Args:
        subject: the student.
        items: the images.
        most: pixels of an open file; larger ones are not decoded. None: as many as a file here may have.
    """
    side, fit = subject.image_settings.cache_size, subject.image_settings.fitting
    assert side is not None, "a run's recipe is settled"
    pixels: list[Tensor] = []
    sizes: list[tuple[int, int]] = []
    errors: list[str] = []
    for name, image in items:
        try:
            picture = decoded(name, image, side, subject.image_settings.pixel_format, most)
            picture = fit(picture, name) if fit is not None else picture
        except Unreadable as error:
            errors.append(error.reason)
        except OSError as error:
            errors.append(error.strerror or str(error))
        else:
            pixels.append(torch.from_numpy(squeeze(picture.pixels, side)).permute(2, 0, 1))
            sizes.append((picture.height, picture.width))
            errors.append("")
    names = [readable(name) for name, _ in items]
    if not pixels:
        return OpenedItems(None, names, errors)
    known = [name for name, error in zip(names, errors, strict=True) if not error]
    records = Records(torch.full((len(known),), -1), torch.tensor(sizes), known)
    return OpenedItems(CachedImages(torch.stack(pixels), torch.arange(len(known)), records), names, errors)


def read_unseen(recipe: Config, data: str | Source, classes: Sequence[str]) -> tuple[Images, dict[str, str]]:
    """Images that a run has never seen, kept as its recipe keeps its own, and what was skipped (`prepare_test`)."""
    with showing("reading images") as progress:
        skip = recipe.section("data").skip_unreadable
        return prepare_test(data, classes, recipe.section("images"), skip, progress)


def decoded(
    name: str, image: ImageInput, side: int, pixel_format: PixelFormat = RGB, most: int | None = None
) -> DecodedImage:
    """One image, no smaller than a side asks for.

    Args:
        name: what errors call it.
        image: what is decoded.
        side: pixels that its shorter side needs; a JPEG may be decoded at a fraction of its size for it.
        pixel_format: its channels.
        most: as for `open_items`.

    Raises: Unreadable, or OSError where the file cannot be opened.
    """
    if isinstance(image, Unreadable):
        raise Unreadable(name, image.reason)
    if isinstance(image, Path):
        with FileReader(Path(), [str(image)]).open(0) as file:
            return decode(file, name, side, pixel_format)
    if most is not None and not isinstance(image, DECODED):
        height, width = image_size(image, name)
        if height * width > most:
            raise Unreadable(name, f"{width} x {height} is more than {most:,} pixels")
        image.seek(0)
    return decode(image, name, side, pixel_format)
