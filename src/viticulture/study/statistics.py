# SPDX-License-Identifier: Apache-2.0
"""Means with their uncertainty over seeds and images; how many more seeds would tell two methods apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
POWER = 0.8
RESAMPLES = 4000
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        values: one a seed.
        mean: of them.
        sd: sample standard deviation, over n - 1; None for a single seed.
        low: lower end of the interval; None for a single seed.
        high: upper end.
    """

    values: tuple[float, ...]
    mean: float
    sd: float | None
    low: float | None
    high: float | None


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean and Student's interval over seeds.

        mean -+ t(n - 1, (1 + level) / 2) sd / sqrt(n)

    Source: Student, "The probable error of a mean", Biometrika 1908, 6(1).
    """
    found, n = np.asarray(values, dtype=np.float64), len(values)
    mean = float(found.mean())
    if n < 2:
        return Estimate(tuple(values), mean, None, None, None)
    sd = float(found.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * sd / sqrt(n)
    return Estimate(tuple(values), mean, sd, mean - half, mean + half)


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another, over seeds that both were trained from.

    Args:
        over_seeds: mean and Student's interval of the paired differences.
        over_images: the same mean with the bootstrap's interval over seeds and test images; None where the answers to
            single images are not known.
        seeds_needed: pairs of trainings that would tell the two apart with the power of `POWER`, if mean and spread
            are as seen; None where they cannot be told (fewer than two seeds, no difference, or more than
            `MOST_SEEDS`).
    """

    over_seeds: Estimate
    over_images: Estimate | None
    seeds_needed: int | None

    @property
    def mean(self) -> float:
        """In the unit of the values."""
        return self.over_seeds.mean

    def separates(self) -> bool:
        """Whether every interval that is known leaves out zero; a single seed separates nothing."""
        known = [self.over_seeds, *([self.over_images] if self.over_images else [])]
        return all(one.low is not None and one.high is not None and (one.low > 0 or one.high < 0) for one in known)


def difference(
    ours: Sequence[float], theirs: Sequence[float], right: NDArray[np.int8] | None = None, level: float = LEVEL
) -> Difference:
    """Compare two methods on the same seeds.

    Args:
        ours: one value a seed.
        theirs: the other method's, of the same seeds in the same order.
        right: [S, N] for every seed and test image 1 if only ours is right, -1 if only theirs is, else 0; None where
            it is not known.
        level: of both intervals.
    """
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    seeds = estimate(pairs, level)
    images = bootstrap(right, level) if right is not None and len(pairs) > 1 else None
    return Difference(seeds, images, seeds_needed(seeds.mean, seeds.sd))


def bootstrap(right: NDArray[np.int8], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Percentile interval of the mean difference in accuracy when both seeds and test images are drawn anew.

        a resample: S seeds and N images, each with replacement, the same images for every seed;
        its value: the mean of right[seed, image]

    The seeds' means over N resampled images are drawn from the normal distribution with the means and covariances of
    the resampling, as the central limit theorem has it: the cost does not grow with the resamples' images. With few
    seeds a bootstrap over seeds is too narrow (by sqrt((S - 1) / S) at least); Student's interval stands beside it.

    Args:
        right: [S, N] in {-1, 0, 1}, see `difference`.
        level: of the interval.
        resamples: drawn.
        seed: of the draw.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13; two ways of resampling crossed:
    Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 2007, 1(2), arXiv:0712.1111.
    """
    S, N = right.shape
    draw = np.random.default_rng(seed)
    covariance = np.atleast_2d(np.cov(right, bias=True)) / N  # [S, S], of means over N resampled images
    images = draw.multivariate_normal(right.mean(1), covariance, size=resamples, method="svd")  # [R, S]
    seeds = draw.multinomial(S, np.full(S, 1 / S), size=resamples) / S  # [R, S]
    means = (seeds * images).sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    values = right.mean(1)
    sd = float(values.std(ddof=1)) if S > 1 else None
    return Estimate(tuple(values.tolist()), float(values.mean()), sd, float(low), float(high))


def seeds_needed(mean: float, sd: float | None, level: float = LEVEL, power: float = POWER) -> int | None:
    """Pairs of trainings after which a two-sided paired t-test would see this difference with this power.

        smallest n with P(|T| > t(n - 1, (1 + level) / 2)) >= power,  T noncentral t, n - 1, sqrt(n) mean / sd

    None where there is no spread to judge by, no difference to see, or more than `MOST_SEEDS` would be needed.
    """
    if sd is None or mean == 0:
        return None
    if sd == 0:
        return 2
    effect = abs(mean) / sd

    def seen(n: int) -> float:
        edge, shift = stats.t.ppf((1 + level) / 2, n - 1), sqrt(n) * effect
        return float(stats.nct.sf(edge, n - 1, shift) + stats.nct.cdf(-edge, n - 1, shift))

    low, high = 1, 2
    while seen(high) < power:
        low, high = high, 2 * high
        if high > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) >= power else (middle, high)
    return high
