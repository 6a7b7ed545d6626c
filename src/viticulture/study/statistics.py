# SPDX-License-Identifier: Apache-2.0
"""Means with their uncertainty over seeds (or folds) and images; paired differences; sums of methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
SPENT = 0.75  # fraction of what is left of 1 - `LEVEL` that each interim analysis of a growing study spends
POWER = 0.8
RESAMPLES = 4000
MAX_SEEDS = 1000
MIN_SEEDS_OF_SUMS = 3  # seeds from which the excess of a sum is separated from chance


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    values: tuple[float, ...]
    mean: float
    sd: float | None  # sample standard deviation, over n - 1; None for a single seed
    low: float | None
    high: float | None


def estimate(values: Sequence[float], level: float = LEVEL, floor: float = 0.0, overlap: float = 0.0) -> Estimate:
    """Compute the mean and Student's interval over seeds, or over folds.

        mean -+ t(n - 1, (1 + level) / 2) max(sd, floor) sqrt(1 / n + overlap)

    Args:
        floor: a known lower bound of the spread; few values may lie closer together by chance.
        overlap: test images for each training image, where trainings share training images: values of folds are not
            independent, and 1 / n alone would be too little. 0 for seeds.

    Source: Student, "The probable error of a mean", Biometrika 1908, 6(1); the overlap: Nadeau and Bengio, "Inference
    for the generalization error", Machine Learning 2003, 52(3), the corrected resampled t-test.
    """
    array, n = np.asarray(values, dtype=np.float64), len(values)
    mean = float(array.mean())
    if n < 2:
        return Estimate(tuple(values), mean, None, None, None)
    sd = float(array.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * max(sd, floor) * sqrt(1 / n + overlap)
    return Estimate(tuple(values), mean, sd, mean - half, mean + half)


def estimate_accuracy(values: Sequence[float], images: int | None, overlap: float = 0.0) -> Estimate:
    """Compute the mean accuracy with the wider of two intervals: Student's over seeds, and the binomial one of the test
    images.

        p -+ z sqrt(p (1 - p) / N'),  p = (mean N + z^2 / 2) / N',  N' = N + z^2

    The N images are the same for every seed, so that more seeds do not narrow the latter; of folds with separate test
    images, N counts all. Without images (a measure that counts none) only the former; none for a single seed.
    `overlap` as in `estimate`.

    Source: Agresti and Coull, "Approximate is better than 'exact' for interval estimation of binomial proportions",
    The American Statistician 1998, 52(2).
    """
    over_seeds = estimate(values, overlap=overlap)
    if over_seeds.low is None or not images:
        return over_seeds
    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    center = (over_seeds.mean * images + z**2 / 2) / (images + z**2)
    half = z * sqrt(max(0.0, center * (1 - center)) / (images + z**2))
    return _widened(over_seeds, center - half, center + half)


def estimate_resampled(
    values: Sequence[float], resampled: NDArray[np.float64] | None, overlap: float = 0.0
) -> Estimate:
    """Compute the mean of a measure that is no proportion of images, such as average precision, with the wider of two
    intervals: Student's over seeds, and the bootstrap's over the test images. None of either for a single seed.

    Args:
        resampled: [S, R] for every seed its value over R draws of the test images, the same draws for all; None leaves
            only the former interval. Every fold draws among its own images.
        overlap: as in `estimate`.
    """
    over_seeds = estimate(values, overlap=overlap)
    if over_seeds.low is None or resampled is None:
        return over_seeds
    low, high = np.quantile(resampled.mean(0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return _widened(over_seeds, float(low), float(high))


def _widened(estimated: Estimate, low: float, high: float) -> Estimate:
    assert estimated.low is not None
    assert estimated.high is not None
    return replace(estimated, low=min(estimated.low, low), high=max(estimated.high, high))


def level_of_analysis(number: int) -> float:
    """Return the level of the intervals at the n-th analysis of a study that grows, n = 1, 2, ...

        1 - (1 - LEVEL) SPENT (1 - SPENT)^(n - 1)

    The probabilities of an error in all analyses add up to 1 - `LEVEL` at most, however many there are and for whatever
    reason seeds are added: the error is spent over the analyses.

    Source: Lan and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 1983, 70(3); deviation:
    each analysis spends its part alone (Bonferroni), so that nothing need be known about later analyses.
    """
    return 1 - (1 - LEVEL) * SPENT * (1 - SPENT) ** (number - 1)


def next_level(level: float) -> float:
    """Return the level of the analysis that follows one of this level."""
    return 1 - (1 - level) * (1 - SPENT)


@dataclass(frozen=True)
class Difference:
    """Paired difference of two methods, over seeds that both were trained from, or over folds."""

    over_seeds: Estimate
    # The same mean with the bootstrap's interval over seeds and test images; None where predictions of single images
    # are not known.
    over_images: Estimate | None
    floor: float
    overlap: float

    @property
    def mean(self) -> float:
        """Mean difference in the unit of the values."""
        return self.over_seeds.mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the wider of the intervals that are known; None for a single seed."""
        seeds, images = self.over_seeds, self.over_images or self.over_seeds
        if seeds.low is None or seeds.high is None or images.low is None or images.high is None:
            return None
        return min(seeds.low, images.low), max(seeds.high, images.high)

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """Return the pairs of trainings that would separate the two at this level with the power of `POWER`, if mean
        and spread are as measured; None with fewer than two seeds, without a difference, for more than `MAX_SEEDS`, and
        for folds, whose number decides how many images a training has."""
        sd = None if self.overlap else self.over_seeds.sd
        return seeds_needed(self.mean, None if sd is None else max(sd, self.floor), level)

    def separates(self) -> bool:
        """Return whether every interval that is known leaves out zero. A single seed separates nothing, nor do two, or
        values without any spread, where predictions of single images are not known."""
        if self.over_images is None and (len(self.over_seeds.values) < 3 or not self.over_seeds.sd):
            return False
        intervals = [self.over_seeds, *([self.over_images] if self.over_images else [])]
        return all(
            interval.low is not None and interval.high is not None and (interval.low > 0 or interval.high < 0)
            for interval in intervals
        )


def difference(
    ours: Sequence[float],
    theirs: Sequence[float],
    correct: NDArray[np.int8] | None = None,
    level: float = LEVEL,
    resampled: NDArray[np.float64] | None = None,
    overlap: float = 0.0,
) -> Difference:
    """Compare two methods on the same seeds.

        Student's interval of a_s - b_s, whose spread is at least sqrt((n_10 + n_01) / N) / sqrt(N)

    where of N test images n_10 are classified correctly by ours alone, n_01 by theirs alone (means over seeds). The
    floor is the effect of drawing the test images on a single difference if the two are equally good: differences of
    two or three seeds that lie closer together do so by chance, and would separate anything.

    Args:
        correct: [S, N] for every seed and test image 1 if only ours is correct, -1 if only theirs is, else 0; None
            where it is not known.
        resampled: [S, R] for every seed the difference over R draws of the test images, of a measure that is no
            proportion of images; replaces `correct`. The floor is its spread over the draws.
        overlap: of folds that are tested on the same images, as in `estimate`.

    Source of the floor: McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", Psychometrika 1947, 12(2).
    """
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    floor, images = 0.0, None
    if correct is not None:
        floor = sqrt(float(np.abs(correct).mean()) / correct.shape[1])
        images = bootstrap(correct, level) if len(pairs) > 1 else None
    elif resampled is not None:
        floor = sqrt(float(resampled.var(1).mean()))
        images = _crossed(np.array(pairs), np.atleast_2d(np.cov(resampled)), level) if len(pairs) > 1 else None
    return Difference(estimate(pairs, level, floor, overlap), images, floor, overlap)


def difference_of_folds(
    ours: Sequence[float],
    theirs: Sequence[float],
    correct: Sequence[NDArray[np.int8]] | None,
    overlap: float,
    level: float = LEVEL,
) -> Difference:
    """Compare two methods on the same folds, each with separate test images.

        mean -+ z sqrt(sum over folds of var(correct) / N) / S,  S folds, N images in each

    is the interval over images, which folds do not share. Student's interval over folds, with its correction for the
    shared training images, is computed as well.
    """
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    if correct is None:
        return Difference(estimate(pairs, level, 0.0, overlap), None, 0.0, overlap)
    S, mean = len(pairs), float(np.mean(pairs))
    floor = sqrt(float(np.mean([np.abs(fold).mean() / len(fold) for fold in correct])))
    half = float(stats.norm.ppf((1 + level) / 2)) * sqrt(sum(float(fold.var()) / len(fold) for fold in correct)) / S
    over_folds = estimate(pairs, level, floor, overlap)
    images = Estimate(tuple(pairs), mean, over_folds.sd, mean - half, mean + half) if S > 1 else None
    return Difference(over_folds, images, floor, overlap)


def bootstrap(correct: NDArray[np.int8], level: float = LEVEL) -> Estimate:
    """Compute the percentile interval of the mean difference in accuracy when both seeds and test images are resampled.

        a resample: S seeds and N images, each with replacement, the same images for every seed;
        its value: mean + sqrt(S / (S - 1)) (the mean of correct[seed, image] - mean)

    The factor corrects for seeds that are drawn from S instead of from all there are, which is too narrow by as much.
    The seeds' means over N resampled images are drawn from the normal distribution with the means and covariances of
    the resampling (central limit theorem): the cost does not grow with the images. Quantiles of few seeds are not
    Student's, so that Student's interval is computed as well.

    Args:
        correct: [S, N] in {-1, 0, 1}, see `difference`; S >= 2.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13; two ways of resampling crossed:
    Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 2007, 1(2), arXiv:0712.1111.
    """
    covariance = np.atleast_2d(np.cov(correct, bias=True)) / correct.shape[1]  # [S, S], of means over resampled images
    return _crossed(correct.mean(1), covariance, level)


def _crossed(values: NDArray[np.float64], covariance: NDArray[np.float64], level: float) -> Estimate:
    """Compute the bootstrap's interval from values of seeds, [S], and their covariance over draws of images, [S, S]."""
    S = len(values)
    normal, seeds = _draws(S)  # [R, S] each
    axes, spreads, _ = np.linalg.svd(covariance)
    images = values + normal @ (axes * np.sqrt(spreads)).T  # [R, S]
    mean = float(values.mean())
    means = mean + sqrt(S / (S - 1)) * ((seeds * images).sum(1) - mean)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(tuple(values.tolist()), mean, float(values.std(ddof=1)), float(low), float(high))


@cache
def _draws(seeds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw standard normal numbers, and each seed's fraction of the drawn seeds; the same for every pair of a study."""
    draw = np.random.default_rng(0)
    normal = draw.standard_normal((RESAMPLES, seeds))
    return normal, draw.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds


def seeds_needed(mean: float, sd: float | None, level: float = LEVEL, power: float = POWER) -> int | None:
    """Return the pairs of trainings after which a two-sided paired t-test detects this difference with this power.

        smallest n with P(|T| > t(n - 1, (1 + level) / 2)) >= power,  T noncentral t, n - 1, sqrt(n) mean / sd

    None without a spread, without a difference, or if more than `MAX_SEEDS` would be needed.
    """
    if sd is None or mean == 0:
        return None
    if sd == 0:
        return 2
    effect = abs(mean) / sd

    def detected(n: int) -> float:
        edge, shift = stats.t.ppf((1 + level) / 2, n - 1), sqrt(n) * effect
        return float(stats.nct.sf(edge, n - 1, shift) + stats.nct.cdf(-edge, n - 1, shift))

    low, high = 1, 2
    while detected(high) < power:
        if high == MAX_SEEDS:
            return None
        low, high = high, min(2 * high, MAX_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detected(middle) >= power else (middle, high)
    return high


@dataclass(frozen=True)
class Interaction:
    """A sum of candidates ("A + B") and its parts, by accuracies of the seeds that all of them have.

    gain(X) = accuracy(X) - accuracy(baseline),   excess(A + B) = gain(A + B) - gain(A) - gain(B)
    """

    name: str
    parts: tuple[str, ...]
    gain: tuple[float, ...]
    parts_gain: tuple[float, ...]

    @property
    def excess(self) -> tuple[float, ...]:
        """Gain beyond that of the parts; negative where they work against each other."""
        return tuple(gain - parts for gain, parts in zip(self.gain, self.parts_gain, strict=True))


def interactions(accuracies: Mapping[str, Mapping[int, float]], baseline: str) -> list[Interaction]:
    """Return every candidate that is a sum of others, in their order."""
    sums = []
    for name in accuracies:
        parts = tuple(part.strip() for part in name.split(" + "))
        if len(parts) < 2 or baseline not in accuracies or not all(part in accuracies for part in parts):
            continue
        seeds = sorted(set.intersection(*(set(accuracies[candidate]) for candidate in (name, baseline, *parts))))
        gains = {
            candidate: [accuracies[candidate][seed] - accuracies[baseline][seed] for seed in seeds]
            for candidate in (name, *parts)
        }
        together = [sum(values) for values in zip(*(gains[part] for part in parts), strict=True)]
        if seeds:
            sums.append(Interaction(name, parts, tuple(gains[name]), tuple(together)))
    return sums


def separated_sums(sums: Sequence[Interaction], overlap: float = 0.0) -> tuple[list[str], list[str]]:
    """Return names of the sums that gain more than their parts beyond chance, and of those that gain less.

    Student's interval of the excess over seeds leaves out zero; all intervals hold together at `LEVEL` (Bonferroni).
    Sums of fewer than `MIN_SEEDS_OF_SUMS` seeds, or without any spread, are in neither list. `overlap` as in
    `estimate`.
    """
    analyzed = [interaction for interaction in sums if len(interaction.excess) >= MIN_SEEDS_OF_SUMS]
    more, less = list[str](), list[str]()
    for interaction in analyzed:
        over_seeds = estimate(interaction.excess, 1 - (1 - LEVEL) / len(analyzed), overlap=overlap)
        if round(over_seeds.sd or 0.0, 9) and over_seeds.low is not None and over_seeds.high is not None:
            more += [interaction.name] if over_seeds.low > 0 else []
            less += [interaction.name] if over_seeds.high < 0 else []
    return more, less
