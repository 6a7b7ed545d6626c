# SPDX-License-Identifier: Apache-2.0
"""Average precision of labels against scikit-learn and torchmetrics, thresholds against exhaustive search."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, f1_score
from torchmetrics.functional.classification import multilabel_average_precision

from viticulture.evaluation.outputs import Predictions
from viticulture.models.data_spec import DataSpec
from viticulture.scores.labels import average_precisions, best_thresholds, mean_average_precision, resampled
from viticulture.tasks.multilabel_metrics import FREQUENCY, evaluate_labels

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
