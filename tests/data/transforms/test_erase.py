# SPDX-License-Identifier: Apache-2.0
"""Random erasing follows timm's rule; its noise is normal and the same on every device."""

import random

import pytest
import torch
from scipy.stats import ks_2samp, kstest
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from noise import uniform
from refusals import refused
from viticulture.data.transforms.erase import Erase, erase_masks, erase_slices
from viticulture.errors import UserError


def read_boxes(images: Tensor) -> Tensor:
    """Read top, left, height, width of the zeros in images of ones, for those that have any, [n, 4]."""
    zero = images[:, 0] == 0
    zero = zero[zero.flatten(1).any(1)]
    rows, columns = zero.any(2), zero.any(1)
    return torch.stack([rows.int().argmax(1), columns.int().argmax(1), rows.sum(1), columns.sum(1)], 1)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (16, 40)])
def test_rectangles_are_timms(height: int, width: int) -> None:
    """Share of images erased, and distribution of the rectangles, 1,500 draws against timm's."""
    count, random_state = 1500, random.Random(0)
    random.seed(random_state.random())
    theirs = RandomErasing(0.6, mode="const", min_aspect=0.3, max_aspect=1.2, device="cpu")(
        torch.ones(count, 3, height, width)
    )
    ours = Erase(0.6, "const", aspect=(0.3, 1.2))(torch.ones(count, 3, height, width), uniform(count, Erase.columns))
    mine, other = read_boxes(ours), read_boxes(theirs)
    assert abs(len(mine) / count - 0.6) < 0.051  # four standard deviations
    for a, b in zip(mine.T, other.T, strict=True):
        assert ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("mode", ["pixel", "const"])
def test_the_accelerators_way_is_the_cpus(mode: str) -> None:
    erase, u = Erase(0.7, mode), uniform(9, Erase.columns)  # type: ignore[arg-type]
    images = torch.randn(9, 3, 12, 17, generator=torch.Generator().manual_seed(0))
    boxes, starts = erase.boxes(u, 12, 17), torch.arange(9) * 1000
    noise = starts if mode == "pixel" else None
    assert torch.equal(erase_slices(images.clone(), boxes, noise), erase_masks(images.clone(), boxes, noise))
    assert 0 < (boxes[:, 2] > 0).sum() < 9


def test_pixel_noise_is_standard_normal_and_differs_between_images() -> None:
    images = torch.full((64, 3, 32, 32), 99.0)
    result = Erase(1.0, area=(0.2, 0.3))(images, uniform(64, Erase.columns))
    noise = result[result != 99]
    assert kstest(noise[:5000].numpy(), "norm").pvalue > 1e-3
    assert abs(noise.mean()) < 0.02
    assert noise.unique().numel() > 0.5 * noise.numel()
    both = (result[0] != 99) & (result[1] != 99)
    assert not torch.equal(result[0][both], result[1][both])


def test_only_the_rectangle_changes() -> None:
    images = torch.full((1, 3, 8, 8), 5.0)
    (box,) = Erase(1.0).boxes(uniform(1, Erase.columns), 8, 8).tolist()
    result = Erase(1.0)(images.clone(), uniform(1, Erase.columns))
    assert int((result != 5).all(1).sum()) == box[2] * box[3]
    assert torch.equal(Erase(1.0)(torch.ones(2, 3, 1, 1), uniform(2, Erase.columns)), torch.ones(2, 3, 1, 1))


def test_impossible_settings_are_refused() -> None:
    refused("probability must lie between 0 and 1, got 25", Erase, 25)
    with pytest.raises(UserError, match="mode"):
        Erase(mode="rand")  # type: ignore[arg-type]
    refused("area", Erase, area=(0.3, 2))
