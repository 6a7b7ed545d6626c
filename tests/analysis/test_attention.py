# SPDX-License-Identifier: Apache-2.0
"""Attention maps and statistics are those of the student's attention, in pixels and nats."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from refusals import refused
from viticulture.analysis.attention import (
    AttentionStatistics,
    RunningMean,
    attention_distance,
    attention_entropy,
    class_map,
    default_layers,
    grid_distances,
    head_token_maps,
    mean_attention,
    patch_attention,
    patch_spacings,
    uniform_distance,
)
from viticulture.analysis.galleries import heat
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import AttentionReading, Taps

Load = Callable[[str], Any]
TASK = DataSpec(("a", "b"), (8, 12), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
GRID = (4, 6)


def attention_of(name: str, **options: object) -> list[AttentionReading]:
    torch.manual_seed(0)
    student = create_student(name, TASK, 2, options).eval()
    images = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return Taps(student, frozenset({"attention"}))(images).attention


def fused_attention(reading: AttentionReading) -> tuple[Tensor, Tensor]:
    """Return values, and the output of fused attention."""
    v = torch.unflatten(reading.qkv, -1, (3, reading.layer.num_heads, -1))[:, :, 2].transpose(1, 2)
    return v, F.scaled_dot_product_attention(reading.queries(), reading.keys(), v)


@pytest.mark.parametrize(
    ("name", "options"), [("vit_nano", {}), ("dhvt_tiny_cifar_patch2", {"embed_dim": 32, "depth": 2})]
)
def test_maps_are_the_attention_that_mixes_values(name: str, options: dict[str, int]) -> None:
    """Mixing values by the maps equals fused attention, softmax(q k^T / sqrt d) v; rows sum to 1."""
    for reading in attention_of(name, **options):
        v, fused = fused_attention(reading)
        torch.testing.assert_close(reading.scores().softmax(-1) @ v, fused, rtol=1e-4, atol=1e-5)
        every = mean_attention(reading)
        torch.testing.assert_close(every.sum(-1), torch.ones_like(every[..., 0]))
        patches = every[:, 0, reading.prefix : reading.prefix + reading.patches]
        assert class_map(reading, GRID).shape == (2, *GRID)
        if reading.layer.num_heads == 1:  # with several heads, a mean of shares is not a share of means
            torch.testing.assert_close(class_map(reading, GRID).flatten(1), patches / patches.sum(-1, keepdim=True))


def test_without_a_class_token_the_map_is_that_of_the_mean_patch() -> None:
    (reading,) = attention_of("hybrid_nano", embed_dim=16, depth=1, num_heads=1)
    v, fused = fused_attention(reading)
    among = class_map(reading, reading.grid)
    torch.testing.assert_close(among.flatten(1).unsqueeze(1) @ v[:, 0], fused.mean(2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(among.sum((1, 2)), torch.ones(len(among)))


def test_a_head_token_attends_in_its_head() -> None:
    """Map i is row (first head token + i) of head i, patches row by row; without head tokens there is an error."""
    reading = attention_of("dhvt_tiny_cifar_patch2", embed_dim=32, depth=2)[1]
    maps, attention = head_token_maps(reading, GRID), reading.scores().softmax(-1)
    heads = attention.shape[1]
    for i in range(heads):
        for row, column in ((0, 0), (1, 5), (3, 2)):
            patch = reading.prefix + row * GRID[1] + column
            expected = attention[:, i, attention.shape[-1] - heads + i, patch]
            torch.testing.assert_close(maps[:, i, row, column], expected)
    refused("head tokens are DHVT's", lambda: head_token_maps(attention_of("vit_nano")[0], GRID))


def test_layers_are_spread_as_in_the_supplement() -> None:
    assert [default_layers(depth) for depth in (12, 4, 2)] == [[1, 4, 7, 10], [0, 1, 2, 3], [0, 1]]


def test_a_drawn_map_keeps_positions_and_order() -> None:
    values = torch.zeros(2, 3)
    values[1, 2] = 5.0
    picture = heat(values.numpy())
    block = picture.shape[0] // 2
    assert picture.shape == (2 * block, 3 * block, 3)
    light = picture.sum(-1)
    assert (light[block:, 2 * block :] == light.max()).all()
    assert (light[:block] == light.min()).all()
    assert heat(torch.ones(2, 2).numpy()).shape[-1] == 3


def test_maps_with_trained_positions_hold_no_gradient() -> None:
    for reading in attention_of("botnet14t", embed_dim=32, num_heads=2):
        among = class_map(reading, reading.grid)
        assert not among.requires_grad
        assert not mean_attention(reading).requires_grad
        assert among.shape == (2, *GRID)
        torch.testing.assert_close(among.sum((1, 2)), torch.ones(2))


class Scores(AttentionReading):
    """A reading with preset scores."""

    def scores(self) -> Tensor:
        return self.qkv


def reading(scores: Tensor, grid: tuple[int, int], prefix: int = 1) -> AttentionReading:
    return Scores(scores, None, prefix, math.prod(grid), grid, prefix > 0)


def random_scores(images: int, tokens: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(images, 3, tokens, tokens, generator=torch.Generator().manual_seed(images))


def test_statistics_equal_the_authors(golden: Load) -> None:
    """Both per head, unweighted mean over two batches, distances times 14; to 1e-5, for log(a + 1e-6) against log a."""
    data = golden("mae_attention_stats")
    batches = [patch_attention(reading(data[f"in/scores_batch{k}"], (4, 4))) for k in (1, 2)]
    entropy = torch.stack([attention_entropy(batch).mean(0) for batch in batches]).mean(0)
    distance = torch.stack([attention_distance(batch, (4, 4), 14).mean(0) for batch in batches]).mean(0)
    torch.testing.assert_close(14 * grid_distances((4, 4)), data["out/dist_matrix"])
    torch.testing.assert_close(entropy, data["out/entropy"], rtol=0, atol=2e-5)
    torch.testing.assert_close(distance, data["out/distance"], rtol=1e-5, atol=0)


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (1, 7)])
def test_uniform_attention_has_the_closed_form(grid: tuple[int, int]) -> None:
    """H = log P and d = the sum over offsets; on a line of C patches that is (C^2 - 1) / 3C."""
    tokens = 1 + math.prod(grid)
    attention = patch_attention(reading(torch.zeros(2, 3, tokens, tokens), grid))
    expected = torch.full((2, 3), uniform_distance(grid, 16.0))
    torch.testing.assert_close(attention_distance(attention, grid, 16.0), expected)
    torch.testing.assert_close(attention_entropy(attention), torch.full((2, 3), math.log(tokens - 1)))
    if grid[0] == 1:
        assert uniform_distance(grid, 16.0) == pytest.approx(16 * (grid[1] ** 2 - 1) / (3 * grid[1]))


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1000.0])
def test_entropy_lies_between_zero_and_log_of_the_patches(size: float) -> None:
    entropy = attention_entropy(patch_attention(reading(random_scores(4, 17, size), (4, 4))))
    assert (entropy >= 0).all()
    assert (entropy <= math.log(16) + 1e-6).all()


def test_a_head_that_attends_one_patch_to_the_right_has_distance_one() -> None:
    """All but the last column attend to the right: d = (C - 1) / C patches, rectangular grid."""
    grid, spacing = (2, 5), 8.0
    sharp = torch.full((1, 1, 10, 10), -1e4)
    for query in range(10):
        sharp[..., query, query + (query % 5 < 4)] = 0.0
    attention = patch_attention(reading(sharp, grid, prefix=0))
    assert attention_distance(attention, grid, spacing).item() == pytest.approx(spacing * 4 / 5)
    assert attention_entropy(attention).item() == 0.0


def test_the_mean_over_images_does_not_depend_on_batches() -> None:
    parts = [random_scores(count, 10) for count in (1, 2, 5)]
    streamed, whole = AttentionStatistics(), AttentionStatistics()
    for part in parts:
        streamed.add([reading(part, (3, 3))], [4.0])
    whole.add([reading(torch.cat(parts), (3, 3))], [4.0])
    torch.testing.assert_close(streamed.entropy, whole.entropy, rtol=1e-6, atol=0)
    torch.testing.assert_close(streamed.distance, whole.distance, rtol=1e-6, atol=0)


def test_a_students_layers_are_measured_in_pixels_of_its_input() -> None:
    """A ViT with zero queries attends to all equally, all heads and layers."""
    torch.manual_seed(0)
    student = create_student("vit_nano", TASK, 2, {}).eval()
    taps = Taps(student, frozenset({"attention"}))
    assert taps.layout is not None
    for name in taps.layout.attention:
        torch.nn.init.zeros_(student.get_parameter(f"{name}.qkv.weight"))
    statistics = AttentionStatistics()
    with torch.inference_mode():
        statistics.add(taps(torch.randn(2, 3, 8, 12)).attention, patch_spacings(taps.layout))
    assert len(statistics.distance) == len(taps.layout.heads)
    for distance, heads in zip(statistics.distance, taps.layout.heads, strict=True):
        expected = torch.full((heads,), uniform_distance((4, 6), 2.0), dtype=torch.float64)
        torch.testing.assert_close(distance, expected, rtol=1e-5, atol=0)


def test_masked_images_and_no_images_are_refused() -> None:
    refused("without masked patches", attention_distance, torch.full((1, 1, 4, 4), 0.25), (3, 3), 1.0)
    refused("no mean of no images", lambda: RunningMean().value())
