# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals have their coverage, and the number of seeds is that of textbooks; sums of methods against their
parts, students against their teachers.
"""

import numpy as np
import pytest
from scipy import stats

from viticulture.report.study_charts import families, family, sums_sentence, teachers_of
from viticulture.study.statistics import (
    Interaction,
    bootstrap,
    difference,
    difference_of_folds,
    estimate,
    estimate_accuracy,
    estimate_resampled,
    interactions,
    level_of_analysis,
    next_level,
    seeds_needed,
    separated_sums,
)


def test_the_interval_of_a_mean_is_students() -> None:
    """Student 1908 by scipy's t-test, and by hand for three values: 4.303 sd / sqrt(3)."""
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
    """Level 0.05, power 0.8: Cohen's small, medium and large effect, and 1, as G*Power 3.1 prints them."""
    assert seeds_needed(effect, 1.0) == pairs
    assert seeds_needed(-3 * effect, 3.0) == pairs


def test_the_seeds_of_the_next_analysis_use_its_level() -> None:
    assert next_level(level_of_analysis(1)) == pytest.approx(level_of_analysis(2))
    assert seeds_needed(1.0, 1.0, level_of_analysis(2)) == 16
    assert seeds_needed(0.1, 1.0) == 787
    assert seeds_needed(0.08, 1.0) is None


def test_no_seeds_are_recommended_without_a_spread() -> None:
    assert seeds_needed(0.1, None) is None
    assert seeds_needed(0.0, 0.1) is None
    assert seeds_needed(1e-6, 1.0) is None
    assert seeds_needed(0.1, 0.0) == 2


def test_the_bootstrap_draws_seeds_and_images() -> None:
    """Against a plain loop that draws rows and columns with replacement, as Owen 2007 describes it."""
    draw = np.random.default_rng(0)
    hard = draw.random(400) < 0.2  # images that all seeds agree about
    right = np.stack([(hard | (draw.random(400) < 0.05)) - (draw.random(400) < 0.04).astype(int) for _ in range(4)])
    right = right.astype(np.int8)
    found = bootstrap(right)
    means = [right[draw.integers(0, 4, 4)][:, draw.integers(0, 400, 400)].mean() for _ in range(4000)]
    low, high = np.quantile(means, [0.025, 0.975])
    assert found.mean == pytest.approx(right.mean())
    assert found.low is not None
    assert found.high is not None
    wider = (4 / 3) ** 0.5  # four seeds
    assert found.mean - found.low == pytest.approx(wider * (found.mean - low), abs=0.005)  # a tenth of the width
    assert found.high - found.mean == pytest.approx(wider * (high - found.mean), abs=0.005)
    assert bootstrap(right) == found  # the same at every call


def test_paired_seeds_separate_what_unpaired_ones_cannot() -> None:
    theirs = [0.70, 0.80, 0.90]
    ours = [0.706, 0.804, 0.905]
    found = difference(ours, theirs)
    assert found.mean == pytest.approx(0.005)
    assert found.separates()
    assert found.seeds_needed() == 3
    assert not difference([0.8], [0.7]).separates()  # a single seed says nothing


def test_both_intervals_must_exclude_zero() -> None:
    right = np.zeros((10, 10), np.int8)
    right[:, 0] = 1
    found = difference([0.5, 0.6] * 5, [0.4, 0.5] * 5, right)
    assert found.over_seeds.low is not None
    assert found.over_seeds.low > 0
    assert not found.separates()
    assert found.interval is not None
    assert found.interval[0] <= 0
    assert difference([0.5, 0.6] * 5, [0.4, 0.5] * 5, np.repeat(right, 100, 1)).separates()


def test_intervals_have_their_coverage() -> None:
    """Of 400 experiments with 3 seeds, 95 % of Student's intervals hold the mean (99 % bounds: 91.9 to 97.8 %)."""
    draw = np.random.default_rng(1)
    found = [estimate(draw.normal(0.3, 0.02, 3).tolist()) for _ in range(400)]
    inside = np.mean([one.low <= 0.3 <= one.high for one in found if one.low is not None and one.high is not None])
    assert 0.919 <= inside <= 0.978


