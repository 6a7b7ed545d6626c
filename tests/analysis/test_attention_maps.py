# SPDX-License-Identifier: Apache-2.0
"""Attention maps are the attention that the student paid, laid out as a person reads it."""

import pytest
import torch
import torch.nn.functional as F

from viticulture.analysis.attention_maps import averaged, class_map, head_token_maps, shown_layers
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import Readings, Taps
from viticulture.report.pictures import heat

TASK = DataSpec(("a", "b"), (8, 12), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
GRID = (4, 6)


def read(name: str, **options: object) -> tuple[torch.nn.Module, Readings]:
    torch.manual_seed(0)
    student = create_student(name, TASK, 2, options).eval()
    images = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return student, Taps(student, frozenset({"attention"}))(images)


@pytest.mark.parametrize(
    ("name", "options"), [("vit_nano", {}), ("dhvt_tiny_cifar_patch2", {"embed_dim": 32, "depth": 2})]
)
def test_maps_are_the_attention_with_which_values_were_mixed(name: str, options: dict[str, int]) -> None:
    """Mixing values by the maps gives what fused attention gives, softmax(q k^T / sqrt d) v; rows sum to 1.

    Catches: a softmax over queries, a missing scale, tokens in another order, the mean taken before the softmax.
    """
    _, found = read(name, **options)
    for reading in found.attention:
        q, k = reading.queries(), reading.keys()
        v = torch.unflatten(reading.qkv, -1, (3, reading.layer.num_heads, -1))[:, :, 2].transpose(1, 2)
        fused = F.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(reading.scores().softmax(-1) @ v, fused, rtol=1e-4, atol=1e-5)
        every = averaged(reading)
        torch.testing.assert_close(every.sum(-1), torch.ones_like(every[..., 0]))
        patches = every[:, 0, reading.prefix : reading.prefix + reading.patches]
        assert class_map(reading, GRID).shape == (2, *GRID)
        if reading.layer.num_heads == 1:  # with several heads, the mean of shares is no share of means
            torch.testing.assert_close(class_map(reading, GRID).flatten(1), patches / patches.sum(-1, keepdim=True))


def test_where_patches_are_averaged_the_map_is_their_mean() -> None:
    """Mixing values by the map gives the mean of what patches get; catches the mean over keys, or a softmax of it."""
    _, found = read("hybrid_nano", embed_dim=16, depth=1, num_heads=1)
    (reading,) = found.attention
    q, k = reading.queries(), reading.keys()
    v = torch.unflatten(reading.qkv, -1, (3, 1, -1))[:, :, 2].transpose(1, 2)
    mixed = F.scaled_dot_product_attention(q, k, v).mean(2)  # [B, 1, d]
    among = class_map(reading, reading.grid)
    torch.testing.assert_close(among.flatten(1).unsqueeze(1) @ v[:, 0], mixed, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(among.sum((1, 2)), torch.ones(len(among)))


def test_a_head_token_looks_in_its_own_head() -> None:
    """Map i is row (first head token + i) of head i, patches row by row. Catches: wrong head or row, a transpose."""
    _, found = read("dhvt_tiny_cifar_patch2", embed_dim=32, depth=2)
    reading = found.attention[1]
    maps, attention = head_token_maps(reading, GRID), reading.scores().softmax(-1)
    heads = attention.shape[1]
    for i in range(heads):
        for row, column in ((0, 0), (1, 5), (3, 2)):
            patch = reading.prefix + row * GRID[1] + column
            expected = attention[:, i, attention.shape[-1] - heads + i, patch]
            torch.testing.assert_close(maps[:, i, row, column], expected)


def test_students_without_head_tokens_say_so() -> None:
    _, found = read("vit_nano")
    with pytest.raises(UserError, match="head tokens are DHVT's"):
        head_token_maps(found.attention[0], GRID)


def test_layers_are_spread_as_the_supplement_picks_them() -> None:
    assert shown_layers(12) == [1, 4, 7, 10]
    assert shown_layers(4) == [0, 1, 2, 3]
    assert shown_layers(2) == [0, 1]


def test_a_drawn_map_keeps_place_and_order() -> None:
    """The largest value is the lightest block, at its place. Catches: a transpose, an inverted scale, flat maps."""
    values = torch.zeros(2, 3)
    values[1, 2] = 5.0
    picture = heat(values.numpy())
    block = picture.shape[0] // 2
    assert picture.shape == (2 * block, 3 * block, 3)
    light = picture.sum(-1)
    assert (light[block:, 2 * block :] == light.max()).all()
    assert (light[:block] == light.min()).all()
    assert heat(torch.ones(2, 2).numpy()).shape[-1] == 3


def test_maps_of_positions_that_are_learnt_hold_no_gradient() -> None:
    """Of a bottleneck transformer; catches: a picture that cannot be drawn because a table of positions is trained."""
    _, found = read("botnet14t", embed_dim=32, num_heads=2)
    for reading in found.attention:
        among = class_map(reading, reading.grid)
        assert not among.requires_grad
        assert not averaged(reading).requires_grad
        assert among.shape == (2, *GRID)
        torch.testing.assert_close(among.sum((1, 2)), torch.ones(2))
