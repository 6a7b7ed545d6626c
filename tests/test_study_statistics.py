# SPDX-License-Identifier: Apache-2.0
"""Intervals hold what they promise, and the number of seeds is the one in the books."""

import numpy as np
import pytest
from scipy import stats

from viticulture.study.statistics import bootstrap, difference, estimate, seeds_needed


def test_the_interval_of_a_mean_is_students() -> None:
    """Student 1908 by scipy's own t-test, and by hand for three values: 4.303 sd / sqrt(3).

    Fails for a normal quantile, n instead of n - 1, or a one-sided level.
    """
    found = estimate([0.90, 0.92, 0.97])
    assert found.sd == pytest.approx(0.036056, abs=1e-6)
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(4.302653 * 0.036056 / 3**0.5, rel=1e-4)
    reference = stats.ttest_1samp([0.90, 0.92, 0.97], 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert estimate([0.5]).low is None
    assert estimate([0.5]).mean == 0.5


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_the_seeds_needed_are_those_of_a_paired_t_test(effect: float, pairs: int) -> None:
    """Sample sizes of a two-sided paired t-test, level 0.05, power 0.8: Cohen's small, medium and large effect, and 1,
    as G*Power 3.1 prints them. Fails for a normal approximation (which gives 8 at effect 1) or a one-sided test."""
    assert seeds_needed(effect, 1.0) == pairs
    assert seeds_needed(-3 * effect, 3.0) == pairs


def test_nothing_is_promised_where_nothing_is_known() -> None:
    assert seeds_needed(0.1, None) is None
    assert seeds_needed(0.0, 0.1) is None
    assert seeds_needed(1e-6, 1.0) is None
    assert seeds_needed(0.1, 0.0) == 2


def test_the_bootstrap_is_the_one_that_draws_seeds_and_images() -> None:
    """Against a plain loop that draws rows and columns with replacement, as Owen 2007 describes it.

    Fails if images are drawn anew for every seed (too narrow), if only one of the two is drawn, or for N - 1.
    """
    draw = np.random.default_rng(0)
    hard = draw.random(400) < 0.2  # images that all seeds agree about
    right = np.stack([(hard | (draw.random(400) < 0.05)) - (draw.random(400) < 0.04).astype(int) for _ in range(4)])
    right = right.astype(np.int8)
    found = bootstrap(right)
    means = [right[draw.integers(0, 4, 4)][:, draw.integers(0, 400, 400)].mean() for _ in range(4000)]
    low, high = np.quantile(means, [0.025, 0.975])
    assert found.mean == pytest.approx(right.mean())
    assert found.low == pytest.approx(low, abs=0.004)  # a tenth of the width
    assert found.high == pytest.approx(high, abs=0.004)
    assert bootstrap(right) == found  # the same at every call


def test_paired_seeds_tell_apart_what_unpaired_ones_cannot() -> None:
    """Seeds differ by points, methods by half a point on every seed: the difference is clear, its sign too.

    Fails if the values are compared as independent samples, or the difference is turned around.
    """
    theirs = [0.70, 0.80, 0.90]
    ours = [0.706, 0.804, 0.905]
    found = difference(ours, theirs)
    assert found.mean == pytest.approx(0.005)
    assert found.separates()
    assert found.seeds_needed == 3
    assert not difference([0.8], [0.7]).separates()  # a single seed says nothing


def test_both_intervals_must_leave_out_zero() -> None:
    """Three seeds agree to the last image that ours is one better of ten; ten images prove nothing.

    Fails if Student's interval over seeds alone may name a winner on a handful of test images.
    """
    right = np.zeros((3, 10), np.int8)
    right[:, 0] = 1
    found = difference([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], right)
    assert found.over_seeds.low == pytest.approx(0.1)
    assert not found.separates()
    assert difference([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], np.repeat(right, 100, 1)).separates()


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Of 400 experiments with 3 seeds, 95 % of Student's intervals hold the true mean (99 % bounds: 91.9 to 97.8 %).

    Fails for an interval that is too narrow by a fifth or so."""
    draw = np.random.default_rng(1)
    found = [estimate(draw.normal(0.3, 0.02, 3).tolist()) for _ in range(400)]
    inside = np.mean([one.low <= 0.3 <= one.high for one in found if one.low is not None and one.high is not None])
    assert 0.919 <= inside <= 0.978
