# SPDX-License-Identifier: Apache-2.0
"""Color jitter, gray, blur, solarize and flip against torchvision's functions, one image at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import kstest
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from noise import uniform
from refusals import refused
from viticulture.data.transforms.color import (
    ORDERS,
    Blur,
    ColorJitter,
    Gray,
    Solarize,
    brightness,
    contrast,
    gaussian,
    hue,
    jitter,
    saturation,
)
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.transform import Transform


def pictures(count: int, height: int = 20, width: int = 28) -> Tensor:
    """Draw noise in every color, some pixels gray, [count, 3, height, width] uint8."""
    images = (256 * uniform(count, 3, height, width)).to(torch.uint8)
    images[:, :, :4] = images[:, :1, :4]
    return images


CHANGES = {
    "brightness": (brightness, F.adjust_brightness, (0.0, 0.4, 1.0, 1.7)),
    "contrast": (contrast, F.adjust_contrast, (0.0, 0.4, 1.0, 1.7)),
    "saturation": (saturation, F.adjust_saturation, (0.0, 0.4, 1.0, 1.7)),
    "hue": (hue, F.adjust_hue, (-0.5, -0.1, 0.0, 0.3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_part_of_the_jitter_is_torchvisions(name: str) -> None:
    """Each image by its factor, up to 1e-5 of the range (rounding of float32)."""
    change, theirs, factors = CHANGES[name]
    images = pictures(len(factors)).float() / 255
    results = change(images.clone(), torch.tensor(factors)[:, None, None, None])
    for image, factor, result in zip(images, factors, results, strict=True):
        torch.testing.assert_close(result, theirs(image, factor), atol=1e-5, rtol=0)


def test_the_jitter_follows_each_images_order() -> None:
    """All 24 orders in one batch, against torchvision's functions called in that order."""
    images, factors = pictures(1).repeat(24, 1, 1, 1).float() / 255, torch.tensor([1.5, 0.5, 1.6, 0.2])
    results = jitter(images.clone(), ORDERS, factors.repeat(24, 1), True)
    theirs = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for image, order, result in zip(images, ORDERS.tolist(), results, strict=True):
        for kind in order:
            image = theirs[kind](image, float(factors[kind]))
        torch.testing.assert_close(result, image, atol=1e-5, rtol=0)
    assert len({result.numpy().tobytes() for result in results}) > 6


def test_the_jitters_factors_are_uniform_around_one() -> None:
    """Brightness alone on a flat image gives U(1 - s, 1 + s), within half a level."""
    images = torch.full((1000, 3, 1, 1), 100, dtype=torch.uint8)
    factors = ColorJitter(0.4, 0, 0)(images, uniform(1000, 6))[:, 0, 0, 0] / 100
    assert kstest((factors.numpy() - 0.6) / 0.8, "uniform").statistic < 0.06


def test_no_strength_means_no_change() -> None:
    images = pictures(5)
    assert torch.equal(ColorJitter(0, 0, 0)(images.clone(), uniform(5, 6)), images)
    assert torch.equal(ColorJitter(0.4, 0.4, 0.4, 0.1, probability=0)(images.clone(), uniform(5, 6)), images)


def test_gray_is_pillows() -> None:
    images = pictures(4)
    for image, result in zip(images, Gray(1.0)(images.clone(), uniform(4, 1)), strict=True):
        wanted = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"))
        assert (result.numpy() == wanted).all()


@pytest.mark.parametrize("threshold", [0, 128, 200])
def test_solarize_is_torchvisions(threshold: int) -> None:
    images = pictures(3)
    assert torch.equal(Solarize(1.0, threshold)(images.clone(), uniform(3, 1)), F.solarize(images, threshold))


def test_blur_is_torchvisions_with_a_sigma_for_each_image() -> None:
    """Against gaussian_blur at the same width of kernel, within one level (order of rounding)."""
    images, sigma = pictures(4), torch.tensor([0.1, 0.7, 1.3, 2.0])
    results = gaussian(images, sigma, 6)
    for image, width, result in zip(images, sigma.tolist(), results, strict=True):
        wanted = F.gaussian_blur(image, [13, 13], [width, width])
        assert (wanted.int() - result.int()).abs().max() <= 1


def test_small_images_can_be_blurred() -> None:
    for side in (1, 2, 5):
        flat = torch.full((3, 3, side, side), 90, dtype=torch.uint8)
        assert torch.equal(Blur(1.0)(flat.clone(), uniform(3, 2)), flat)


def test_two_flips_are_none() -> None:
    images = pictures(3, 4, 5)
    flipped = Flip(1.0)(images.clone(), uniform(3, 1))
    assert torch.equal(flipped, F.horizontal_flip(images))
    assert torch.equal(Flip(1.0)(flipped.clone(), uniform(3, 1)), images)


@pytest.mark.parametrize("change", [Flip(0.3), Gray(0.3), Solarize(0.3), Blur(0.3), ColorJitter(probability=0.3)])
def test_each_image_is_changed_independently(change: Transform) -> None:
    """Four standard deviations are allowed."""
    images = pictures(1, 6, 7).repeat(1000, 1, 1, 1)
    result = change(images.clone(), uniform(1000, change.columns))
    share = (result != images).flatten(1).any(1).float().mean()
    assert abs(share - 0.3) < 0.058


def test_impossible_settings_are_refused() -> None:
    refused("hue must lie between 0 and 0", ColorJitter, hue=0.7)
    refused("brightness", ColorJitter, brightness=-1)
    refused("probability must lie", Flip, 2)
    refused("threshold", Solarize, threshold=256)
    refused("sigma", Blur, sigma=(2, 1))
