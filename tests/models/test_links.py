# SPDX-License-Identifier: Apache-2.0
"""Links between attention maps and activation maps: Eq. (4) of AAL, arXiv:2211.13852, and its Table 1."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from refusals import refused
from viticulture.models.links import Links, LinkSet, read_link_set, write_link_set

B3 = {f"blocks.{i}": count for i, count in enumerate((24, 32, 48, 96, 136, 232, 384))}
GRID = (2, 3)


def attention(heads: list[int], grids: list[tuple[int, int]]) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.rand(2, count, *grid) for count, grid in zip(heads, grids, strict=True)]


def by_hand(links: Links, maps: list[Tensor], block: int, channel: int, grid: tuple[int, int]) -> Tensor:
    """Compute Eq. (4) as a double sum, without the bias."""
    found = torch.zeros(2, *grid)
    for (of_block, layer), weights in links.weights().items():
        if of_block == block and maps[layer].shape[-2:] == grid:
            for head in range(weights.shape[1]):
                found += weights[channel, head] * maps[layer][:, head]
    return found


@pytest.mark.parametrize(
    ("linked", "grids"),
    [
        ([[0, 1, 2], [0, 1, 2]], [GRID] * 3),
        ([[2], [0, 1]], [GRID] * 3),
        ([[1, 2], []], [GRID] * 3),
        ([[0, 1, 2], [1, 2]], [(4, 4), (2, 2), (2, 2)]),
    ],
)
def test_augmented_maps_are_the_weighted_sums(linked: LinkSet, grids: list[tuple[int, int]]) -> None:
    heads = [2, 1, 3]
    links = Links({"a": 2, "b": 3}, heads, grids, linked)
    maps = attention(heads, grids)
    reached = {(block, group.grid) for group in links.groups for block in group.blocks}
    assert reached == {(block, grids[layer]) for block, layers in enumerate(linked) for layer in layers}
    for group, convolution, augmented in zip(links.groups, links.convolutions, links(maps), strict=True):
        found, channel = augmented - convolution.bias.view(-1, 1, 1), 0
        for block in group.blocks:
            for number in range((2, 3)[block]):
                expected = by_hand(links, maps, block, number, group.grid)
                torch.testing.assert_close(found[:, channel], expected)
                channel += 1
        assert channel == found.shape[1]


@pytest.mark.parametrize(
    ("name", "weights", "convolutions"), [("full", 68_544, 1), ("alpha", 28_608, 6), ("beta", 23_280, 7)]
)
def test_link_counts_are_the_papers(name: str, weights: int, convolutions: int) -> None:
    """DeiT-S and EfficientNet-B3: "0.068M" full links, and those that Table 1 leaves; every map has a bias."""
    links = Links(B3, [6] * 12, [(14, 14)] * 12, read_link_set(name, 7, 12))
    assert sum(part.numel() for part in links.weights().values()) == weights
    assert sum(parameter.numel() for parameter in links.parameters()) == weights + 952
    assert len(links.convolutions) == convolutions


def test_initialization_is_within_the_bound_of_each_fan_in() -> None:
    links = Links(B3, [6] * 12, [(14, 14)] * 12, read_link_set("alpha", 7, 12))
    for (block, _), weights in links.weights().items():
        bound = (6 * (3, 5, 3, 3, 3, 6, 6)[block]) ** -0.5
        assert 0.9 * bound < weights.abs().max() <= bound


def test_magnitudes_are_means_by_block_and_layer() -> None:
    """Fig. 2: the mean of |w|, not |mean of w|; blocks are rows; what is not linked is 0."""
    links = Links({"a": 2, "b": 1}, [2, 1], [GRID] * 2, [[0, 1], [1]])
    with torch.no_grad():
        links.convolutions[0].weight.copy_(torch.tensor([[1.0, -3.0, 5.0], [2.0, 2.0, -1.0]]).view(2, 3, 1, 1))
        links.convolutions[1].weight.fill_(-7)
    assert links.magnitudes().tolist() == [[2.0, 3.0], [0.0, 7.0]]


def test_a_link_set_is_saved_and_loaded(tmp_path: Path) -> None:
    alpha = read_link_set("alpha", 7, 12)
    assert alpha[0] == [0, 1, 2]
    assert alpha[6] == [6, 7, 8, 9, 10, 11]
    assert write_link_set(alpha).splitlines()[:2] == ["0: [0, 1, 2]", "1: [0, 1, 2, 3, 4]"]
    for linked in (alpha, [[0, 2, 3, 4], [], [5]], [[1]]):
        path = tmp_path / "links.yaml"
        path.write_text("# with a warning\n" + write_link_set(linked))
        assert read_link_set(str(path), len(linked), 12) == linked
    assert write_link_set([[0, 2, 3, 4], [], [5]]) == "0: [0, 2, 3, 4]\n2: [5]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1: [0, 12]", r"block 1 to layers \[0, 12\], but the student has layers 0 to 11"),
        ("1: [-1]", "but the student has layers 0 to 11"),
        ("7: [1]", "links CNN block 7, but the teacher has blocks 0 to 6"),
        ("-1: [1]", "links CNN block -1"),
        ("first: [1]", "links CNN block first"),
        ("1: [all]", "must list the layers of block 1"),
        ("1: []", "must list the layers of block 1"),
        ("1: [true]", "must list the layers of block 1"),
        ("1: 1-3", "holds `1: 1-3`; .* counted from 0, .*extract it again"),
        ("3: 4", "holds `3: 4`; .* counted from 0"),
        ("- 1", "must map CNN blocks to layers"),
        ("1: [", "not valid YAML"),
        ("1: 1\n1: 2", "'1' appears twice"),
        (f"1: {'[' * 200}", "more than 32 levels"),
        ("1: \xe9", "is not UTF-8 text"),
    ],
)
def test_an_invalid_link_set_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(text, encoding="latin-1")
    refused(words, read_link_set, str(path), 7, 12)


def test_links_of_other_networks_are_refused() -> None:
    for name, words in (("alpha", "there are 4 blocks and 12 layers"), ("gamma", "full, alpha, beta or a YAML file")):
        refused(words, read_link_set, name, 4, 12)
    refused("at least one CNN block", Links, {"a": 1}, [1], [GRID], [[]])
