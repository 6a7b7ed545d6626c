# SPDX-License-Identifier: Apache-2.0
"""Held-out images and training subsets."""

import numpy as np
import pytest

from viticulture.data.subsets import bootstrapping, count_of_each, fraction_of_each, holdout

UNEVEN = np.repeat(np.arange(6), [1, 2, 3, 10, 57, 400])
UNEVEN = UNEVEN[np.random.default_rng(0).permutation(len(UNEVEN))]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.2, 0.5, 0.9, 1 - 1e-13])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_holding_out_is_stratified(fraction: float, seed: int) -> None:
    """Per class within one image of fraction * n; round(fraction * N) over all."""
    stay, held = holdout(UNEVEN, fraction, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([stay, held])), np.arange(len(UNEVEN)))
    counts, given = np.bincount(UNEVEN), np.bincount(UNEVEN[held], minlength=6)
    assert (np.bincount(UNEVEN[stay]) >= 1).all()
    assert (given <= np.ceil(counts * fraction)).all()
    assert (given >= np.minimum(np.floor(counts * fraction), counts - 1)).all()
    many = np.repeat(np.arange(2000), 4)
    assert len(holdout(many, 0.1, seed)[1]) == 800
    assert len(holdout(np.array([0, 1, 2]), fraction, seed)[1]) == 0


def test_holding_out_depends_on_the_seed_alone() -> None:
    first = holdout(UNEVEN, 0.3, 0)[1]
    np.random.seed(5)
    np.testing.assert_array_equal(first, holdout(UNEVEN, 0.3, 0)[1])
    assert not np.array_equal(first, holdout(UNEVEN, 0.3, 1)[1])


def test_each_class_is_chosen_independently() -> None:
    labels = np.repeat([0, 1], 10)
    more = np.repeat([0, 1, 2], 10)
    np.testing.assert_array_equal(holdout(labels, 0.2, 3)[1], holdout(more, 0.2, 3)[1][:4])
    np.testing.assert_array_equal(count_of_each(labels, 4, 3), count_of_each(more, 4, 3)[:8])
    assert (count_of_each(labels, 4, 3)[:4] + 10).tolist() != count_of_each(labels, 4, 3)[4:].tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_larger_subsets_contain_smaller_ones(seed: int) -> None:
    previous: set[int] = set()
    for fraction in (0.01, 0.1, 0.3, 0.5, 1.0):
        rows = set(fraction_of_each(UNEVEN, fraction, seed).tolist())
        assert previous <= rows
        counts = np.bincount(UNEVEN[list(rows)], minlength=6)
        np.testing.assert_array_equal(counts, np.maximum(1, np.floor(np.bincount(UNEVEN) * fraction + 0.5 + 1e-9)))
        previous = rows
    assert previous == set(range(len(UNEVEN)))
    previous = set()
    for count in (1, 2, 20, 1000):
        rows = set(count_of_each(UNEVEN, count, seed).tolist())
        assert previous <= rows
        np.testing.assert_array_equal(np.bincount(UNEVEN[list(rows)]), np.minimum(np.bincount(UNEVEN), count))
        previous = rows


def test_every_image_is_equally_likely() -> None:
    """With 2,000 seeds a share's standard deviation is sqrt(.3 * .7 / 2000) = 0.0102; five of them are allowed."""
    labels = np.zeros(10, dtype=np.int64)
    hits = sum(np.isin(np.arange(10), count_of_each(labels, 3, seed)) for seed in range(2000))
    np.testing.assert_allclose(hits / 2000, 0.3, atol=0.051)


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.1, 0.5, 1.0])
def test_the_paper_s_subset_follows_its_rule(fraction: float) -> None:
    """Bootstrapping ViTs: per class, default_rng(class index) shuffles, the first round(p n) are used."""
    labels = np.repeat(np.arange(4), [3, 25, 130, 15])
    kept: list[int] = []
    for number in range(4):
        names = [i for i in range(len(labels)) if labels[i] == number]
        np.random.default_rng(seed=number).shuffle(names)
        kept += names[: round(fraction * len(names))]
    np.testing.assert_array_equal(bootstrapping(labels, fraction), sorted(kept))
    mixed = np.random.default_rng(9).permutation(labels)
    assert np.bincount(mixed[bootstrapping(mixed, 0.1)], minlength=4).tolist() == [0, 2, 13, 2]


def test_no_images_give_empty_parts() -> None:
    none = np.empty(0, dtype=np.int64)
    assert [len(part) for part in holdout(none, 0.2, 0)] == [0, 0]
    assert len(fraction_of_each(none, 0.2, 0)) == len(count_of_each(none, 2, 0)) == len(bootstrapping(none, 0.2)) == 0


def bursts(classes: int, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and near-duplicates of so many bursts of each class."""
    labels = np.repeat(np.arange(classes), count * length)
    return labels, np.repeat(np.arange(classes * count), length)


@pytest.mark.parametrize("seed", range(5))
def test_near_duplicates_are_held_out_together(seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 4, 200)
    copies = np.full(200, -1)
    chosen = draw.permutation(200)[:75].reshape(25, 3)
    for number, rows in enumerate(chosen):
        copies[rows[: 2 + number % 2]] = number
    plain, held = holdout(labels, 0.2, seed)[1], holdout(labels, 0.2, seed, copies)[1]
    assert np.bincount(labels[held], minlength=4).tolist() == np.bincount(labels[plain], minlength=4).tolist()
    stay = np.setdiff1d(np.arange(200), held)
    assert not set(copies[held]) & set(copies[stay]) - {-1}
    assert (copies[held] >= 0).any()
    assert holdout(labels, 0.2, seed, np.full(200, -1))[1].tolist() == plain.tolist()
    alone = np.isin(held, plain) & (copies[held] < 0)
    assert alone.sum() >= len(held) // 2  # most of the choice is what it was


def test_one_of_a_few_long_bursts_is_held_out_whole() -> None:
    labels, copies = bursts(classes=3, count=3, length=10)
    held = holdout(labels, 0.2, 0, copies)[1]
    assert np.bincount(labels[held]).tolist() == [10, 10, 10]
    assert len(set(copies[held])) == 3


def test_a_class_that_is_one_video_holds_out_one_run_of_frames() -> None:
    labels, copies = bursts(classes=4, count=1, length=72)
    for copy in (copies, np.zeros_like(copies)):
        for seed in range(5):
            held = holdout(labels, 0.2, seed, copy)[1]
            assert set(np.bincount(labels[held]).tolist()) <= {14, 15}
            assert sum(np.diff(held) > 1) == 3, "a run of each class"
    assert len({tuple(holdout(labels, 0.2, seed, copies)[1].tolist()) for seed in range(5)}) > 1
