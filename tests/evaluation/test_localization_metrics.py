# SPDX-License-Identifier: Apache-2.0
"""Boxes out of attention, and MaxBoxAcc: Choe et al., arXiv:2001.07437."""

import numpy as np
import pytest
import torch

from viticulture.evaluation.localization.metrics import (
    AS_EVALUATED,
    PUBLISHED,
    THRESHOLDS,
    Protocol,
    best_overlaps,
    component_boxes,
    max_box_accuracy,
    score_maps,
)
from viticulture.scores.objects import box_overlaps

SCORE = np.array(  # two parts at 0.5: six pixels that hang together by a corner, and two that hold the peak
    [
        [0.0, 0.5, 0.5, 0.0, 0.0, 0.0],
        [0.0, 0.5, 0.5, 0.0, 0.0, 0.9],
        [0.0, 0.0, 0.0, 0.6, 0.0, 1.0],
        [0.0, 0.0, 0.0, 0.6, 0.0, 0.0],
    ]
)


def boxes(*rows: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(rows, dtype=np.float64)


def test_a_box_encloses_the_largest_connected_part() -> None:
    np.testing.assert_array_equal(component_boxes(SCORE, 0.5), boxes((1, 0, 4, 4), (5, 1, 6, 3)))
    np.testing.assert_array_equal(component_boxes(SCORE, 0.6), boxes((5, 1, 6, 3), (3, 2, 4, 4)))
    np.testing.assert_array_equal(component_boxes(SCORE, 1.0), boxes((5, 2, 6, 3)))
    np.testing.assert_array_equal(component_boxes(SCORE, 0.0), boxes((0, 0, 6, 4)))
    assert component_boxes(SCORE, 1.1).shape == (0, 4)
    diagonal = np.zeros((5, 9))
    diagonal[range(4), range(4)] = 1
    diagonal[2:, 6:] = 1  # nine pixels in a box of nine, after four in a box of sixteen
    np.testing.assert_array_equal(component_boxes(diagonal, 0.5), boxes((6, 2, 9, 5), (0, 0, 4, 4)))


def test_overlap_is_shared_area_over_covered_area() -> None:
    first = boxes((0, 0, 4, 2), (10, 10, 12, 13))
    second = boxes((0, 0, 4, 2), (2, 0, 6, 2), (2, 1, 4, 5), (4, 0, 5, 2))
    expected = [[1, 4 / 12, 2 / 14, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(box_overlaps(first, second), expected, rtol=1e-15)
    np.testing.assert_array_equal(box_overlaps(first, second), box_overlaps(3 * first + 7, 3 * second + 7))


def test_any_true_box_may_be_found_by_the_largest_part_or_by_any() -> None:
    true = boxes((5, 1, 6, 3), (0, 0, 6, 2))
    found = best_overlaps(SCORE, true, Protocol("mine", False, np.array([0.0, 0.5, 1.0, 1.5])))
    largest, peak = 6 / 18, 1 / 2
    np.testing.assert_allclose(found, [[12 / 24, largest, peak, 0], [12 / 24, 1, peak, 0]])


def test_each_overlap_has_its_best_threshold_over_the_set() -> None:
    """Shares at 0.3 are 2/4, 3/4, 0; at 0.5: 2/4, 1/4, 0; at 0.7: 0, 1/4, 0."""
    found = np.array([[0.5, 0.3, 0.0], [0.6, 0.3, 0.0], [0.1, 0.7, 0.0], [0.0, 0.1, 0.29]])
    accuracy = max_box_accuracy(found, np.array([0.1, 0.2, 0.3]))
    assert accuracy.accuracies == (0.75, 0.5, 0.25)
    assert accuracy.thresholds == (0.2, 0.1, 0.2)
    assert accuracy.mean == pytest.approx(0.5)


def test_threshold_zero_is_a_box_around_everything() -> None:
    draw = np.random.default_rng(0)
    true = boxes((1, 1, 8, 8))
    for score in (draw.random((8, 8)), np.zeros((8, 8))):
        score = score - score.min()
        assert best_overlaps(score, true, AS_EVALUATED)[0, 0] == 49 / 64
    assert THRESHOLDS[0] == 0
    assert len(set(THRESHOLDS)) == 100


def test_a_bright_rectangle_is_found_exactly() -> None:
    attention = torch.full((1, 2, 12, 16), 1e-4)
    attention[..., 3:9, 5:14] = 1.0
    attention /= attention.sum((-2, -1), keepdim=True)
    score = score_maps([attention], (12, 16))[0].numpy()
    true = boxes((5, 3, 14, 9))
    np.testing.assert_array_equal(component_boxes(score, 0.5), true)
    assert max_box_accuracy(best_overlaps(score, true)[:1]).accuracies == (1, 1, 1)


def test_every_map_counts_once_whatever_its_grid() -> None:
    """Two fine heads attend to the left and a coarse one to the right: left gets two thirds."""
    fine, coarse = torch.zeros(2, 2, 4, 8), torch.zeros(2, 1, 2, 2)
    fine[..., :4], coarse[..., 1] = 1 / 16, 1 / 2
    fine[1], coarse[1] = 1 / 32, 1 / 4  # the second image is flat
    scores = score_maps([fine, coarse], (4, 8))
    resized = torch.nn.functional.interpolate(torch.tensor([[[[0.0, 2.0]] * 2]]), (4, 8), mode="bicubic")[0, 0]
    mean = (2 * torch.tensor([[2.0] * 4 + [0.0] * 4]) + resized) / 3
    torch.testing.assert_close(scores[0], (mean - mean.min()) / (mean.max() - mean.min()))
    assert (scores[1] == 0).all()


def test_scores_do_not_depend_on_the_rest_of_the_batch_and_span_zero_to_one() -> None:
    maps = [
        torch.rand(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1, 5, 9])[:, None, None, None]
    ]
    maps = [layer / layer.sum((-2, -1), keepdim=True) ** 0.5 for layer in maps]
    scores = score_maps(maps, (10, 12))
    torch.testing.assert_close(scores[1:2], score_maps([maps[0][1:2]], (10, 12)))
    assert scores.amin((1, 2)).tolist() == [0, 0, 0]
    assert scores.amax((1, 2)).tolist() == [1, 1, 1]


def test_the_published_masks_are_quantized() -> None:
    """floor(255 s) > floor(255 t), t = 0, 0.001, ..., 0.999, as the authors make them."""
    score = np.random.default_rng(3).random((7, 9)).round(2)
    score[0, 0], score[6, 8] = 0, 1
    true, shares = boxes((2, 1, 7, 5)), best_overlaps(score, boxes((2, 1, 7, 5)), PUBLISHED)
    assert shares.shape == (2, 1000)
    for place in (0, 1, 3, 4, 200, 499, 600, 998, 999):
        mask = (255 * score).astype(np.uint8) > int(255 * place / 1000)
        parts = component_boxes(mask.astype(float), 0.5)
        overlaps = box_overlaps(parts, true).max(1) if len(parts) else np.zeros(1)
        assert tuple(shares[:, place]) == (overlaps[0], overlaps.max())
    assert (best_overlaps(np.zeros((7, 9)), true, PUBLISHED) == 0).all(), "a flat map has no mask"
