# SPDX-License-Identifier: Apache-2.0
"""Temperatures: true ones are found, the winner stays, few images fit none, intervals are the bootstrap's; average
precision of labels against scikit-learn and torchmetrics, thresholds against exhaustive search.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, f1_score
from torch import Tensor
from torchmetrics.functional.classification import multilabel_average_precision

from viticulture.evaluation.outputs import Predictions
from viticulture.models.data_spec import DataSpec
from viticulture.scores.calibration import (
    MIN_IMAGES,
    calibrated,
    calibration_interval,
    fit_temperature,
    fit_temperatures,
)
from viticulture.scores.labels import average_precisions, best_thresholds, mean_average_precision, resampled
from viticulture.tasks.multilabel_metrics import FREQUENCY, evaluate_labels


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


DRAW = np.random.default_rng(0)
SHOWN = DRAW.random((60, 5)) < (0.5, 0.3, 0.1, 0.05, 0)
SCORES = np.round(0.3 * SHOWN + 0.7 * DRAW.random(SHOWN.shape), 1)  # many are equal


def test_average_precision_is_scikit_learns_and_torchmetrics() -> None:
    ours = average_precisions(SCORES, SHOWN)
    theirs = [average_precision_score(SHOWN[:, c], SCORES[:, c]) for c in range(4)]
    np.testing.assert_allclose(ours[:4], theirs, rtol=1e-12)
    assert np.isnan(ours[4])
    scores, shown = torch.tensor(SCORES[:, :4]), torch.tensor(SHOWN[:, :4]).long()
    of_torch = multilabel_average_precision(scores, shown, 4, average="none")
    np.testing.assert_allclose(ours[:4], of_torch.numpy(), rtol=1e-5)  # theirs is float32
    assert mean_average_precision(SCORES, SHOWN) == pytest.approx(np.mean(theirs))
    assert mean_average_precision(SCORES, np.zeros_like(SHOWN)) == 0


def test_a_bootstrap_draw_weighs_images_by_their_count() -> None:
    """Against scikit-learn, with images repeated."""
    often = np.random.default_rng(0).multinomial(60, np.full(60, 1 / 60), size=1000)
    for value, counts in zip(resampled(SCORES, SHOWN)[:5], often, strict=False):
        rows = np.repeat(np.arange(60), counts)
        labels = np.flatnonzero(SHOWN[rows].any(0))
        theirs = np.mean([average_precision_score(SHOWN[rows, c], SCORES[rows, c]) for c in labels])
        assert value == pytest.approx(theirs)


def test_a_threshold_has_the_best_f1() -> None:
    thresholds = best_thresholds(SCORES, SHOWN)
    every = np.linspace(-0.01, 1.01, 103)
    for c in range(4):
        best = max(f1_score(SHOWN[:, c], SCORES[:, c] >= cut, zero_division=0) for cut in every)
        assert f1_score(SHOWN[:, c], SCORES[:, c] >= thresholds[c]) == pytest.approx(best)
        assert np.abs(SCORES[:, c] - thresholds[c]).min() > 0.01 or thresholds[c] == 0
    assert thresholds[4] == 0.5  # nothing to choose by
    assert best_thresholds(np.array([[0.9], [0.1]]), np.array([[1], [0]])) == pytest.approx([0.5])  # halfway
    shown = np.array([[1], [0], [0], [1]])
    assert best_thresholds(np.array([[0.95], [0.8], [0.7], [0.6]]), shown) == pytest.approx([0.3])  # 0.875 is as good


def test_the_likelihood_of_labels_is_that_of_their_logits() -> None:
    data_spec = DataSpec(("x", "y"), (8, 8), (0.5,) * 3, (0.5,) * 3, multilabel=True)
    shown = torch.tensor([[0.0, 1.0]])
    for logit in (0.0, 5.0, 18.0, -18.0, 30.0, -30.0):
        logits = torch.tensor([[logit, -logit]])
        expected = F.binary_cross_entropy_with_logits(logits.double(), shown.double(), reduction="sum")
        found = evaluate_labels(
            Predictions(data_spec.probabilities(logits), shown, [""]), data_spec.classes, [0.5, 0.5]
        )
        assert found.nll == pytest.approx(expected.item(), rel=1e-3)
    sides = [
        evaluate_labels(Predictions(data_spec.probabilities(logit), label, [""]), ("x",), [0.5]).nll
        for logit, label in ((torch.tensor([[99.0]]), torch.zeros(1, 1)), (torch.tensor([[-99.0]]), torch.ones(1, 1)))
    ]
    assert sides[0] == sides[1] > 30


def test_metrics_at_thresholds() -> None:
    """By hand: three images, three labels."""
    predictions = Predictions(
        torch.tensor([[0.9, 0.4, 0.1], [0.8, 0.6, 0.1], [0.2, 0.7, 0.1]]),
        torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0]]),
        ["a", "b", "c"],
    )
    found = evaluate_labels(predictions, ("x", "y", "z"), [0.5, 0.5, 0.5], [4, 5, 6])
    assert found.map == 1.0
    assert found.exact == pytest.approx(2 / 3)
    assert found.micro_f1 == pytest.approx(6 / 7)
    assert found.macro_f1 == pytest.approx((2 / 3 + 1) / 2)
    x, y, z = found.per_label
    assert (x.precision, x.recall, x.images, x.training_images) == (0.5, 1.0, 1, 4)
    assert (y.precision, y.f1, y.ap) == (1.0, 1.0, 1.0)
    assert (z.precision, z.recall, z.f1, z.ap) == (None, None, None, None)
    assert found.baselines == {FREQUENCY: pytest.approx((1 / 3 + 2 / 3) / 2)}
    assert found.measures["map"] == found.score
    assert len(found.resampled) == 1000
