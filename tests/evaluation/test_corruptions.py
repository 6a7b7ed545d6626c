# SPDX-License-Identifier: Apache-2.0
"""The corruptions of ImageNet-C: Hendrycks and Dietterich, arXiv:1903.12261; one or two gray levels are rounding."""

import colorsys
import io

import numpy as np
import pytest
from numpy.random import Generator
from PIL import Image
from scipy.ndimage import correlate, zoom

from refusals import refused
from viticulture.evaluation.robustness import blur, digital, weather
from viticulture.evaluation.robustness import corrupt as corrupt_file
from viticulture.evaluation.robustness.corrupt import corrupt
from viticulture.evaluation.robustness.strengths import CORRUPTIONS, EXTRA, LEVELS, MAIN, nearest

STEADY = (
    "brightness", "contrast", "gaussian_blur", "defocus_blur", "zoom_blur", "pixelate", "jpeg_compression", "saturate"
)  # fmt: skip
"""Corruptions without random numbers."""
ORDERED = ("brightness", "contrast", "gaussian_blur", "zoom_blur", "pixelate", "gaussian_noise", "shot_noise",
           "speckle_noise", "impulse_noise")  # fmt: skip


def draw(seed: int = 0) -> Generator:
    return np.random.default_rng(seed)


def noisy(side: int = 32) -> np.ndarray:
    """Draw [side, side, 3] uint8, all colors."""
    return draw(7).integers(0, 256, (side, side, 3), dtype=np.uint8)


def soft(side: int = 32) -> np.ndarray:
    """Draw [side, side, 3] uint8, few high frequencies, nowhere near black or white."""
    small = Image.fromarray(draw(8).integers(80, 176, (5, 5, 3), dtype=np.uint8))
    return np.asarray(small.resize((side, side), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("side", [8, 32, 64, 97])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_keep_the_shape_of_any_image(name: str, side: int) -> None:
    image = noisy(side)
    found = corrupt(image, name, 3, 0, 0)
    assert found.shape == image.shape
    assert found.dtype == np.uint8
    assert (found != image).any()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_image_depends_on_seed_number_corruption_and_severity_alone(name: str) -> None:
    image = noisy()
    alone = corrupt(image, name, 4, 1, 5)
    for other in CORRUPTIONS:
        corrupt(image, other, 2, 1, 4)
    np.random.seed(3)
    np.testing.assert_array_equal(corrupt(image, name, 4, 1, 5), alone)
    random = name not in STEADY
    assert (corrupt(image, name, 4, 1, 6) != alone).any() == random
    assert (corrupt(image, name, 4, 2, 5) != alone).any() == random


@pytest.mark.parametrize("side", LEVELS)
@pytest.mark.parametrize("name", ORDERED)
def test_a_higher_severity_is_farther_from_the_image(name: str, side: int) -> None:
    """Severities of the others are not ordered by distance of pixels in the published sets."""
    image = soft(side) if name != "pixelate" else noisy(side)
    away = [np.abs(corrupt(image, name, s, 0, 0).astype(float) - image).mean() for s in range(1, 6)]
    assert away == sorted(away)
    assert away[0] < away[4]


def test_an_image_gets_the_strengths_of_the_published_set_nearest_in_size() -> None:
    """32: CIFAR-10-C, 64: Tiny-ImageNet-C, 224: ImageNet-C, by ratio of sides."""
    sides = {32: (8, 32, 45), 64: (46, 64, 119), 224: (120, 224, 384)}
    assert all(nearest(side) == size for size, of_size in sides.items() for side in of_size)
    assert all(found.keys() == set(CORRUPTIONS) for found in LEVELS.values())
    assert (len(MAIN), len(EXTRA)) == (15, 4)
    refused("did you mean gaussian_noise", lambda: corrupt(noisy(), "gausian_noise", 1, 0, 0))


def test_noise_has_the_moments_of_its_formula() -> None:
    """For a gray g: Gaussian sd c, shot sqrt(g / c), speckle g c; impulse c / 2 each of 0 and 1; 5 standard errors."""
    gray, n = np.full((200, 200, 3), 0.4), 120_000
    for found, sd in (
        (corrupt_file.gaussian_noise(gray, draw(), 0.1), 0.1),
        (corrupt_file.shot_noise(gray, draw(), 50), np.sqrt(0.4 / 50)),
        (corrupt_file.speckle_noise(gray, draw(), 0.2), 0.4 * 0.2),
    ):
        assert found.mean() == pytest.approx(0.4, abs=5 * sd / np.sqrt(n))
        assert found.std() == pytest.approx(sd, rel=5 / np.sqrt(2 * n))
    found = corrupt_file.impulse_noise(gray, draw(), 0.3)
    assert (found == 0).mean() == pytest.approx(0.15, abs=0.006)
    assert (found == 1).mean() == pytest.approx(0.15, abs=0.006)
    assert (found == 0.4).any(-1)[(found == 1).any(-1)].mean() > 0.5, "channels are hit apart"


def test_colors_change_as_in_hsv() -> None:
    """Against Python's colorsys, pixel by pixel."""
    image = np.concatenate([noisy(6).reshape(-1, 3) / 255, [[0, 0, 0], [0.5, 0.5, 0.5], [1, 0, 0], [0, 0.2, 0.2]]])
    for more in (0.1, 0.5):
        hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in image]
        bright = [colorsys.hsv_to_rgb(h, s, min(v + more, 1)) for h, s, v in hsv]
        np.testing.assert_allclose(digital.brightness(image[None], draw(), more)[0], bright, atol=1e-9)
        vivid = [colorsys.hsv_to_rgb(h, min(2 * s + more, 1), v) for h, s, v in hsv]
        np.testing.assert_allclose(digital.saturate(image[None], draw(), 2, more)[0], vivid, atol=1e-9)


def test_contrast_keeps_the_mean_of_every_channel() -> None:
    """(x - m) c + m with a mean for each channel, not for each image."""
    image = soft() / 255
    found = digital.contrast(image, draw(), 0.3)
    np.testing.assert_allclose(found.mean((0, 1)), image.mean((0, 1)))
    np.testing.assert_allclose(found.std((0, 1)), 0.3 * image.std((0, 1)))


def test_jpeg_and_pixelate_are_those_of_pillow() -> None:
    image = noisy()
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=58)
    np.testing.assert_array_equal(corrupt(image, "jpeg_compression", 3, 0, 0), np.asarray(Image.open(file)))
    small = Image.fromarray(image).resize((27, 27), Image.Resampling.BOX)  # 0.85 * 32 = 27.2
    np.testing.assert_array_equal(
        corrupt(image, "pixelate", 3, 0, 0), np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    )


