# SPDX-License-Identifier: Apache-2.0
"""Images that the user names, holds or sends: files, folders, pictures of any library, encoded bytes; decoded as those
in a run's cache."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..config.resolve import Config
from ..data.dataset import prepare_test
from ..data.image_set import CachedImages, Images, Records
from ..data.images.decode import DECODED, Decoded, DecodedImage, Unreadable, as_pixels, decode, image_size, reason
from ..data.images.format import RGB, PixelFormat
from ..data.images.video import is_clip
from ..data.sources.files import FileReader
from ..data.sources.folders import images_among, scan
from ..data.sources.source import UNLABELED, Source
from ..data.sources.table import column_of, is_frame
from ..data.transforms.resample import resize_to_square
from ..errors import UserError, received
from ..text import readable
from ..training.progress import showing
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of, dataset_of
from .model import EvaluatedModel

MAX_SENT_PIXELS = 50_000_000
"""Largest sent image that is decoded: 150 MB of RGB, a third of the limit for files named here."""

ImageInput = Path | Decoded | BinaryIO | Unreadable
"""One image: a file here, pixels, an open file at its start, or the reason why an object is no image."""
Item = tuple[str, ImageInput]  # a name, and the image


def as_images(inputs: Any) -> list[ImageInput]:
    """Convert to one item an image or folder, in order; an object that is no image, or a damaged one, is `Unreadable`.

    Args:
        inputs: a path (str or Path); PIL's image; an array [H, W] or [H, W, C], or a tensor [C, H, W] or, of colors,
            [H, W, 3], uint8, uint16 or floats in [0, 1], or of any numbers where the run has their `images.range`; a
            batch of arrays or tensors; the bytes of an image file, or an open one; any iterable of these, such as a
            list or a column of a data frame; a data frame with the column path.

    Raises: UserError for an empty list, an empty name, and a data frame without the column.
    """
    items = list(_items(inputs))
    if not items:
        raise UserError(f"no images were given, got {received(inputs)}; give at least one")
    return items


def _items(inputs: Any) -> Iterator[ImageInput]:
    if isinstance(inputs, (str, os.PathLike)):
        if not os.fspath(inputs):
            raise UserError("an image's name is empty; name image files, or folders (. is the one you are in)")
        yield Path(inputs)
    elif is_frame(inputs):
        yield from _items(list(column_of(inputs, "path")))
    elif isinstance(inputs, (bytes, bytearray, memoryview)):
        yield BytesIO(inputs)
    elif isinstance(inputs, np.ndarray) and inputs.ndim == 0:
        yield from _items(inputs.item())
    elif isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == 4:
        yield from map(_pixels, inputs)
    elif isinstance(inputs, (Image.Image, Tensor)) or (
        isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "OSU"
    ):
        yield _pixels(inputs)
    elif hasattr(inputs, "read"):
        yield _content(inputs)
    elif isinstance(inputs, Iterable) and not isinstance(inputs, dict):
        for item in inputs:
            yield from _items(item)
    else:
        yield _pixels(inputs)


def _pixels(image: Any) -> Decoded | Unreadable:
    """Return an image's pixels, or the reason where its library raises anything."""
    try:
        return as_pixels(image)
    except UserError as error:
        return Unreadable("image", str(error))
    except Exception as error:
        return Unreadable("image", reason(error))


def _content(file: Any) -> BinaryIO | Unreadable:
    """Read the rest of an open file."""
    try:
        content = file.read()
    except (OSError, ValueError) as error:  # a closed one
        return Unreadable("image", f"an open file cannot be read: {error}")
    if not isinstance(content, bytes):
        return Unreadable("image", "an open file must be binary, as open(path, 'rb')")
    return BytesIO(content)


def named(images: Sequence[ImageInput], clips: bool = False) -> Iterator[Item]:
    """Yield the images: files, those in folders, and all else, named `image 0` by their place. `clips`: with the clips
    in folders."""
    for place, image in enumerate(images):
        yield from _named(place, image, clips)