@pytest.mark.parametrize("alike", [True, False])
def test_two_seeds_that_agree_prove_nothing(alike: bool) -> None:
    right = np.zeros((2, 200), np.int8)
    right[0, :6] = 1
    right[1, :13], right[1, 13:20] = 1, -1
    right[1] = right[0] if alike else np.roll(right[1], 50)
    assert right.mean(1) == pytest.approx([0.03, 0.03])
    found = difference([0.53, 0.53], [0.50, 0.50], right)
    assert not found.separates()
    assert found.over_seeds.low is not None
    assert found.over_seeds.low < -0.05
    assert not difference([0.53, 0.53], [0.50, 0.50]).separates()
    assert not difference([0.53] * 3, [0.50] * 3).separates()  # no spread at all, and nothing known of images


def test_the_minimum_width_is_mcnemars() -> None:
    """Of 100 images 12 differ: one difference is spread by sqrt(12) / 100 where both are equally good."""
    right = np.zeros((3, 100), np.int8)
    right[:, :8], right[:, 8:12] = 1, -1
    found = difference([0.54] * 3, [0.50] * 3, right)
    assert found.over_seeds.high is not None
    assert found.over_seeds.high - 0.04 == pytest.approx(4.302653 * 12**0.5 / 100 / 3**0.5, rel=1e-6)
    assert found.seeds_needed() == seeds_needed(0.04, 12**0.5 / 100)
    wide = difference([0.2, 0.5, 0.9], [0.5] * 3, right)
    assert (wide.over_seeds.low, wide.over_seeds.high) == (
        estimate(wide.over_seeds.values).low,
        estimate(wide.over_seeds.values).high,
    )


def test_an_accuracy_is_limited_by_its_images() -> None:
    """Ten seeds of 80 % on 100 images: Agresti and Coull 1998 give 71.0 to 86.7 %."""
    found = estimate_accuracy([0.8] * 10, 100)
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == (pytest.approx(0.7104, abs=2e-4), pytest.approx(0.8674, abs=2e-4))
    assert estimate_accuracy([1.0] * 3, 100).low == pytest.approx(0.956, abs=0.001)
    of_20 = [estimate_accuracy([right / 20] * 2, 20) for right in range(21)]
    covering = [right for right, each in enumerate(of_20) if (each.low or 0) <= 0.8 <= (each.high or 1)]
    assert stats.binom.pmf(covering, 20, 0.8).sum() > 0.95
    assert estimate_accuracy([0.7, 0.8, 0.9], 10**9) == estimate([0.7, 0.8, 0.9])
    assert estimate_accuracy([0.7, 0.8], None) == estimate([0.7, 0.8])
    assert estimate_accuracy([0.7], 100).low is None


def test_all_interim_analyses_together_spend_five_percent() -> None:
    spent = [1 - level_of_analysis(number) for number in range(1, 30)]
    assert sum(spent) == pytest.approx(0.05)
    assert spent[0] == pytest.approx(0.0375)


def test_intervals_over_folds_have_their_coverage() -> None:
    """Nadeau and Bengio 2003: values of K folds correlate by tested / all images, 1 / K; 4,000 draws."""
    folds, trials = 5, 4000
    draw = np.random.default_rng(0)
    shared, own = draw.standard_normal((trials, 1)), draw.standard_normal((trials, folds))
    values = (1 / folds) ** 0.5 * shared + (1 - 1 / folds) ** 0.5 * own

    def covered(overlap: float) -> float:
        found = [estimate(row.tolist(), overlap=overlap) for row in values]
        return float(np.mean([one.low < 0 < one.high for one in found if one.low is not None and one.high is not None]))

    assert covered(1 / (folds - 1)) == pytest.approx(0.95, abs=0.015), "four standard errors of 4,000 draws"
    assert covered(0.0) < 0.88


def test_disjoint_folds_are_compared_over_all_images() -> None:
    """By hand: equal folds are one test of all images (McNemar's, Wald's form)."""
    draw = np.random.default_rng(0)
    folds = [draw.choice(np.array([-1, 0, 0, 1, 1], dtype=np.int8), 400) for _ in range(5)]
    ours, theirs = [0.5 + float(fold.mean()) for fold in folds], [0.5] * 5
    found = difference_of_folds(ours, theirs, folds, 0.25)
    every = np.concatenate(folds)
    assert found.over_images is not None
    assert found.over_images.low is not None
    assert found.mean == pytest.approx(every.mean())
    assert found.over_images.low == pytest.approx(every.mean() - 1.96 * every.std() / 2000**0.5, rel=1e-2)
    assert found.floor == pytest.approx((np.abs(every).mean() / 400) ** 0.5)  # McNemar's of one fold
    plain = estimate([a - b for a, b in zip(ours, theirs, strict=True)], floor=found.floor)
    assert found.over_seeds.high is not None
    assert plain.high is not None
    wider = (found.over_seeds.high - found.mean) / (plain.high - found.mean)
    assert wider == pytest.approx((0.45 / 0.2) ** 0.5)
    assert found.seeds_needed() is None
    uneven = difference_of_folds(ours, theirs, [folds[0][:399], *folds[1:]], 0.25)
    assert uneven.separates()
    assert difference_of_folds(ours, theirs, None, 0.25).over_images is None


