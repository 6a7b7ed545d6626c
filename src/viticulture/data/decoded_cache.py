# SPDX-License-Identifier: Apache-2.0
"""The decoded-image cache: every image decoded once, resized to one square, in a memory map that all processes share.

    decoded/KEY/pixels.npy        [M, S, S, C] uint8
    decoded/KEY/sizes.npy         [M, 2] int32, height and width of the upright original; 0, 0 if unreadable
    decoded/KEY/digests.npy       [M, 16] uint8 of the decoded pixels, to find identical images
    decoded/KEY/unreadable.json   unreadable images with reasons

    indexes/KEY/                  of images without their pixels: sizes, near-duplicates

KEY depends on the images' names, fingerprints and root, on S, and on format and fit. An image of another size is
resized to S x S by Pillow's bicubic filter, antialiased, as torch computes it (`resample.resize_to_square`). Bicubic,
because a random crop resamples the pixels once more, and bilinear twice would blur; images of S x S stay as they are,
bit for bit. Large JPEGs are decoded at a fraction of their size (`decode.decode`); the digest is then that of the
fraction, still equal for equal files.
"""

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache import cache_folder, digest, publish, refusals
from ..errors import UserError, counted, some
from ..parallel import Progress, in_parallel
from .images.decode import OtherValues, Unreadable
from .images.format import ANY_FORMAT
from .near_duplicates import MAX_IMAGES, MIN_SIDE, SIDE, NearDuplicates, match_thumbnails, thumbnail
from .sources.source import Source
from .subsets import evenly
from .transforms.resample import resize_to_square

_VERSION = "4"
_KINDS = {(".tif", ".tiff"): "tiff 4", (".png",): "png 1"}  # each changes with the decoding of such files alone
_FEW, _SMALL = 8, 80 * 80
"""Images; pixels: of 64 x 64 a second thread gains nothing, of 160 x 200 it saves two fifths (benchmarks/log)."""
_UNREADABLE = "unreadable.json"


@dataclass(frozen=True, eq=False)
class Survey:
    """Metadata of images that were decoded once."""

    rows: np.ndarray  # [M] int64, their positions in the source, ascending
    sizes: np.ndarray  # [M, 2] int32, height and width of the upright original, pixels; 0, 0 if unreadable
    unreadable: dict[int, str]  # position in the source -> reason


@dataclass(frozen=True, eq=False)
class DecodedCache(Survey):
    """Decoded images."""

    digests: np.ndarray  # [M, 16] uint8; equal where the images are identical, pixel by pixel
    # [M, C, S, S] uint8, a view of a memory map, a pixel's colors together: resizing reads them so. Writing to it
    # changes this process's copy only.
    pixels: Tensor


