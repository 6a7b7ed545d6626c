# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of boxes, pixels and labels."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import viticulture
from simulated_gpu import OnApple
from viticulture.scores import labels, objects, pixels
from viticulture.scores.intervals import ENDS, error_of_recalls, interval_of


def test_an_interval_is_symmetric_in_probability() -> None:
    drawn = np.random.default_rng(0).permutation(1001) / 1000
    assert interval_of(drawn) == pytest.approx((0.025, 0.975))
    assert interval_of(drawn + 0.1) == pytest.approx((0.125, 1))


def test_the_interval_of_mean_recall_reflects_its_rarest_class() -> None:
    """Recalls of 0.9 (90 images) and 0.5 (10): the spread of a million draws of both."""
    draw = np.random.default_rng(0)
    means = (draw.binomial(90, 0.9, 1_000_000) / 90 + draw.binomial(10, 0.5, 1_000_000) / 10) / 2
    right, shown = torch.tensor([[81.0, 5, 0], [90.0, 10, 0]])
    assert error_of_recalls(right, shown) == pytest.approx(means.std(), rel=0.01)
    assert error_of_recalls(right.as_subclass(OnApple), shown.as_subclass(OnApple)) == error_of_recalls(right, shown)


def test_draws_without_targets_have_the_mean_of_the_others() -> None:
    areas = np.array([100.0])
    right = objects.match(np.array([0.9]), areas, areas, np.zeros(1, bool), np.ones((1, 1)))
    counts = np.zeros((3, 2, 2), np.int64)
    counts[0] = [[50, 0], [0, 50]]
    shown, scores = np.array([[1.0], [0], [0]]), np.array([[0.9], [0.1], [0.2]])
    perfect = [
        objects.resampled([objects.ranked({0: right}, 3)], 3),
        pixels.resampled(counts),
        labels.resampled(scores, shown),
    ]
    for drawn in perfect:
        assert interval_of(drawn) == pytest.approx((1, 1))
    nothing = [objects.resampled([objects.ranked({}, 3)], 3), pixels.resampled(0 * counts)]
    assert [set(drawn.tolist()) for drawn in nothing] == [{0.0}, {0.0}]


def test_percentiles_are_defined_once() -> None:
    root = Path(viticulture.__file__).parent
    written = re.compile(r"\(\s*2\.5,\s*97\.5\s*\)")
    assert [path.name for path in root.rglob("*.py") if written.search(path.read_text("utf-8"))] == ["intervals.py"]
    assert ENDS == (2.5, 97.5)