def test_folds_widen_the_interval_of_ap_as_that_of_accuracy() -> None:
    """Nadeau and Bengio's factor, sqrt(1 / n + overlap) for sqrt(1 / n)."""
    values = [0.50, 0.55, 0.60]
    wide, known = estimate_resampled(values, None, overlap=0.5), estimate(values, overlap=0.5)
    assert (wide.low, wide.high) == (known.low, known.high)
    narrow = estimate_resampled(values, None)
    assert wide.high is not None
    assert narrow.high is not None
    assert (wide.high - wide.mean) / (narrow.high - narrow.mean) == pytest.approx((1 + 3 * 0.5) ** 0.5)


def test_a_sums_excess_is_its_gain_minus_its_parts_gains() -> None:
    """By hand; seed 2 is missing of a part."""
    accuracies = {
        "labels": {0: 0.5, 1: 0.4, 2: 0.3},
        "a": {0: 0.6, 1: 0.6, 2: 0.9},
        "b": {0: 0.45, 1: 0.5},
        "a + b": {0: 0.65, 1: 0.6, 2: 0.9},
        "a + b + a": {1: 0.9},
        "a + c": {0: 1.0},
    }
    found = {one.name: one for one in interactions(accuracies, "labels")}
    assert list(found) == ["a + b", "a + b + a"]
    assert found["a + b"].gain == pytest.approx((0.15, 0.2))
    assert found["a + b"].parts_gain == pytest.approx((0.05, 0.3))
    assert found["a + b"].excess == pytest.approx((0.1, -0.1))
    assert found["a + b + a"].excess == pytest.approx((0.5 - 0.2 - 0.1 - 0.2,))
    assert interactions(accuracies, "other") == []


def test_a_sums_excess_has_an_interval_over_seeds() -> None:
    """Student's t(2) at 1 - 0.05 / 2 each: 6.21; of 0.10, 0.11, 0.12 it is 0.11 -+ 0.036."""

    def of(name: str, *excess: float) -> Interaction:
        return Interaction(name, ("a", "b"), excess, (0.0,) * len(excess))

    sure, unsure = of("sure", 0.10, 0.11, 0.12), of("unsure", 0.0, 0.11, 0.22)
    assert separated_sums([sure, unsure]) == (["sure"], [])
    assert separated_sums([of("worse", -0.10, -0.11, -0.12), unsure]) == ([], ["worse"])
    edge = of("edge", 0.10, 0.12, 0.155)  # alone it is told, t(2) at 0.975: 4.30 0.0278 / sqrt(3) = 0.069
    assert separated_sums([edge])[0] == ["edge"]
    assert separated_sums([edge, *(unsure,) * 20]) == ([], [])
    assert separated_sums([of("two", 0.1, 0.11), of("alike", 0.1, 0.1, 0.1)]) == ([], [])
    assert "More than its parts beyond chance (95 % for all 2 sums together" in sums_sentence([sure, unsure])
    assert ": none." in sums_sentence([unsure])
    assert "At least 3 seeds are needed" in sums_sentence([of("two", 0.1, 0.11)])


def test_students_of_one_teacher_are_paired_with_it() -> None:
    one, start = {"guides.logits": {"teacher": "row:t"}}, {"student.init": "row:t"}
    two = {"guides.co_advise.teachers": {"conv": "row:t", "inv": "row:u"}}
    same = {"guides.a.teacher": "row:t", "guides.b.teacher": "row:t"}
    file = {"guides.logits.teacher": "runs/t"}
    every = {
        "one": one,
        "start": start,
        "two": two,
        "same": same,
        "file": file,
        "t": {},
        "u": {},
        "x": {"guides.l.t": "row:gone"},
    }
    assert teachers_of(every) == {"one": "t", "same": "t"}
    assert [family(name) for name in ("resnet18", "regnety_006", "rednet26", "efficientnet_b3")] == [
        "resnet", "regnety", "rednet", "efficientnet",
    ]  # fmt: skip
    assert families(["resnet18", "rednet26", "resnet50"]) == ["resnet", "rednet"]
