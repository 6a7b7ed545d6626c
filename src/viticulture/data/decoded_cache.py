# SPDX-License-Identifier: Apache-2.0
"""Every image decoded once, squeezed to one size, and kept as a memory map that all processes share.

    stores/KEY/pixels.npy     [M, S, S, C] uint8          KEY: the images' names, fingerprints and root, S, which
    stores/KEY/sizes.npy      [M, 2] int32                height and width of the upright original; 0, 0 if unreadable
    stores/KEY/digests.npy    [M, 16] uint8               of the decoded pixels, to find identical images
    stores/KEY/unreadable.json     unreadable images with reasons

    indexes/KEY/              what is known of images without their pixels: sizes, near-duplicates

An image of another size is squeezed to S x S by Pillow's bicubic filter, widened when it shrinks (no aliasing), as
torch computes it (`resample.resize_to_square`). Bicubic, because a random crop resamples the pixels once more, and
bilinear twice would blur; images of S x S stay as they are, bit for bit. Large JPEGs are decoded at a fraction of their
size (`decode.decode`); the digest is then that of the fraction, still equal for equal files.
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

_VERSION = "3"
_KINDS = {(".tif", ".tiff"): "tiff 4", (".png",): "png 1"}  # each changes with what becomes of such files alone
_FEW, _SMALL = 8, 80 * 80
"""Images; pixels: of 64 x 64 a second thread is worth nothing, of 160 x 200 it saves two fifths (LOG.md)."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known of images that were decoded once.

    Args:
        rows: [M] int64, their positions in the source, ascending.
        sizes: [M, 2] int32, height and width of the upright original, pixels; 0, 0 if unreadable.
        unreadable: position in the source -> what is wrong with the image.
    """

    rows: np.ndarray
    sizes: np.ndarray
    unreadable: dict[int, str]


@dataclass(frozen=True, eq=False)
class DecodedCache(Survey):
    """Decoded images, kept.

    Args:
        digests: [M, 16] uint8; equal where the images are identical, pixel by pixel.
        pixels: [M, C, S, S] uint8, a view of a memory map, a pixel's colors together: resizing reads them so. Writing
            to it changes this process's copy only.
    """

    digests: np.ndarray
    pixels: Tensor


def build(
    source: Source,
    size: int,
    rows: np.ndarray | None = None,
    budget: int | None = None,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> DecodedCache:
    """Decode images into a store, or find the one that holds them already.

    Args:
        source: the images.
        size: S, height and width in the store, pixels.
        rows: positions of the images to decode; None for all.
        budget: bytes that the store may take; None for as many as there are.
        skip_unreadable: go on where images cannot be read; they are black, and listed in `unreadable`.
        progress: told about every few images.

    Raises: UserError if images cannot be read, the store exceeds its budget, or the disk is full.
    """
    wanted = np.arange(len(source)) if rows is None else np.unique(rows)
    need = len(wanted) * channels_of(source) * size * size
    if budget is not None and need > budget:
        raise UserError(
            f"{counted(len(wanted), 'image')} of {size} x {size} pixels would take {_gb(need)}, more than the budget of"
            f" {_gb(budget)}; raise max_cache_gb, lower cache_size, take a fraction, or stream"
        )
    stores = cache_folder() / "decoded"
    key = _key(source, wanted, str(size))

    def make(folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if free < need:
            raise UserError(
                f"the store needs {_gb(need)} in {stores}, where {_gb(free)} are free; make room"
                " (viticulture cache --clear) or point VITICULTURE_CACHE elsewhere"
            )
        _fill(folder, source, size, wanted, progress)

    holds = [f"{name}.npy" for name in ("pixels", "sizes", "digests")]
    with refusals(stores / key):
        cached = _load(publish(stores / key, make, partial(_cured, source), [*holds, "unreadable.json"]), wanted)
    if not skip_unreadable:
        refuse(source, cached.unreadable, len(wanted))
    return cached


def survey(source: Source, rows: np.ndarray, progress: Progress | None = None) -> Survey:
    """Decode images that will be streamed, to know those that cannot be read; remembered in the cache like a store.

    It takes as long as an epoch that only reads.
    """
    wanted = np.unique(rows)

    def make(folder: Path) -> None:
        readings = list(
            in_parallel(partial(_seen, source), wanted.tolist(), progress, threads=_threads(source, wanted))
        )
        np.save(folder / "sizes.npy", np.array([size for size, _ in readings], dtype=np.int32))
        _describe(folder, {i: why for i, (_, why) in zip(wanted.tolist(), readings, strict=True) if why})

    index = cache_folder() / "indexes" / _key(source, wanted, "survey")
    with refusals(index):
        folder = publish(index, make, partial(_cured, source), ["sizes.npy", "unreadable.json"])
        return Survey(wanted, np.load(folder / "sizes.npy", allow_pickle=False), _unreadable(folder))


def find_near_duplicates(source: Source, progress: Progress | None = None) -> NearDuplicates | None:
    """The near-duplicates among all images of a source; remembered in the cache. None for more than MAX_IMAGES.

    Images are decoded as they are, whatever a recipe keeps of them: runs of all sizes find the same ones, and divide
    the images alike. JPEGs are decoded at a fraction of their size, in a fifth of the time.
    """
    if len(source) > MAX_IMAGES:
        return None
    source, rows = dataclasses.replace(source, pixel_format=ANY_FORMAT, fit=None), np.arange(len(source))

    def make(folder: Path) -> None:
        marks = np.zeros((len(rows), 16), np.uint8)
        thumbnails, usable = np.zeros((len(rows), SIDE, SIDE, 3), np.uint8), np.zeros(len(rows), bool)
        unreadable = dict[int, str]()
        work = partial(_reduced, source)
        for i, seen in enumerate(in_parallel(work, rows.tolist(), progress, threads=_threads(source, rows))):
            if isinstance(seen, str):
                unreadable[i], mark = seen, _alone(i)
            else:
                mark, small = seen
                if small is not None:
                    thumbnails[i], usable[i] = small, True
            marks[i] = np.frombuffer(mark, np.uint8)
        found = match_thumbnails(marks, thumbnails, usable)
        np.savez(folder / "copies.npz", **vars(found))
        _describe(folder, unreadable)

    index = cache_folder() / "indexes" / _key(source, rows, "near-duplicates 1")
    with refusals(index):
        publish(index, make, partial(_cured, source), ["copies.npz", "unreadable.json"])
        with np.load(index / "copies.npz", allow_pickle=False) as file:
            return NearDuplicates(file["same"], file["pairs"], int(file["crowded"]))


def _reduced(source: Source, i: int) -> tuple[bytes, NDArray[np.uint8] | None] | str:
    """A digest and the thumbnail of an image; or what is wrong with it. Of an image with a thumbnail the digest is that
    of the thumbnail, so that equal ones are compared once."""
    try:
        picture = source.picture(i, shrink=MIN_SIDE)
    except OtherValues:  # numbers whose range only a recipe names
        return _alone(i), None
    except Unreadable as error:
        return error.reason
    small = thumbnail(picture.image)
    return pixel_digest(picture.pixels if small is None else small), small


def _alone(i: int) -> bytes:
    """The digest of an image that is compared with no other."""
    return hashlib.blake2b(b"%d" % i, digest_size=16, key=b"alone").digest()


def _cured(source: Source, folder: Path) -> bool:
    """Whether an image that could not be read when a folder was made can be now: a permission, a missing decoder and a
    lack of memory are cured without a change of the file."""
    return any(not _seen(source, i)[1] for i in _unreadable(folder))


def refuse(source: Source, unreadable: Mapping[int, str], count: int) -> None:
    """Stop where images cannot be read.

    Raises: UserError that lists them.
    """
    if unreadable:
        files = [f"{source.names[i]} ({reason})" for i, reason in sorted(unreadable.items())]
        raise UserError(
            f"{len(files)} of {counted(count, 'image')} cannot be read: {some(files)}; mend or remove them, or go on"
            " without them: --skip-unreadable"
        )


def channels_of(source: Source) -> int:
    """Of the images that are kept of a source."""
    assert source.pixel_format.channels is not None, "an image is kept by a number of channels"
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
        work = partial(_kept, source, size=size)
        squeezed = in_parallel(work, rows.tolist(), progress, threads=_threads(source, rows))
        for number, result in enumerate(squeezed):
            if isinstance(result, str):
                unreadable[int(rows[number])] = result
                file.write(bytes(channels * size * size))
            else:
                pixels, sizes[number], mark = result
                assert pixels.shape == (size, size, channels), "what the header says of every image"
                digests[number] = np.frombuffer(mark, dtype=np.uint8)
                file.write(np.ascontiguousarray(pixels).data)
    np.save(folder / "sizes.npy", sizes)
    np.save(folder / "digests.npy", digests)
    _describe(folder, unreadable)


def _threads(source: Source, rows: np.ndarray) -> int | None:
    """Threads that decode: one where all of a few images, evenly spaced, are small, as most of the work on them is
    Python, which one thread at a time runs; None, for one a core, elsewhere."""
    few = evenly(rows, _FEW).tolist()
    with suppress(Unreadable):
        return 1 if few and all(math.prod(source.size_of(i)) <= _SMALL for i in few) else None
    return None


def _key(source: Source, rows: np.ndarray, what: str) -> str:
    """Changes with the images, which of them, and what is kept of them."""
    parts = [source.pixel_format.fingerprint] if source.pixel_format.fingerprint else []
    parts += [] if source.fit is None else [source.fit.fingerprint]
    parts += map(str, rows.tolist() if len(rows) < len(source) else ())
    names = [name.lower() for name in source.names]
    parts += [kind for endings, kind in _KINDS.items() if any(name.endswith(endings) for name in names)]
    return digest([_VERSION, what, source.root, digest(source.names), digest(source.fingerprints), *parts])


def _kept(source: Source, i: int, size: int) -> tuple[np.ndarray, tuple[int, int], bytes] | str:
    """Pixels [S, S, C], original height and width, digest; or what is wrong with the image."""
    try:
        picture = source.picture(i, shrink=size)
    except Unreadable as error:
        return error.reason
    return resize_to_square(picture.pixels, size), (picture.height, picture.width), pixel_digest(picture.pixels)


def _seen(source: Source, i: int) -> tuple[tuple[int, int], str]:
    """Original height and width; and what is wrong with the image, if anything is."""
    try:
        picture = source.picture(i, shrink=1)  # damage shows at any scale
    except Unreadable as error:
        return (0, 0), error.reason
    return (picture.height, picture.width), ""


def _describe(folder: Path, unreadable: dict[int, str]) -> None:
    (folder / "unreadable.json").write_text(json.dumps({"unreadable": unreadable}), "utf-8")


def _unreadable(folder: Path) -> dict[int, str]:
    about = json.loads((folder / "unreadable.json").read_text("utf-8"))
    return {int(i): reason for i, reason in about["unreadable"].items()}


def _load(folder: Path, rows: np.ndarray) -> DecodedCache:
    sizes, digests = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("sizes", "digests"))
    pixels = np.load(folder / "pixels.npy", mmap_mode="c", allow_pickle=False)
    return DecodedCache(rows, sizes, _unreadable(folder), digests, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
