# SPDX-License-Identifier: Apache-2.0
"""Heat maps of values: shades by one scale, values where they belong, nothing where there is none."""

import re

import numpy as np
import torch

from viticulture.analysis.link_extraction import TrainedLinks
from viticulture.models.links import Links
from viticulture.report.charts.value_map import PALEST, value_map
from viticulture.report.sections.links import links_section


def cells(html: str) -> dict[str, float]:
    """What a cell says under the pointer -> its share of color."""
    found = re.findall(r'fill-opacity="([\d.]+)"[^>]*><title>([^<]*)</title>', html)
    return {words: float(shade) for shade, words in found}


def test_every_value_has_its_place_and_shade_on_the_scale_of_all_maps() -> None:
    """Fails if rows and columns swap, each map has a scale of its own, or NaN is drawn."""
    first, second = np.array([[0.0, 1.0, np.nan]]), np.array([[2.0, 4.0, 3.0]])
    html = value_map("t", [("a", first), ("b", second)], ["r<"], ["x", "y", "z"], "note")
    assert cells(html) == {
        "r&lt;, x: 0": PALEST,
        "r&lt;, y: 1": PALEST + 0.25 * (1 - PALEST),
        "r&lt;, x: 2": PALEST + 0.5 * (1 - PALEST),
        "r&lt;, y: 4": 1.0,
        "r&lt;, z: 3": PALEST + 0.75 * (1 - PALEST),
    }
    assert "note Palest 0, darkest 4." in html
    assert 'class="middle' not in html
    assert 'class="middle' in value_map("t", [("a", first)], ["r"], ["x", "y", "z"])
    assert cells(value_map("t", [("a", np.full((1, 1), 7.0))], ["r"], ["c"])) == {"r, c: 7": PALEST}


def test_a_runs_links_are_drawn_by_block_layer_and_epoch() -> None:
    """The last epoch large, at most six on the way with the first and the last; what is not linked is empty."""
    links = Links({"s1": 2, "s2": 3}, [2, 1], [(2, 2)] * 2, [[0, 1], [1]])
    magnitudes = [torch.tensor([[1.0, 2.0], [0.0, 3.0]]) * (epoch + 1) for epoch in range(11)]
    html = links_section(TrainedLinks(links, magnitudes)).html
    large, small = html.split("</figure>")[:2]
    assert set(cells(large)) == {
        "block 1, s1, layer 1: 11",
        "block 1, s1, layer 2: 22",
        "block 2, s2, layer 2: 33",
    }
    assert "Empty: not linked." in large
    assert re.findall(r">after (\d+) epochs<", small) == ["0", "2", "4", "6", "8", "10"]
