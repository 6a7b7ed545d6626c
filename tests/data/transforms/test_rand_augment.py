# SPDX-License-Identifier: Apache-2.0
"""RandAugment: each operation and its distribution is timm's, drawn for each image."""

import random

import numpy as np
import pytest
import timm.data.auto_augment as theirs
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torch import Tensor

from noise import pictures, uniform
from refusals import refused
from viticulture.data.transforms.geometry import rotate, rotate_by_taps
from viticulture.data.transforms.rand_augment import OPERATIONS, Drawn, RandAugment, apply

FILL = (124, 116, 104)
NAMES = dict(zip(OPERATIONS, theirs._RAND_INCREASING_TRANSFORMS, strict=True))
BICUBIC = Image.Resampling.BICUBIC
EXACT = ("equalize", "invert", "posterize", "solarize", "solarize_add", "color", "contrast", "brightness")


def as_timm(
    image: Tensor, name: str, level: float, sign: int, patch: pytest.MonkeyPatch, way: Image.Resampling = BICUBIC
) -> Tensor:
    """Apply one operation of timm's to one image."""
    patch.setattr(theirs, "_randomly_negate", lambda value: sign * value)
    to_arguments = theirs.LEVEL_TO_ARG[NAMES[name]]
    arguments = to_arguments(level, {}) if to_arguments else ()
    source = Image.fromarray(image.permute(1, 2, 0).numpy())
    changed = theirs.NAME_TO_OP[NAMES[name]](source, *arguments, fillcolor=FILL, resample=way)
    return torch.from_numpy(np.array(changed)).permute(2, 0, 1)


def ours(images: Tensor, name: str, levels: list[float], sign: int) -> Tensor:
    count = len(images)
    operation = torch.full((count,), OPERATIONS.index(name))
    level = torch.tensor(levels, dtype=torch.float64)
    return apply(images.clone(), Drawn(operation, level, torch.full_like(level, sign)), FILL)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_timms(name: str, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against Pillow at a level per image; one level apart where Pillow computes in double or rounds (sharpness)."""
    levels = [0.0, 3.0, 7.3, 9.0, 9.9]
    images = pictures(len(levels))
    results = ours(images, name, levels, sign)
    for image, level, result in zip(images, levels, results, strict=True):
        wanted = as_timm(image, name, level, sign, monkeypatch)
        difference = (wanted.int() - result.int()).abs()
        if name in EXACT:
            assert difference.max() == 0
        else:
            assert difference.float().quantile(0.995) <= 1  # a center on the very edge may fall on either side
            assert difference.float().mean() < 0.2


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_rotations_on_an_accelerator_are_those_of_a_cpu(channels: int) -> None:
    """On a CPU they are Pillow's (test_each_operation_is_timms). Catches: another filter, an edge that is not repeated,
    a center of a pixel, a turn the other way, oblong images turned around another point."""
    images = torch.randint(0, 256, (6, channels, 40, 26), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    degrees, fill = torch.tensor([-27.0, -3.3, 0.0, 1.0, 12.5, 90.0]), (9, 200, 31, 0, 255)[:channels]
    gap = (rotate(images, degrees, fill).int() - rotate_by_taps(images, degrees, fill).int()).abs()
    assert (gap > 0).float().mean() < 0.01
    assert gap.float().quantile(0.999) <= 1  # a center on the very edge may fall on either side


def test_the_highest_level_of_posterize_is_black() -> None:
    """Level 10 keeps 4 - 4 = 0 bits, as in timm wherever Pillow allows that."""
    assert not ours(pictures(1), "posterize", [10.0], 1).any()


def test_flat_images_survive_every_operation() -> None:
    for name in OPERATIONS:
        for shape in ((1, 3, 1, 1), (2, 3, 8, 8)):
            assert ours(torch.full(shape, 100, dtype=torch.uint8), name, [9.0] * shape[0], 1).shape == shape


def test_operations_and_levels_are_distributed_as_timms() -> None:
    """Operation uniform over fifteen, half of the time; level N(magnitude, std) cut to [0, 10]."""
    drawn = RandAugment(9.0, 0.5).draw(uniform(4000, 4))
    happened = drawn.operation >= 0
    assert abs(happened.float().mean() - 0.5) < 0.032  # four standard deviations, as below
    counts = torch.bincount(drawn.operation[happened], minlength=15).float()
    assert (counts / counts.sum() - 1 / 15).abs().max() < 0.022
    assert abs(drawn.sign.mean()) < 0.064
    random.seed(0)
    levels = [max(0.0, min(random.gauss(9.0, 0.5), 10.0)) for _ in range(4000)]
    assert ks_2samp(drawn.level.numpy(), levels).pvalue > 1e-3


def test_augmented_images_are_distributed_as_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and spread of the gray levels of one image augmented 600 times."""
    keep = theirs.posterize
    monkeypatch.setitem(theirs.NAME_TO_OP, "PosterizeIncreasing", lambda im, bits, **k: keep(im, max(1, bits), **k))
    image, count = pictures(1, 16, 16), 600
    mine = RandAugment().filled((0.5, 0.5, 0.5))(image.repeat(count, 1, 1, 1), uniform(count, 8)).float()
    random.seed(0)
    np.random.seed(0)
    augment = theirs.rand_augment_transform(
        "rand-m9-mstd0.5-inc1", {"img_mean": (128, 128, 128), "interpolation": BICUBIC}
    )
    source = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    other = torch.stack([torch.from_numpy(np.array(augment(source))) for _ in range(count)]).float().permute(0, 3, 1, 2)
    for measure in (lambda x: x.mean((1, 2, 3)), lambda x: x.std((1, 2, 3)), lambda x: x[:, 0].mean((1, 2))):
        assert ks_2samp(measure(mine).numpy(), measure(other).numpy()).pvalue > 1e-3


def test_equal_images_are_augmented_differently() -> None:
    """A quarter of the images draws no operation."""
    result = RandAugment()(pictures(1).repeat(64, 1, 1, 1), uniform(64, 8))
    assert len({image.numpy().tobytes() for image in result}) > 35


def test_an_image_does_not_depend_on_its_batch() -> None:
    images, u = pictures(12), uniform(12, 8)
    together = RandAugment()(images.clone(), u)
    alone = [RandAugment()(images[k : k + 1].clone(), u[k : k + 1]) for k in range(12)]
    assert torch.equal(together, torch.cat(alone))


def test_the_fill_is_the_mean_color() -> None:
    """timm's create_transform passes round(255 mean)."""
    assert RandAugment().filled((0.485, 0.456, 0.406)).fill == (124, 116, 104)


def test_impossible_settings_are_refused() -> None:
    refused("magnitude must lie between 0 and 10, got 11", RandAugment, magnitude=11)
    refused("std", RandAugment, std=-1)
    refused("probability", RandAugment, probability=1.5)
