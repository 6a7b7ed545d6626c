# SPDX-License-Identifier: Apache-2.0
"""Temperatures: true ones are found, the winner stays, few images fit none, intervals are the bootstrap's."""

import numpy as np
import pytest
import torch
from torch import Tensor

from viticulture.scores.calibration import (
    MIN_IMAGES,
    calibrated,
    calibration_interval,
    fit_temperature,
    fit_temperatures,
)


def logits_of(images: int, classes: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(images, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(probabilities: Tensor, seed: int = 1) -> Tensor:
    """Labels that occur as often as the probabilities say."""
    return torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(seed))[:, 0]


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_the_temperature_of_labels_drawn_at_it_is_found(true: float) -> None:
    """Guo et al., Section 4.2. Catches: the inverse temperature, logits of the wrong sign, smoothing that moves it."""
    logits = logits_of(20_000, 7)
    (found,) = fit_temperature(logits.softmax(-1), drawn((logits / true).softmax(-1)))
    assert found == pytest.approx(true, rel=0.05)


def test_each_label_has_its_own_temperature_and_rare_ones_have_none() -> None:
    logits, true = logits_of(20_000, 3), torch.tensor([0.5, 2.0, 1.0])
    shown = torch.rand(logits.shape, generator=torch.Generator().manual_seed(2)) < (logits / true).sigmoid()
    shown[:, 2] = False
    shown[:9, 2] = True
    found = fit_temperatures(logits.sigmoid(), shown.long())
    assert found == pytest.approx((0.5, 2.0, 1.0), rel=0.05)
    assert found[2] == 1.0
    assert fit_temperatures(logits.sigmoid(), torch.zeros_like(logits)) == ()


def test_probabilities_at_a_temperature_are_those_of_divided_logits() -> None:
    """Identity with softmax(z / T) and sigmoid(z / T), up to the float32 of the probabilities; the winner is the same
    even where two classes differ in the last bit. Catches: a winner that rounding changes."""
    logits = logits_of(500, 5)
    torch.testing.assert_close(calibrated(logits.softmax(-1), (2.5,), False), (logits / 2.5).softmax(-1))
    each = torch.tensor([0.5, 1, 2, 3, 4])
    torch.testing.assert_close(calibrated(logits.sigmoid(), each.tolist(), True), (logits / each).sigmoid())
    close = torch.full((1, 4), 0.25)
    close[0, 2] = torch.nextafter(close[0, 2], torch.tensor(1.0))
    for temperature in (0.05, 0.9, 20.0):
        assert calibrated(close, (temperature,), False).argmax() == 2
    assert calibrated(close, (), False) is close


def test_few_images_fit_nothing_and_images_that_are_all_right_no_certainty() -> None:
    """n right images support a confidence of (n + 1) / (n + 2), Platt, Section 2.2. Catches: a temperature that runs
    to its limit where validation images are all right."""
    probabilities = torch.tensor([[0.8, 0.2]]).repeat(MIN_IMAGES, 1)
    labels = torch.zeros(MIN_IMAGES, dtype=torch.int64)
    assert fit_temperature(probabilities[1:], labels[1:]) == ()
    after = calibrated(probabilities, fit_temperature(probabilities, labels), False)
    assert float(after[0, 0]) == pytest.approx((MIN_IMAGES + 1) / (MIN_IMAGES + 2), abs=1e-3)


def test_probabilities_that_underflow_stay_finite() -> None:
    probabilities = torch.tensor([[1.0, 0.0]]).repeat(40, 1)
    labels = torch.tensor([0] * 30 + [1] * 10)
    assert calibrated(probabilities, fit_temperature(probabilities, labels), False).isfinite().all()
    several = calibrated(torch.tensor([[1.0, 0.0]], dtype=torch.float64), (2.0, 0.5), True)
    assert several.isfinite().all()


def test_the_interval_of_a_calibration_error_is_the_bootstraps() -> None:
    """Beside a bootstrap that draws images, centered likewise. Catches: a variance of images rather than of means."""
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.3, 1, 600)
    right = generator.uniform(size=600) < confidence - 0.15
    bin_of = (confidence * 15).astype(np.int64).clip(0, 14)

    def error(rows: np.ndarray) -> float:
        gaps = (right[rows] - confidence[rows]).astype(float)
        return float(np.abs(np.bincount(bin_of[rows], gaps, minlength=15)).sum() / len(rows))

    value = error(np.arange(600))
    draws = np.array([error(generator.integers(0, 600, 600)) for _ in range(2000)])
    expected = np.percentile(draws + value - draws.mean(), (2.5, 97.5))
    found = calibration_interval(confidence, right, bin_of, value)
    np.testing.assert_allclose(found, expected, atol=0.012)