def build(
    source: Source,
    size: int,
    rows: np.ndarray | None = None,
    budget: int | None = None,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> DecodedCache:
    """Decode images into the cache, or find them there.

    Args:
        rows: positions of the images to decode; None for all.
        budget: maximum size, bytes; None for no limit.

    Raises: UserError if images cannot be read, the budget is exceeded, or the disk is full.
    """
    rows = np.arange(len(source)) if rows is None else np.unique(rows)
    need = len(rows) * channels_of(source) * size * size
    if budget is not None and need > budget:
        raise UserError(
            f"{counted(len(rows), 'image')} of {size} x {size} pixels would take {_gb(need)}, more than "
            f"images.max_cache_gb, {_gb(budget)}; raise it, lower images.cache_size, take a fraction, or stream"
        )
    folder = cache_folder() / "decoded" / _key(source, rows, str(size))

    def make(folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if free < need:
            raise UserError(
                f"decoded images need {_gb(need)} in {cache_folder() / 'decoded'}, where {_gb(free)} are free; free "
                "some (viticulture cache --clear) or point VITICULTURE_CACHE elsewhere"
            )
        _fill(folder, source, size, rows, progress)

    holds = ["pixels.npy", "sizes.npy", "digests.npy", _UNREADABLE]
    with refusals(folder):
        publish(folder, make, partial(_is_cured, source), holds)
        sizes, digests = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("sizes", "digests"))
        pixels = np.load(folder / "pixels.npy", mmap_mode="c", allow_pickle=False)
        unreadable = _read_unreadable(folder)
    if not skip_unreadable:
        refuse(source, unreadable, len(rows))
    return DecodedCache(rows, sizes, unreadable, digests, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def survey(source: Source, rows: np.ndarray, progress: Progress | None = None) -> Survey:
    """Decode images that will be streamed, to find those that cannot be read; the result is cached, too.

    It takes as long as an epoch that only reads.
    """
    rows = np.unique(rows)

    def make(folder: Path) -> None:
        work = partial(_size_or_reason, source)
        readings = list(in_parallel(work, rows.tolist(), progress, threads=_threads(source, rows)))
        np.save(folder / "sizes.npy", np.array([size for size, _ in readings], dtype=np.int32))
        _write_unreadable(folder, {i: why for i, (_, why) in zip(rows.tolist(), readings, strict=True) if why})

    index = cache_folder() / "indexes" / _key(source, rows, "survey")
    with refusals(index):
        publish(index, make, partial(_is_cured, source), ["sizes.npy", _UNREADABLE])
        return Survey(rows, np.load(index / "sizes.npy", allow_pickle=False), _read_unreadable(index))


def find_near_duplicates(source: Source, progress: Progress | None = None) -> NearDuplicates | None:
    """Search all images of a source for near-duplicates; the result is cached. None for more than MAX_IMAGES.

    Images are decoded in their own format, whatever a recipe's: runs of all sizes find the same ones, and split the
    images alike. JPEGs are decoded at a fraction of their size, in a fifth of the time.
    """
    if len(source) > MAX_IMAGES:
        return None
    source, rows = dataclasses.replace(source, pixel_format=ANY_FORMAT, fit=None), np.arange(len(source))

    def make(folder: Path) -> None:
        marks = np.zeros((len(rows), 16), np.uint8)
        thumbnails, usable = np.zeros((len(rows), SIDE, SIDE, 3), np.uint8), np.zeros(len(rows), bool)
        unreadable = dict[int, str]()
        work = partial(_thumbnail, source)
        for i, result in enumerate(in_parallel(work, rows.tolist(), progress, threads=_threads(source, rows))):
            if isinstance(result, str):
                unreadable[i], mark = result, _unique_digest(i)
            else:
                mark, small = result
                if small is not None:
                    thumbnails[i], usable[i] = small, True
            marks[i] = np.frombuffer(mark, np.uint8)
        np.savez(folder / "copies.npz", **vars(match_thumbnails(marks, thumbnails, usable)))
        _write_unreadable(folder, unreadable)

    index = cache_folder() / "indexes" / _key(source, rows, "near-duplicates 1")
    with refusals(index):
        publish(index, make, partial(_is_cured, source), ["copies.npz", _UNREADABLE])
        with np.load(index / "copies.npz", allow_pickle=False) as file:
            return NearDuplicates(file["same"], file["pairs"], int(file["crowded"]))


def _thumbnail(source: Source, i: int) -> tuple[bytes, NDArray[np.uint8] | None] | str:
    """Digest and thumbnail of an image, or why it cannot be read. With a thumbnail the digest is that of the thumbnail,
    so that equal ones are compared once."""
    try:
        picture = source.picture(i, shrink=MIN_SIDE)
    except OtherValues:  # numbers whose range only a recipe has
        return _unique_digest(i), None
    except Unreadable as error:
        return error.reason
    small = thumbnail(picture.image)
    return pixel_digest(picture.pixels if small is None else small), small


def _unique_digest(i: int) -> bytes:
    """A digest for an image that is compared with no other."""
    return hashlib.blake2b(b"%d" % i, digest_size=16, key=b"alone").digest()


def _is_cured(source: Source, folder: Path) -> bool:
    """Return whether an image that could not be read when a folder was made can be read now: permissions, a missing
    decoder and a lack of memory may change without the file."""
    return any(not _size_or_reason(source, i)[1] for i in _read_unreadable(folder))


def refuse(source: Source, unreadable: Mapping[int, str], count: int) -> None:
    """Raises: UserError that lists the images that cannot be read, if there are any."""
    if unreadable:
        files = [f"{source.names[i]} ({reason})" for i, reason in sorted(unreadable.items())]
        raise UserError(
            f"{len(files)} of {counted(count, 'image')} cannot be read: {some(files)}; repair or remove them, or go on"
            " without them: --skip-unreadable"
        )


def channels_of(source: Source) -> int:
    """Channels of a source's decoded images."""
    assert source.pixel_format.channels is not None, "a cache has a number of channels"
    return source.pixel_format.channels


def pixel_digest(pixels: np.ndarray) -> bytes:
    """16 bytes that are equal for images of equal size and pixels, [H, W, C] uint8."""
    height, width, _ = pixels.shape
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, key=b"%d x %d" % (width, height)).digest()


def _fill(folder: Path, source: Source, size: int, rows: np.ndarray, progress: Progress | None) -> None:
    sizes = np.zeros((len(rows), 2), dtype=np.int32)
    digests = np.zeros((len(rows), 16), dtype=np.uint8)
    unreadable, channels = {}, channels_of(source)
    # Written, never mapped, while it grows: a full disk then is an error and not a signal that kills the process.
    with (folder / "pixels.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(rows), size, size, channels)}
        np.lib.format.write_array_header_2_0(file, header)
        results = in_parallel(partial(_square, source, size=size), rows.tolist(), progress, _threads(source, rows))
        for number, result in enumerate(results):
            if isinstance(result, str):
                unreadable[int(rows[number])] = result
                file.write(bytes(channels * size * size))
            else:
                pixels, sizes[number], mark = result
                assert pixels.shape == (size, size, channels), "as the header says for every image"
                digests[number] = np.frombuffer(mark, dtype=np.uint8)
                file.write(np.ascontiguousarray(pixels).data)
    np.save(folder / "sizes.npy", sizes)
    np.save(folder / "digests.npy", digests)
    _write_unreadable(folder, unreadable)


def _threads(source: Source, rows: np.ndarray) -> int | None:
    """Threads that decode: one where a few images, evenly spaced, are all small, as most of the work on them is
    Python, which one thread at a time runs; else None, for one a core."""
    few = evenly(rows, _FEW).tolist()
    with suppress(Unreadable):
        return 1 if few and all(math.prod(source.size_of(i)) <= _SMALL for i in few) else None
    return None


def _key(source: Source, rows: np.ndarray, what: str) -> str:
    """Changes with the images, the selection of them, and the result."""
    parts = [source.pixel_format.fingerprint] if source.pixel_format.fingerprint else []
    parts += [] if source.fit is None else [source.fit.fingerprint]
    parts += map(str, rows.tolist() if len(rows) < len(source) else ())
    names = [name.lower() for name in source.names]
    parts += [kind for endings, kind in _KINDS.items() if any(name.endswith(endings) for name in names)]
    return digest([_VERSION, what, source.root, digest(source.names), digest(source.fingerprints), *parts])


def _square(source: Source, i: int, size: int) -> tuple[np.ndarray, tuple[int, int], bytes] | str:
    """Pixels [S, S, C], original height and width, digest; or why the image cannot be read."""
    try:
        picture = source.picture(i, shrink=size)
    except Unreadable as error:
        return error.reason
    return resize_to_square(picture.pixels, size), (picture.height, picture.width), pixel_digest(picture.pixels)


def _size_or_reason(source: Source, i: int) -> tuple[tuple[int, int], str]:
    """Original height and width, and why the image cannot be read; "" if it can."""
    try:
        picture = source.picture(i, shrink=1)  # damage shows at any scale
    except Unreadable as error:
        return (0, 0), error.reason
    return (picture.height, picture.width), ""


def _write_unreadable(folder: Path, unreadable: dict[int, str]) -> None:
    (folder / _UNREADABLE).write_text(json.dumps(unreadable), "utf-8")


def _read_unreadable(folder: Path) -> dict[int, str]:
    return {int(i): reason for i, reason in json.loads((folder / _UNREADABLE).read_text("utf-8")).items()}


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
