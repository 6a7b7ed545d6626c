# SPDX-License-Identifier: Apache-2.0
"""Crops follow torchvision's rules in the original's pixels, whatever size is cached."""

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import CenterCrop as TorchCenterCrop
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import Resize as TorchResize
from torchvision.transforms.v2 import functional as F

from noise import uniform
from refusals import refused
from viticulture.data.transforms.crop import CenterCrop, PaddedCrop, Resize, ResizedCrop
from viticulture.data.transforms.view import Augment
from viticulture.errors import UserError


def pictures(count: int, height: int, width: int) -> Tensor:
    """Draw smooth color gradients, [count, 3, height, width] uint8."""
    y, x = torch.linspace(0, 5, height)[:, None], torch.linspace(0, 7, width)
    phase = 6 * uniform(count, 3, 1, 1).float()
    return (128 + 100 * torch.sin(y + phase) * torch.cos(x + phase)).to(torch.uint8)


@pytest.mark.parametrize(("height", "width"), [(60, 100), (33, 32), (20, 200)])
def test_random_boxes_are_torchvisions(height: int, width: int) -> None:
    """Distribution of top, left, height, width against RandomResizedCrop.get_params, 1,500 draws each."""
    count = 1500
    sizes = torch.tensor([[height, width]]).repeat(count, 1)
    crop = ResizedCrop(scale=(0.2, 1.0), ratio=(0.6, 1.2))
    ours = crop.boxes(uniform(count, crop.columns), sizes, (32, 32)) * torch.tensor([height, width, height, width])
    torch.manual_seed(1)
    image = torch.zeros(3, height, width)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, [0.2, 1.0], [0.6, 1.2]) for _ in range(count)], dtype=torch.float64
    )
    torch.testing.assert_close(ours, ours.round())  # whole pixels of the original
    for mine, other in zip(ours.round().T, theirs.T, strict=True):
        assert ks_2samp(mine, other).pvalue > 1e-3


def test_boxes_reach_every_edge() -> None:
    u = uniform(50, ResizedCrop.columns)
    sizes = torch.tensor([[21, 34]]).repeat(50, 1)
    for end, place in ((0.0, 0.0), (1 - 1e-9, 1.0)):
        u[:, -3:-1] = end
        top, left, height, width = ResizedCrop().boxes(u, sizes, (8, 8)).unbind(1)
        torch.testing.assert_close(top, place * (1 - height))
        torch.testing.assert_close(left, place * (1 - width))


def test_a_shape_that_never_fits_takes_the_largest_centered_box() -> None:
    crop = ResizedCrop(scale=(1.0, 1.0))
    sizes = torch.tensor([[20, 10000], [10000, 21]])
    boxes = crop.boxes(uniform(2, crop.columns), sizes, (8, 8)) * torch.tensor([[20, 10000] * 2, [10000, 21] * 2])
    assert boxes.round().tolist() == [[0, 4986, 20, 27], [4986, 0, 28, 21]]


def test_the_square_cache_gives_the_original_s_crop() -> None:
    """Gradients are smooth: 3 levels cover half a cached pixel of shift and resampling twice."""
    original = pictures(6, 90, 150)
    store = F.resize(original, [100, 100], antialias=True)
    crop, sizes, u = ResizedCrop(interpolation="bilinear"), torch.tensor([[90, 150]]).repeat(6, 1), uniform(6, 23)
    ours = crop(store, sizes, u, (24, 24))
    boxes = (crop.boxes(u, sizes, (24, 24)) * torch.tensor([90, 150, 90, 150])).round().int().tolist()
    for image, result, (top, left, height, width) in zip(original, ours, boxes, strict=True):
        wanted = F.resized_crop(image, top, left, height, width, [24, 24], antialias=True)
        assert (wanted.int() - result.int()).abs().float().mean() < 3


def test_random_interpolation_is_either_filter() -> None:
    """timm draws bilinear or bicubic for each image, half and half."""
    crop = ResizedCrop(interpolation="random")
    share = crop.bicubic(uniform(4000, crop.columns)).float().mean()
    assert abs(share - 0.5) < 0.03  # four standard deviations


@pytest.mark.parametrize("crop_pct", [1.0, 0.875])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (60, 100), (90, 64)])
def test_the_center_is_torchvisions(height: int, width: int, crop_pct: float) -> None:
    """Resize to the short side, then TorchCenterCrop; 3 levels on average cover torchvision's whole-pixel margins."""
    original = pictures(2, height, width)
    store = F.resize(original, [96, 96], antialias=True)
    ours = CenterCrop(crop_pct, "bilinear")(store, torch.tensor([[height, width]] * 2), uniform(2, 0), (28, 28))
    wanted = TorchCenterCrop(28)(TorchResize(int(28 / crop_pct))(original))
    assert (wanted.int() - ours.int()).abs().float().mean() < 3


