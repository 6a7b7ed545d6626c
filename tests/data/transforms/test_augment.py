# SPDX-License-Identifier: Apache-2.0
"""A view as a whole: its order, its columns, its purity."""

import pytest
import torch
from torch import Tensor

from noise import uniform
from refusals import refused
from viticulture.data.transforms.color import Blur, ColorJitter, Gray, Solarize
from viticulture.data.transforms.crop import PaddedCrop, Resize, ResizedCrop
from viticulture.data.transforms.erase import Erase
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.mix import Mix
from viticulture.data.transforms.rand_augment import RandAugment
from viticulture.data.transforms.transform import Transform
from viticulture.data.transforms.view import TRANSFORMS, Augment

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pictures(count: int, side: int = 20) -> Tensor:
    return (256 * uniform(count, 3, side, side, seed=1)).to(torch.uint8)


def everything() -> list[Transform]:
    changes: list[Transform] = [Flip(), RandAugment(), ColorJitter(hue=0.1), Gray(), Blur(), Solarize()]
    return [ResizedCrop(interpolation="random"), *changes, Erase(), Mix()]


def run(augment: Augment, images: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    sizes, labels = torch.tensor([[30, 50]]).repeat(len(images), 1), torch.arange(len(images)) % 4
    return augment(images.clone(), sizes, u, uniform(Mix.columns), labels)


def test_whole_images_are_only_normalized() -> None:
    """(x / 255 - mean) / std, labels unchanged."""
    images = pictures(3)
    result, labels = run(Augment([Resize()], (20, 20), MEAN, STD, 4), images, uniform(3, 0))
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    torch.testing.assert_close(result, (images / 255 - mean) / std)
    assert labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [(12, 12), (10, 18)])
@pytest.mark.parametrize("count", [1, 5])
def test_the_same_numbers_give_the_same_batch(size: tuple[int, int], count: int) -> None:
    augment, images = Augment(everything(), size, MEAN, STD, 4), pictures(count)
    u = uniform(count, augment.columns)
    first, label = run(augment, images, u)
    torch.manual_seed(5)
    second, again = run(Augment(everything(), size, MEAN, STD, 4), images, u)
    assert torch.equal(first, second)
    assert torch.equal(label, again)
    assert first.shape == (count, 3, *size)
    assert first.isfinite().all()
    assert not torch.equal(first, run(augment, images, uniform(count, augment.columns, seed=9))[0])


def test_recipes_may_name_transforms_in_any_order() -> None:
    images = pictures(6)
    forward = Augment(everything(), (12, 12), MEAN, STD, 4)
    backward = Augment(everything()[::-1], (12, 12), MEAN, STD, 4)
    u = uniform(6, forward.columns)
    assert torch.equal(run(forward, images, u)[0], run(backward, images, u)[0])


def test_every_transform_reads_separate_columns() -> None:
    augment = Augment([Flip(), Erase(1.0)], (20, 20), MEAN, STD, 4)
    assert augment.columns == Flip.columns + Erase.columns
    images = pictures(8)
    u = uniform(8, augment.columns)
    u[:, 0] = 0.9  # no flip
    unflipped = run(Augment([Erase(1.0)], (20, 20), MEAN, STD, 4), images, u[:, 1:])[0]
    assert torch.equal(run(augment, images, u)[0], unflipped)


def test_equal_images_are_augmented_differently() -> None:
    augment = Augment(everything()[:-1], (12, 12), MEAN, STD, 4)
    result, _ = run(augment, pictures(1).repeat(32, 1, 1, 1), uniform(32, augment.columns))
    assert len({image.numpy().tobytes() for image in result}) == 32


def test_erasing_comes_after_normalization() -> None:
    """`const` leaves zeros, the mean color."""
    result, _ = run(Augment([Erase(1.0, "const")], (20, 20), MEAN, STD, 4), pictures(4) | 1, uniform(4, 24))
    assert (result == 0).any()


def test_the_cache_is_never_written_to() -> None:
    store = pictures(5)
    kept = store.clone()
    augment = Augment([Flip(1.0), RandAugment()], (20, 20), MEAN, STD, 4)
    augment(list(store), torch.full((5, 2), 20), uniform(5, augment.columns), uniform(5), torch.zeros(5))
    assert torch.equal(store, kept)


def test_each_transform_stands_once() -> None:
    refused("once", lambda: Augment([Flip(), Flip(0.1)], (8, 8), MEAN, STD, 4))
    refused("one crop", lambda: Augment([ResizedCrop(), PaddedCrop()], (8, 8), MEAN, STD, 4))


def test_constructors_document_recipe_keys() -> None:
    """Docstrings are the help text."""
    for transform in TRANSFORMS:
        keywords = list(transform.__init__.__annotations__)
        assert len(transform.__init__.__defaults__ or ()) == len(keywords) - 1  # without `return`
        assert all(f"        {name}: " in (transform.__doc__ or "") for name in keywords if name != "return")
