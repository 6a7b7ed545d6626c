# SPDX-License-Identifier: Apache-2.0
"""Attention distance and entropy are those of attention among patches, in pixels and nats."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from viticulture.analysis.attention_statistics import (
    AttentionStatistics,
    attention_distance,
    attention_entropy,
    grid_distances,
    patch_attention,
    spacings,
    uniform_distance,
)
from viticulture.analysis.running_mean import RunningMean
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import AttentionReading, Taps

Load = Callable[[str], Any]


class Scores(AttentionReading):
    """A reading whose scores are given."""

    def scores(self) -> Tensor:
        return self.qkv


def reading(scores: Tensor, grid: tuple[int, int], prefix: int = 1) -> AttentionReading:
    return Scores(scores, None, prefix, math.prod(grid), grid, prefix > 0)


def random_scores(images: int, tokens: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(images, 3, tokens, tokens, generator=torch.Generator().manual_seed(images))


def test_they_are_the_authors(golden: Load) -> None:
    """Both per head, unweighted mean over two batches, distances times 14; to 1e-5, for log(a + 1e-6) against log a.

    Catches: the class token dropped after the softmax or kept, its row kept, a base-2 logarithm, squared or block
    distances, a mean over keys, softmax over queries.
    """
    data = golden("mae_attention_stats")
    batches = [patch_attention(reading(data[f"in/scores_batch{k}"], (4, 4))) for k in (1, 2)]
    entropy = torch.stack([attention_entropy(batch).mean(0) for batch in batches]).mean(0)
    distance = torch.stack([attention_distance(batch, (4, 4), 14).mean(0) for batch in batches]).mean(0)
    torch.testing.assert_close(14 * grid_distances((4, 4)), data["out/dist_matrix"])
    torch.testing.assert_close(entropy, data["out/entropy"], rtol=0, atol=2e-5)
    torch.testing.assert_close(distance, data["out/distance"], rtol=1e-5, atol=0)


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (1, 7)])
def test_uniform_attention_has_the_closed_form(grid: tuple[int, int]) -> None:
    """H = log P and d = the sum over offsets; on a line of C patches that is (C^2 - 1) / 3C.

    Catches: a transposed grid, spacing squared or lost, distances of rows alone.
    """
    tokens = 1 + math.prod(grid)
    attention = patch_attention(reading(torch.zeros(2, 3, tokens, tokens), grid))
    expected = torch.full((2, 3), uniform_distance(grid, 16.0))
    torch.testing.assert_close(attention_distance(attention, grid, 16.0), expected)
    torch.testing.assert_close(attention_entropy(attention), torch.full((2, 3), math.log(tokens - 1)))
    if grid[0] == 1:
        assert uniform_distance(grid, 16.0) == pytest.approx(16 * (grid[1] ** 2 - 1) / (3 * grid[1]))


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1000.0])
def test_entropy_lies_between_zero_and_log_of_the_patches(size: float) -> None:
    """Also where shares underflow to 0. Catches: 0 log 0 = nan, a sign, a log of other than the patches' number."""
    entropy = attention_entropy(patch_attention(reading(random_scores(4, 17, size), (4, 4))))
    assert (entropy >= 0).all()
    assert (entropy <= math.log(16) + 1e-6).all()


def test_a_head_that_looks_one_patch_to_the_right_is_one_patch_away() -> None:
    """All but the last column look right: d = (C - 1) / C patches, on a rectangular grid. Catches: swapped axes."""
    grid, spacing = (2, 5), 8.0
    sharp = torch.full((1, 1, 10, 10), -1e4)
    for query in range(10):
        sharp[..., query, query + (query % 5 < 4)] = 0.0
    attention = patch_attention(reading(sharp, grid, prefix=0))
    assert attention_distance(attention, grid, spacing).item() == pytest.approx(spacing * 4 / 5)
    assert attention_entropy(attention).item() == 0.0


def test_every_image_counts_alike_whatever_the_batches() -> None:
    """Batches of 1, 2 and 5 images = one of 8. Catches: a mean over batches, a batch counted once."""
    parts = [random_scores(count, 10) for count in (1, 2, 5)]
    streamed, whole = AttentionStatistics(), AttentionStatistics()
    for part in parts:
        streamed.add([reading(part, (3, 3))], [4.0])
    whole.add([reading(torch.cat(parts), (3, 3))], [4.0])
    torch.testing.assert_close(streamed.entropy, whole.entropy, rtol=1e-6, atol=0)
    torch.testing.assert_close(streamed.distance, whole.distance, rtol=1e-6, atol=0)


def test_a_students_layers_are_measured_in_its_own_pixels() -> None:
    """A ViT with zero queries attends to all alike, in every head and layer. Catches: a patch size lost or doubled."""
    torch.manual_seed(0)
    student = create_student("vit_nano", DataSpec(("a", "b"), (8, 12), (0.5,) * 3, (0.5,) * 3), 2, {}).eval()
    taps = Taps(student, frozenset({"attention"}))
    assert taps.layout is not None
    for name in taps.layout.attention:
        torch.nn.init.zeros_(student.get_parameter(f"{name}.qkv.weight"))
    statistics = AttentionStatistics()
    with torch.inference_mode():
        statistics.add(taps(torch.randn(2, 3, 8, 12)).attention, spacings(taps.layout))
    assert len(statistics.distance) == len(taps.layout.heads)
    for distance, heads in zip(statistics.distance, taps.layout.heads, strict=True):
        expected = torch.full((heads,), uniform_distance((4, 6), 2.0), dtype=torch.float64)
        torch.testing.assert_close(distance, expected, rtol=1e-5, atol=0)


def test_masked_images_and_no_images_are_refused() -> None:
    with pytest.raises(UserError, match="none of their patches masked"):
        attention_distance(torch.full((1, 1, 4, 4), 0.25), (3, 3), 1.0)
    with pytest.raises(UserError, match="no mean of no images"):
        RunningMean().value()