@pytest.mark.parametrize(("crop_pct", "side"), [(0.875, 224), (0.9, 224), (0.95, 32), (0.875, 299)])
def test_a_close_center_is_torchvisions_to_the_pixel(crop_pct: float, side: int) -> None:
    """An image that holds its own columns and rows after torchvision's Resize gives the same box after its CenterCrop,
    for many shapes. Catches: a long side rounded up, halves rounded away from the even pixel, exact centering."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.cat([torch.randint(side, 900, (60, 2), generator=generator), torch.tensor([[375, 500], [500, 333]])])
    ours = CenterCrop(crop_pct).boxes(uniform(len(sizes), 0), sizes, (side, side))
    for (height, width), box in zip(sizes.tolist(), ours, strict=True):
        shrunk = TorchResize(int(side / crop_pct))(torch.zeros(1, height, width)).shape[-2:]
        places = torch.stack(torch.meshgrid(torch.arange(shrunk[0]), torch.arange(shrunk[1]), indexing="ij"))
        top, left = TorchCenterCrop(side)(places)[:, 0, 0].tolist()
        assert (box * torch.tensor(shrunk * 2)).tolist() == pytest.approx([top, left, side, side], abs=1e-6)


def test_the_center_of_another_shape_covers_it() -> None:
    """timm's rule: shrink until both sides are covered. 60 x 100 for 20 x 40."""
    box = CenterCrop().boxes(uniform(1, 0), torch.tensor([[60, 100]]), (20, 40))[0]
    torch.testing.assert_close(box * torch.tensor([60, 100, 60, 100]), torch.tensor([5.0, 0, 50, 100]).double())


def test_padded_crops_are_windows_of_the_padded_image() -> None:
    """Identity with torchvision's pad and crop at the same offsets; every offset from 0 to 2p occurs, none beyond."""
    images, u = pictures(200, 8, 8), uniform(200, 2)
    result = PaddedCrop(2)(images, torch.full((200, 2), 8), u, (8, 8))
    offsets = (u * 5).int().tolist()
    for image, out, (top, left) in zip(images, result, offsets, strict=True):
        assert torch.equal(out, F.crop(F.pad(image, [2, 2, 2, 2]), top, left, 8, 8))
    assert {top for top, _ in offsets} == {left for _, left in offsets} == set(range(5))


def test_padded_crops_are_resized_after_the_crop() -> None:
    """CIFAR images for a 224-pixel student: crop at 32, then resize (Bootstrapping ViTs)."""
    images = pictures(3, 8, 8)
    result = PaddedCrop(0)(list(images), torch.full((3, 2), 8), uniform(3, 2), (16, 16))
    assert torch.equal(result, F.resize(images, [16, 16], antialias=True))


@pytest.mark.parametrize("transforms", [[], [PaddedCrop(0, "bicubic")]], ids=["no crop", "a padded crop"])
@pytest.mark.parametrize("image_size", [(8, 8), (8, 12)])
def test_uncropped_images_have_the_shape_of_evaluation(
    transforms: list[PaddedCrop], image_size: tuple[int, int]
) -> None:
    images, sizes = list(pictures(2, 16, 16)), torch.tensor([[20, 60], [60, 20]])
    augment = Augment(transforms, image_size, (0.5,) * 3, (0.5,) * 3, classes=2)
    shown = augment.cut(images, sizes, uniform(2, augment.columns))
    assert torch.equal(shown, CenterCrop()(images, sizes, uniform(2, 0), image_size))


@pytest.mark.parametrize("crop", [ResizedCrop(), CenterCrop(), Resize(), PaddedCrop()])
@pytest.mark.parametrize("count", [1, 3])
def test_a_single_pixel_can_be_cropped(crop: ResizedCrop | CenterCrop | Resize | PaddedCrop, count: int) -> None:
    images = torch.full((count, 3, 16, 16), 77, dtype=torch.uint8)
    result = crop(images, torch.ones(count, 2), uniform(count, crop.columns), (12, 20))
    assert result.shape == (count, 3, 12, 20)
    assert result[..., 6, 10].eq(77).all()


def test_impossible_settings_are_refused() -> None:
    refused(r"scale.*at most 1, got \(0.5, 2\)", ResizedCrop, scale=(0.5, 2))
    refused("ratio", ResizedCrop, ratio=(2, 1))
    with pytest.raises(UserError, match="interpolation"):
        ResizedCrop(interpolation="nearest")  # type: ignore[arg-type]
    refused("padding", PaddedCrop, -1)
    refused("crop_pct", CenterCrop, 0)
