# SPDX-License-Identifier: Apache-2.0
"""Folders, streams, shards and stores as images become many: hard links to a few photographs, so that disks cope.

Each measurement has a process of its own, whose largest memory counts torch and all (about 0.75 GB of it).
"""

import io
import multiprocessing
import os
import resource
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from viticulture.cache import publish
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.dataset import Dataset, DataSettings, ImageSettings, prepare
from viticulture.data.open import open_source
from viticulture.data.transforms.crop import ResizedCrop
from viticulture.data.transforms.view import Augment

from . import Row

SIZES = (10_000, 100_000, 1_300_000)
REOPENED = 60_000
CLASSES, LINKS = 1000, 40_000  # file systems allow some 65,000 links to a file
SHARDS, SAMPLES, NODES = 8, 1000, 2
STREAM = ImageSettings(image_size=224, cache_size=288, stream=True)


def measure() -> Iterator[Row]:
    """Every measurement of images, as it is taken."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VITICULTURE_CACHE"] = f"{folder}/cache"
        for size in SIZES:
            root = photographs(Path(folder) / str(size), size)
            yield from (_apart(work, root, size) for work in (listing, streaming))
        yield from (_apart(decoding, Path(folder), size) for size in (1, 0))
        tars = shards(Path(folder) / "shards")
        for node in range(NODES):
            os.environ["VITICULTURE_CACHE"] = f"{folder}/node-{node}"
            yield from (_apart(sharded, tars, 2 * node + local) for local in range(2))
        yield _apart(checking, Path(folder), 10**9)
        root = photographs(Path(folder) / "small", REOPENED, side=32)
        prepare(root)
        yield _apart(reopening, root, REOPENED)


def listing(root: Path, size: int) -> Row:
    """From a folder's path to splits that can be streamed."""
    began = time.perf_counter()
    _prepare(root)
    wall = time.perf_counter() - began
    return Row("list, split, make ready to stream", size, time.process_time(), _memory(), wall)


def streaming(root: Path, size: int) -> Row:
    """One image of a stream, from its file to a cropped view."""
    load, count = _loader(_prepare(root), 0, 1), 20
    load.batch(0, 0)
    start = time.process_time()
    for step in range(1, 1 + count):
        load.batch(0, step)
    return Row("one streamed image of 500 x 375", size, (time.process_time() - start) / (count * load.batch_size), 0)


def decoding(folder: Path, draft: int) -> Row:
    """A photograph of 12 megapixels, decoded for a store of 288 pixels and in full."""
    (folder / "large").mkdir(exist_ok=True)
    _photograph(0).resize((4000, 3000)).save(folder / "large" / "x.jpg", quality=90)
    source, count = open_source(folder / "large"), 5
    start = time.process_time()
    for _ in range(count):
        source.picture(0, 288 if draft else None)
    what = "decode 12 megapixels" + (" by draft for 288 pixels" if draft else " in full")
    return Row(what, 1, (time.process_time() - start) / count, 0)


def sharded(tars: Path, rank: int) -> Row:
    """One of two processes on each of two nodes: its part of an epoch's order, and the listing that came before."""
    dataset, mine = _prepare(tars), Path(os.environ["VITICULTURE_CACHE"]) / f"{rank}.npy"
    spent = time.process_time()
    load = _loader(dataset, rank, 2 * NODES)
    numbers = np.concatenate([load.draw(0, step).numbers.numpy() for step in range(len(load))])
    np.save(mine, numbers)
    done = [np.load(file) for file in mine.parent.parent.glob("node-*/*.npy")]
    if len(done) == 2 * NODES and sorted(np.concatenate(done)) != list(range(len(dataset.train))):
        raise AssertionError("an epoch must hold every sample once")
    return Row(f"list {SHARDS} shards, process {rank % 2} of node {rank // 2}", SHARDS * SAMPLES, spent, 0)


def checking(folder: Path, size: int) -> Row:
    """Comparing a store with its checksums, as each opening does."""

    def make(partial: Path) -> None:
        (partial / "pixels.npy").write_bytes(np.random.default_rng(0).bytes(size))

    target = folder / "cache" / "decoded" / "large"
    publish(target, make)
    start = time.process_time()
    publish(target, make)
    return Row("compare a store with its checksums, bytes", size, time.process_time() - start, 0)


def reopening(root: Path, size: int) -> Row:
    """From a folder's path to splits whose images were decoded before: is every file the one that it was?"""
    start = time.process_time()
    prepare(root)
    return Row("open again what is decoded, files", size, time.process_time() - start, _memory())


def photographs(root: Path, size: int, side: int = 0) -> Path:
    """CLASS/file of `size` JPEGs, of which a few are different; `side` x `side` pixels, 0 for 500 x 375."""
    root.mkdir()
    few = root.parent / f"few-{size}"
    few.mkdir()
    for number in range(max(8, size // LINKS + 1)):
        whole = _photograph(number)
        (whole.resize((side, side)) if side else whole).save(few / f"{number}.jpg", quality=85)
    originals = [str(file) for file in few.iterdir()]
    for c in range(CLASSES):
        (root / f"n{c:08d}").mkdir()
        for i in range(size // CLASSES):
            os.link(originals[(c + i) % len(originals)], f"{root}/n{c:08d}/n{c:08d}_{i}.JPEG")
    return root


def shards(root: Path) -> Path:
    """Uncompressed tars of JPEGs and labels, in WebDataset's layout."""
    root.mkdir()
    file = io.BytesIO()
    _photograph(0).resize((32, 32)).save(file, "JPEG")
    for shard in range(SHARDS):
        with tarfile.open(root / f"{shard:04d}.tar", "w") as tar:
            for i in range(SAMPLES):
                for ending, raw in (("jpg", file.getvalue()), ("cls", b"%d" % (i % 10))):
                    member = tarfile.TarInfo(f"{shard:04d}{i:06d}.{ending}")
                    member.size = len(raw)
                    tar.addfile(member, io.BytesIO(raw))
    return root


def _photograph(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC)


def _prepare(root: Path) -> Dataset:
    return prepare(root, DataSettings(val_fraction=0, test_fraction=0), STREAM)


def _loader(dataset: Dataset, rank: int, world: int) -> Loader:
    view = Augment([ResizedCrop()], (224, 224), dataset.mean, dataset.std, len(dataset.classes))
    return Loader(dataset.train, [view], 32, 0, shard=Shard(rank, world, workers=0))


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def _apart(work: Callable[[Path, int], Row], root: Path, size: int) -> Row:
    """In a process of its own, whose time and memory nothing else has used."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work, (root, size))