def test_defocus_is_a_convolution_with_a_disk() -> None:
    """Against scipy's direct correlation with a hard disk, mirrored at the edges."""
    image = noisy(20) / 255
    for radius in (3, 10):
        offset = np.arange(-radius, radius + 1)
        disk = (offset[:, None] ** 2 + offset**2 <= radius**2).astype(float)
        expected = correlate(image, (disk / disk.sum())[..., None], mode="mirror")
        np.testing.assert_allclose(blur.defocus_blur(image, draw(), radius, 1e-3), expected, atol=1e-9)


def test_zoom_equals_scipys_and_a_zoom_by_one_changes_nothing() -> None:
    """The authors enlarge the middle by scipy.ndimage.zoom of order 1 and cut the excess off evenly."""
    image = noisy(30) / 255
    np.testing.assert_allclose(blur.zoomed(image, 1), image)
    crop = zoom(image[3:27, 3:27], (1.25, 1.25, 1), order=1)  # ceil(30 / 1.25) = 24
    np.testing.assert_allclose(blur.zoomed(image, 1.25), crop, atol=1e-9)


@pytest.mark.parametrize(("angle", "axis", "sign"), [(0, 1, -1), (90, 0, -1), (-90, 0, 1)])
def test_motion_smears_along_its_angle_and_preserves_brightness(angle: float, axis: int, sign: int) -> None:
    point = np.zeros((41, 41, 1))
    point[20, 20] = 1
    found = blur.smear(point, 5, 3, angle)[..., 0]
    expected = np.exp(-0.5 * (np.arange(11) / 3) ** 2)
    line = found[20] if axis else found[:, 20]
    np.testing.assert_allclose(line[20::sign][:11], expected / expected.sum())
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(blur.smear(np.ones((9, 9)), 10, 4, 30), 1)  # moves beyond the image


def test_glass_moves_pixels_within_its_reach() -> None:
    y, x = np.meshgrid(np.arange(24), np.arange(24), indexing="ij")
    image = np.stack([y, x, y], -1) / 255
    found = np.round(255 * blur.glass_blur(image + 1e-9, draw(), 1e-3, 2, 1))
    assert (found != 255 * image).any()
    far = np.abs(found - np.round(255 * image))
    assert far.max() > 2, "a value taken over can be taken over again"
    np.testing.assert_array_equal(found[..., 0], found[..., 2])
    np.testing.assert_array_equal(found[:2], np.round(255 * image)[:2])


def test_plasma_is_a_map_from_0_to_1_that_a_larger_decay_smooths() -> None:
    rough, smooth = (weather.plasma(60, decay, draw()) for decay in (1.3, 3))
    for found in (rough, smooth):
        assert found.shape == (64, 64)
        assert (found.min(), found.max()) == (0, 1)
        assert np.abs(np.diff(found, axis=0)).mean() == pytest.approx(np.abs(np.diff(found, axis=1)).mean(), rel=0.3)
    assert np.abs(np.diff(smooth)).mean() < 0.5 * np.abs(np.diff(rough)).mean()


def test_an_elastic_map_without_strength_is_affine_and_without_tilt_the_identity() -> None:
    image = soft(48) / 255
    np.testing.assert_allclose(digital.elastic_transform(image, draw(), 0, 0.1, 0), image, atol=1e-9)
    ramp = np.repeat(np.linspace(0, 1, 48)[None, :, None], 48, 0).repeat(3, 2)  # a plane stays a plane
    found = digital.elastic_transform(ramp, draw(), 0, 0.1, 0.05)[10:38, 10:38, 0]
    assert np.abs(np.diff(found, 2, axis=0)).max() < 1e-9
    assert np.abs(np.diff(found, 2, axis=1)).max() < 1e-9


def test_weather_brightens_or_darkens() -> None:
    gray = np.full((64, 64, 3), 0.3)
    assert weather.snow(gray, draw(), *LEVELS[64]["snow"][2]).mean() > 0.4  # type: ignore[misc]
    assert (weather.spatter(gray, draw(), 0.65, 0.3, 1, 0.69, 0.6, 0) >= gray - 1e-9).all()
    mud = weather.spatter(gray, draw(), 0.65, 0.3, 1, 0.69, 0.6, 1)
    assert mud.min() == pytest.approx(20 / 255)
    np.testing.assert_array_equal(weather.spatter(gray, draw(), 0.1, 0.01, 1, 0.7, 0.6, 0), gray)
    assert weather.fog(gray, draw(), 2, 2).max() <= 0.3 + 1e-9, "fog scales to the image's brightest value"
