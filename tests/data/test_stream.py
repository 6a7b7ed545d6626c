# SPDX-License-Identifier: Apache-2.0
"""A stream decodes on demand and equals a cache."""

import errno
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from refusals import refused
from viticulture.data import workers as stream_module
from viticulture.data.batches.evaluation import evaluation_batches
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.dataset import DataSettings, ImageSettings, prepare
from viticulture.data.decoded_cache import build
from viticulture.data.image_set import CachedImages, Records, StreamedImages
from viticulture.data.open import open_source
from viticulture.data.sources.files import FileReader
from viticulture.data.sources.source import Source
from viticulture.data.transforms.crop import PaddedCrop, ResizedCrop
from viticulture.data.transforms.erase import Erase
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.view import Augment
from viticulture.data.workers import ahead
from viticulture.models.data_spec import DataSpec

MEAN, STD, COUNT, SIDE = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), 12, 64
TASK = DataSpec(("a", "b"), (24, 20), MEAN, STD)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Write smooth pictures of several shapes in a folder of two classes."""
    folder: Path = tmp_path_factory.mktemp("photos")
    for n in range(COUNT):
        height, width = 60 + 7 * (n % 5), 90 - 9 * (n % 4)
        y, x = np.linspace(0, 4, height)[:, None, None] + n, np.linspace(0, 5, width)[:, None]
        pixels = 128 + 100 * np.sin(y + np.arange(3)) * np.cos(x + n)
        (folder / "ab"[n % 2]).mkdir(exist_ok=True)
        large = n % 3 == 0  # large JPEGs are decoded at a fraction of their size
        scale, ending = (8, "jpg") if large else (1, "png")
        image = Image.fromarray(pixels.astype(np.uint8))
        image.resize((width * scale, height * scale)).save(folder / "ab"[n % 2] / f"{n}.{ending}")
    return open_source(folder)


def stream(source: Source) -> StreamedImages:
    """Stream every image of the source, last one first, sizes unknown."""
    rows = torch.arange(COUNT).flip(0)
    names = [source.names[row] for row in rows.tolist()]
    return StreamedImages(source, rows, Records(labels(source)[rows], torch.full((COUNT, 2), -1), names), SIDE)


def labels(source: Source) -> Tensor:
    return torch.as_tensor(source.labels)


def cached(source: Source) -> CachedImages:
    """Cache the same images."""
    held, rows = build(source, SIDE), torch.arange(COUNT).flip(0)
    sizes = torch.from_numpy(held.sizes)[rows]
    return CachedImages(held.pixels, rows, Records(labels(source)[rows], sizes, [str(n) for n in range(COUNT)]))


def view(*transforms: ResizedCrop | PaddedCrop | Flip | Erase) -> Augment:
    return Augment(transforms, TASK.image_size, MEAN, STD, 2)


@pytest.mark.parametrize("crop", [ResizedCrop(interpolation="random"), PaddedCrop()])
def test_a_stream_and_a_cache_give_the_same_batches(source: Source, crop: ResizedCrop | PaddedCrop) -> None:
    shard = Shard(workers=0)
    loaders = [Loader(images, (view(crop, Flip()),), 6, 0, shard=shard) for images in (stream(source), cached(source))]
    for streamed, stored in zip(*loaders, strict=True):
        assert streamed.keys() == stored.keys()
        assert all(torch.equal(streamed[key], stored[key]) for key in stored)


def test_workers_change_nothing(source: Source) -> None:
    views = (view(ResizedCrop(), Erase()), view(ResizedCrop(), Flip()))
    load = Loader(stream(source), views, 4, 0, shard=Shard(workers=2))
    load.load_state_dict({"epoch": 2, "next": 1})
    before = torch.get_rng_state()
    batches = list(load)
    assert torch.equal(torch.get_rng_state(), before)
    plain = Loader(stream(source), views, 4, 0)
    assert len(batches) == 2
    for step, batch in enumerate(batches, start=1):
        wanted = plain.batch(2, step)
        assert batch.keys() == wanted.keys() == {"image", "image2", "label", "index"}
        assert all(torch.equal(batch[key], wanted[key]) for key in batch)
    assert load.state_dict() == {"epoch": 3, "next": 0}


def test_evaluation_of_a_stream_is_that_of_a_cache(source: Source) -> None:
    device = torch.device("cpu")
    pairs = zip(
        evaluation_batches(stream(source), TASK, 5, device),
        evaluation_batches(cached(source), TASK, 5, device),
        strict=True,
    )
    for streamed, stored in pairs:
        assert all(torch.equal(streamed[key], stored[key]) for key in stored)


def test_an_original_is_unchanged(source: Source) -> None:
    assert (stream(source).original(0) == np.asarray(source.read(COUNT - 1))).all()


def test_streams_survive_pickling(source: Source) -> None:
    copy = pickle.loads(pickle.dumps(stream(source)))
    assert (copy.original(3) == stream(source).original(3)).all()


def test_an_error_in_a_worker_reaches_the_user() -> None:
    with pytest.raises(ZeroDivisionError):
        list(ahead(reciprocal, [1, 0], workers=1))


def rows(number: int) -> list[Tensor]:
    return [torch.full((3, 2), number), torch.arange(number)]


def no_room(*_: object, **__: object) -> None:
    raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")


def no_locks(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("place", "lacks", "words"),
    [
        ("torch.Tensor.share_memory_", no_room, "come through pipes"),
        ("multiprocessing.connection.Listener", no_locks, "come through pipes"),
        ("viticulture.data.workers.Queue", no_locks, "no processes to read images ahead (No space left on device)"),
    ],
    ids=["no shared memory", "no socket", "no locks"],
)
def test_without_shared_memory_batches_are_the_same(
    place: str,
    lacks: Callable[..., None],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A container has 64 MB of /dev/shm."""
    stream_module._warn_once.cache_clear()
    monkeypatch.setattr(place, lacks)
    for number, (constant, count) in enumerate(ahead(rows, range(5), workers=2)):
        assert torch.equal(constant, torch.full((3, 2), number))
        assert torch.equal(count, torch.arange(number))
    said = capfd.readouterr().err
    assert said.count("note ") == 1
    assert said.count("\n") == 1
    assert words in said


