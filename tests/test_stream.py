# SPDX-License-Identifier: Apache-2.0
"""A stream decodes when asked and hands out what a store would."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from viticulture.data.augment.augment import Augment
from viticulture.data.augment.coin import Flip
from viticulture.data.augment.crop import PaddedCrop, ResizedCrop
from viticulture.data.augment.erase import Erase
from viticulture.data.images import Records, StoredImages
from viticulture.data.loader import Loader, Shard, evaluation_batches
from viticulture.data.sources import Source, open_source
from viticulture.data.stream import StreamImages, ahead
from viticulture.models.task import Task

MEAN, STD, COUNT, SIDE = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), 12, 64
TASK = Task(("a", "b"), (24, 20), MEAN, STD)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Smooth pictures of several shapes in a folder of two classes."""
    folder: Path = tmp_path_factory.mktemp("photos")
    for n in range(COUNT):
        height, width = 60 + 7 * (n % 5), 90 - 9 * (n % 4)
        y, x = np.linspace(0, 4, height)[:, None, None] + n, np.linspace(0, 5, width)[:, None]
        pixels = 128 + 100 * np.sin(y + np.arange(3)) * np.cos(x + n)
        (folder / "ab"[n % 2]).mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "ab"[n % 2] / f"{n}.png")
    return open_source(folder)


def stream(source: Source) -> StreamImages:
    """Every image of the source, last one first, sizes unknown."""
    rows = torch.arange(COUNT).flip(0)
    names = [source.names[row] for row in rows.tolist()]
    return StreamImages(source, rows, Records(labels(source)[rows], torch.full((COUNT, 2), -1), names), SIDE)


def labels(source: Source) -> Tensor:
    return torch.as_tensor(source.labels)


def store(source: Source) -> StoredImages:
    """The same images as a store keeps them."""
    pictures = [torch.from_numpy(np.array(source.read(n))).permute(2, 0, 1) for n in range(COUNT)]
    pixels = torch.stack([F.resize(image, [SIDE, SIDE], F.InterpolationMode.BICUBIC) for image in pictures])
    sizes = torch.tensor([image.shape[1:] for image in pictures])
    rows = torch.arange(COUNT).flip(0)
    return StoredImages(pixels, rows, Records(labels(source)[rows], sizes[rows], [str(n) for n in range(COUNT)]))


def view(*transforms: ResizedCrop | PaddedCrop | Flip | Erase) -> Augment:
    return Augment(transforms, TASK.image_size, MEAN, STD, 2)


def levels(batch: dict[str, Tensor]) -> Tensor:
    return 255 * batch["image"] * torch.tensor(STD)[:, None, None]


@pytest.mark.parametrize("crop", [ResizedCrop(interpolation="random"), PaddedCrop()])
def test_a_stream_and_a_store_give_nearly_equal_batches(source: Source, crop: ResizedCrop | PaddedCrop) -> None:
    """Same order, labels, boxes and flips. Smooth pictures differ by at most 3 levels on average: the store resamples
    twice and moves edges by up to half of a stored pixel.

    Fails if the stream takes boxes of the squeezed square, another filter, or rows of uniform numbers of its own.
    """
    shard = Shard(workers=0)
    loaders = [Loader(images, (view(crop, Flip()),), 6, 0, shard=shard) for images in (stream(source), store(source))]
    for streamed, stored in zip(*loaders, strict=True):
        assert torch.equal(streamed["index"], stored["index"])
        assert torch.equal(streamed["label"], stored["label"])
        assert (levels(streamed) - levels(stored)).abs().mean((1, 2, 3)).max() < 3


def test_workers_change_nothing(source: Source) -> None:
    """Purity: two processes reading ahead give batch() bit for bit, two views, from inside an epoch, and leave
    the global stream of random numbers where it was.

    Fails if batches arrive in another order, or a DataLoader draws its seed from the global stream.
    """
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


def test_evaluation_of_a_stream_is_that_of_a_store(source: Source) -> None:
    """Every image once, in order, centre cut by the original's shape; 3 levels as above."""
    device = torch.device("cpu")
    pairs = zip(
        evaluation_batches(stream(source), TASK, 5, device),
        evaluation_batches(store(source), TASK, 5, device),
        strict=True,
    )
    for streamed, stored in pairs:
        assert torch.equal(streamed["index"], stored["index"])
        assert torch.equal(streamed["label"], stored["label"])
        assert (levels(streamed) - levels(stored)).abs().mean((1, 2, 3)).max() < 3


def test_an_original_is_shown_as_it_is(source: Source) -> None:
    assert (stream(source).original(0) == np.asarray(source.read(COUNT - 1))).all()


def test_streams_survive_pickling(source: Source) -> None:
    """Workers that are spawned instead of forked receive the split as bytes."""
    copy = pickle.loads(pickle.dumps(stream(source)))
    assert (copy.original(3) == stream(source).original(3)).all()


def test_an_error_in_a_worker_reaches_the_user() -> None:
    """No silent fallback: what breaks in a worker breaks the run."""
    with pytest.raises(ZeroDivisionError):
        list(ahead(reciprocal, [1, 0], workers=1))


def reciprocal(number: int) -> float:
    return 1 / number
