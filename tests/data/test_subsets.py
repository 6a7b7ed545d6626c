# SPDX-License-Identifier: Apache-2.0
"""What is held out and what is learned from."""

import numpy as np
import pytest

from viticulture.data.subsets import bootstrapping, count_of_each, fraction_of_each, holdout

UNEVEN = np.repeat(np.arange(6), [1, 2, 3, 10, 57, 400])
UNEVEN = UNEVEN[np.random.default_rng(0).permutation(len(UNEVEN))]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.2, 0.5, 0.9, 1 - 1e-13])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_holding_out_divides_every_class_in_proportion(fraction: float, seed: int) -> None:
    """Kept and held together are everything, once; per class, held differs from fraction * n by less than one image,
    and one image at least stays; over all, round(fraction * N) are held where no class forbids it.

    Fails if images are lost or in both parts, a class is emptied, or rounding each class loses (2,000 small classes,
    none of which gives any) or adds images.
    """
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
    """Fails if the choice is the same for all seeds, changes between calls, or uses numpy's global state."""
    first = holdout(UNEVEN, 0.3, 0)[1]
    np.random.seed(5)
    np.testing.assert_array_equal(first, holdout(UNEVEN, 0.3, 0)[1])
    assert not np.array_equal(first, holdout(UNEVEN, 0.3, 1)[1])


def test_another_class_leaves_the_choices_of_the_others() -> None:
    """Whole numbers of images, so that no class gives for another.

    Fails if all classes share one random stream, or each draws from a copy of it (all would then choose alike).
    """
    labels = np.repeat([0, 1], 10)
    more = np.repeat([0, 1, 2], 10)
    np.testing.assert_array_equal(holdout(labels, 0.2, 3)[1], holdout(more, 0.2, 3)[1][:4])
    np.testing.assert_array_equal(count_of_each(labels, 4, 3), count_of_each(more, 4, 3)[:8])
    assert (count_of_each(labels, 4, 3)[:4] + 10).tolist() != count_of_each(labels, 4, 3)[4:].tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_larger_subsets_contain_smaller_ones(seed: int) -> None:
    """Fails if each fraction is drawn anew; a curve over fractions would then mix two effects."""
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


def test_every_image_is_as_likely_as_another() -> None:
    """Each of 10 images is drawn in 3 of 10 cases. Fails if the first images are preferred, or one never comes.

    With 2,000 seeds a share's standard deviation is sqrt(.3 * .7 / 2000) = 0.0102; five of them are allowed.
    """
    labels = np.zeros(10, dtype=np.int64)
    hits = sum(np.isin(np.arange(10), count_of_each(labels, 3, seed)) for seed in range(2000))
    np.testing.assert_allclose(hits / 2000, 0.3, atol=0.051)


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.1, 0.5, 1.0])
def test_the_paper_s_subset_is_its_rule_written_plainly(fraction: float) -> None:
    """Bootstrapping ViTs: per class, default_rng(class index) shuffles the files, the first round(p n) are kept.

    Written here over lists of names, as the authors' code does. Fails if a run's seed has a say, every class draws from
    one stream, labels are shifted by one, halves are rounded up (round(0.1 * 25) is 2), or an image is kept for a class
    that should be left with none.
    """
    labels = np.repeat(np.arange(4), [3, 25, 130, 15])
    kept: list[int] = []
    for number in range(4):
        names = [i for i in range(len(labels)) if labels[i] == number]
        np.random.default_rng(seed=number).shuffle(names)
        kept += names[: round(fraction * len(names))]
    np.testing.assert_array_equal(bootstrapping(labels, fraction), sorted(kept))
    mixed = np.random.default_rng(9).permutation(labels)
    assert np.bincount(mixed[bootstrapping(mixed, 0.1)], minlength=4).tolist() == [0, 2, 13, 2]


def test_nothing_from_nothing() -> None:
    """No images give empty parts, not an error from inside numpy."""
    none = np.empty(0, dtype=np.int64)
    assert [len(part) for part in holdout(none, 0.2, 0)] == [0, 0]
    assert len(fraction_of_each(none, 0.2, 0)) == len(count_of_each(none, 2, 0)) == len(bootstrapping(none, 0.2)) == 0