def _named(place: int, image: ImageInput, clips: bool) -> Iterator[Item]:
    if not isinstance(image, Path):
        yield f"image {place}", image
    elif image.is_dir():
        files = scan(image)[0]
        films = [file for file in files if clips and is_clip(file.path)]
        for name in sorted(file.path for file in [*images_among(files), *films]):
            yield str(image / name), image / name
    elif image.is_file():
        yield str(image), image
    elif image.exists():
        raise UserError(f"{image} is not a file")  # reading a pipe would block
    else:
        raise UserError(f"there is no file or folder {image}")


@dataclass(frozen=True, eq=False)
class OpenedItems:
    """Images as a run's cache holds them."""

    images: CachedImages | None
    names: list[str]
    errors: list[str]  # why an item could not be read; empty where it could


def open_items(model: EvaluatedModel, items: Sequence[Item], max_pixels: int | None = None) -> OpenedItems:
    """Decode images for a run's student; those that cannot be read get their reason. `max_pixels`: limit for an open
    file; larger ones are not decoded. None: the limit of any file.
    """
    side, fit = model.image_settings.cache_size, model.image_settings.fitting
    assert side is not None, "a run's recipe is resolved"
    pixels: list[Tensor] = []
    sizes: list[tuple[int, int]] = []
    errors: list[str] = []
    for name, image in items:
        try:
            picture = decoded(name, image, side, model.image_settings.pixel_format, max_pixels)
            picture = fit(picture, name) if fit is not None else picture
        except Unreadable as error:
            errors.append(error.reason)
        except OSError as error:
            errors.append(error.strerror or str(error))
        else:
            pixels.append(torch.from_numpy(resize_to_square(picture.pixels, side)).permute(2, 0, 1))
            sizes.append((picture.height, picture.width))
            errors.append("")
    names = [readable(name) for name, _ in items]
    if not pixels:
        return OpenedItems(None, names, errors)
    read_names = [name for name, error in zip(names, errors, strict=True) if not error]
    records = Records(torch.full((len(read_names),), -1), torch.tensor(sizes), read_names)
    return OpenedItems(CachedImages(torch.stack(pixels), torch.arange(len(read_names)), records), names, errors)


def read_unseen(config: Config, data: str | Source, classes: Sequence[str]) -> tuple[Images, dict[str, str]]:
    """Read other images as a run's recipe reads the run's; returns them, and what was skipped (`prepare_test`)."""
    with showing("reading images") as progress:
        skip = config.data.skip_unreadable
        return prepare_test(data, classes, config.images, skip, progress)


def run_digests(run: RunFolder, splits: Sequence[str] = ("train", "val", "test")) -> set[bytes]:
    """Return digests of the pixels of a run's own images. Raises: UserError, half a sentence, if unknown."""
    try:
        dataset = dataset_of(run, config := config_of(run))
        if UNLABELED in splits and config.data.unlabeled is not None:
            with suppress(UserError):  # they are no longer there
                dataset = dataset_of(run, config, unlabeled=True)
    except UserError as error:
        raise UserError("its own are not there") from error
    return {mark for split, images in dataset.splits.items() if split in splits for mark in pixel_digests(images)}


def pixel_digests(images: Images) -> list[bytes]:
    """Return digests of images' pixels. Raises: UserError, half a sentence, for streamed images."""
    if not isinstance(images, CachedImages):
        raise UserError("streamed images are not compared")
    parts = torch.split(torch.arange(len(images)), 256)
    pixels = (each for numbers in parts for each in images.take(numbers).cpu().numpy())
    return [hashlib.blake2b(each.tobytes(), digest_size=16).digest() for each in pixels]


def decoded(
    name: str, image: ImageInput, side: int, pixel_format: PixelFormat = RGB, max_pixels: int | None = None
) -> DecodedImage:
    """Decode one image, no smaller than `side`. `side`: pixels of its shorter side; a JPEG may be decoded at a fraction
    of its size. `max_pixels`: as for `open_items`. Raises: Unreadable, or OSError where the file cannot be opened.
    """
    if isinstance(image, Unreadable):
        raise Unreadable(name, image.reason)
    if isinstance(image, Path):
        with FileReader(Path(), [str(image)]).open(0) as file:
            return decode(file, name, side, pixel_format)
    if max_pixels is not None and not isinstance(image, DECODED):
        height, width = image_size(image, name)
        if height * width > max_pixels:
            raise Unreadable(name, f"{width} x {height} is more than {max_pixels:,} pixels")
        image.seek(0)
    return decode(image, name, side, pixel_format)