def test_a_killed_worker_is_an_error() -> None:
    refused(r"worker process was killed.*lack of memory", lambda: list(ahead(killed, [0, 1], workers=1)))


def killed(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def reciprocal(number: int) -> float:
    return 1 / number


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_fails_in_mid_epoch_is_named_with_a_fix(workers: int, tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", 12)
    cut(root / "a" / "3.jpg")
    data = prepare(root, DataSettings(val_fraction=0, test_fraction=0), ImageSettings(stream=True, image_size=24))
    loader = Loader(data.train, (view(ResizedCrop()),), 6, 0, shard=Shard(workers=workers))
    refused(r"a/3.jpg: truncated; .*--skip-unreadable.*new run", list, loader)


def test_skipping_selects_the_same_images_as_a_cache(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", 24)
    cut(root / "a" / "3.jpg")
    cut(root / "b" / "18.jpg")
    streamed, stored = (
        prepare(root, DataSettings(skip_unreadable=True), ImageSettings(stream=way, image_size=24, cache_size=32))
        for way in (True, False)
    )
    assert isinstance(streamed.train, StreamedImages)
    assert streamed.skipped == stored.skipped
    assert streamed.skipped.keys() == {"a/3.jpg", "b/18.jpg"}
    assert streamed.split_names == stored.split_names
    for ours, theirs in zip(
        *(Loader(data.train, (view(ResizedCrop()),), 6, 0, shard=Shard(workers=0)) for data in (streamed, stored)),
        strict=True,
    ):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_stream_opens_no_file_before_its_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, opened = photographs(tmp_path / "photos", 24), []
    read = FileReader.open
    monkeypatch.setattr(FileReader, "open", lambda self, i: opened.append(i) or read(self, i))
    data = prepare(root, image_settings=ImageSettings(stream=True, image_size=24, cache_size=32))
    assert opened == []
    next(iter(Loader(data.train, (view(ResizedCrop()),), 6, 0, shard=Shard(workers=0))))
    assert len(opened) == 6


def photographs(root: Path, count: int) -> Path:
    """Write JPEGs of noise in the classes a and b."""
    for n in range(count):
        path = root / "ab"[n * 2 // count] / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, quality=95)
    return root


def cut(path: Path) -> None:
    """Truncate a file to its first half."""
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
