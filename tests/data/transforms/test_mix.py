# SPDX-License-Identifier: Apache-2.0
"""Mixup and cutmix are timm's in batch mode, with another partner."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest
from timm.data.mixup import Mixup
from torch import Tensor

from noise import uniform
from refusals import refused
from viticulture.data.transforms.mix import Mix

HEIGHT, WIDTH, CLASSES = 12, 20, 5


def batch(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, HEIGHT, WIDTH, generator=generator), torch.arange(count) % CLASSES


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cut", [False, True])
def test_a_pair_is_mixed_as_by_timm(cut: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and labels of two, where reversing a batch and rolling it by half agree."""
    images, labels = batch(2)
    mix, u = Mix(0.8, 1.0, switch=float(cut)), uniform(5, seed=seed)
    results, soft = mix(images.clone(), labels, u, CLASSES)

    theirs = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=CLASSES)
    lam = beta.ppf(float(u[2]), *([1.0] * 2 if cut else [0.8] * 2))
    center = iter([int(u[3] * HEIGHT), int(u[4] * WIDTH)])
    monkeypatch.setattr(theirs, "_params_per_batch", lambda: (lam, cut))
    monkeypatch.setattr(np.random, "randint", lambda low, high, size=None: next(center))
    wanted, wanted_soft = theirs(images.clone(), labels)
    torch.testing.assert_close(results, wanted)
    torch.testing.assert_close(soft, wanted_soft)


def test_shares_are_drawn_from_timms_distributions() -> None:
    """lam ~ Beta(alpha, alpha) for mixup; cutmix half of the time; no mixing with probability 1 - p."""
    mix = Mix(0.8, 1.0, probability=0.7, switch=0.25)
    drawn = [mix.draw(u, HEIGHT, WIDTH) for u in uniform(2000, 5)]
    mixed = [share for share, box in drawn if box is None and share < 1]
    assert kstest(mixed, beta(0.8, 0.8).cdf).pvalue > 1e-3
    cut = [share for share, box in drawn if box is not None]
    assert abs(len(cut) / 2000 - 0.7 * 0.25) < 0.034  # four standard deviations
    assert abs(len(mixed) / 2000 - 0.7 * 0.75) < 0.045


def test_the_share_of_a_clipped_rectangle_is_its_true_area() -> None:
    """1 - lam is the partner's part of the image."""
    images = torch.stack([torch.zeros(3, HEIGHT, WIDTH), torch.ones(3, HEIGHT, WIDTH)])
    for u in uniform(200, 5):
        result, soft = Mix(0, 1.0, smoothing=0)(images, torch.tensor([0, 1]), u, 2)
        torch.testing.assert_close(result.mean((1, 2, 3)), soft[:, 1])


@pytest.mark.parametrize("mix", [Mix(0.8, 0), Mix(0, 1.0), Mix(0, 0), Mix(probability=0)])
@pytest.mark.parametrize("count", [1, 4, 5])
def test_labels_stay_distributions(mix: Mix, count: int) -> None:
    """Sum 1, none negative."""
    images, labels = batch(count)
    result, soft = mix(images.clone(), labels, uniform(5), CLASSES)
    torch.testing.assert_close(soft.sum(1), torch.ones(count))
    assert soft.min() >= 0
    if count == 1 or mix.probability == 0:
        torch.testing.assert_close(result, images)
        torch.testing.assert_close(soft[0], torch.tensor([0.92, 0.02, 0.02, 0.02, 0.02]))


@pytest.mark.parametrize("mix", [Mix(0.8, 0), Mix(0, 1.0)])
def test_two_processes_mix_as_one(mix: Mix) -> None:
    images, labels = batch(8)
    together, soft = mix(images.clone(), labels, uniform(5), CLASSES)
    for rank in (0, 1):
        alone, alone_soft = mix(images[rank::2].clone(), labels[rank::2], uniform(5), CLASSES)
        assert torch.equal(alone, together[rank::2])
        assert torch.equal(alone_soft, soft[rank::2])


def test_impossible_settings_are_refused() -> None:
    refused("must not be negative, got -1 and 1", Mix, mixup=-1)
    refused("smoothing", Mix, smoothing=2)
