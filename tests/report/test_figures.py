# SPDX-License-Identifier: Apache-2.0
"""Figures: values are at their axes' places, and names are escaped."""

import base64
import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import refused
from viticulture.analysis.galleries import Gallery, heat, overlay
from viticulture.analysis.links import TrainedLinks
from viticulture.models.links import Links
from viticulture.report.html import html_table
from viticulture.report.measurements import links_section
from viticulture.report.pictures import MAX_TIPS, PALEST, gallery, heat_map, image_grid, picture_uri, value_map
from viticulture.report.svg import Axes, Points, Series, line_chart, pareto, row_chart, scatter_chart, value_ticks
from viticulture.table import Column, Table, number
from viticulture.training.metrics import read_curves

EVIL = "<script>alert(1)</script> \"q\" 'q' & 👩‍🔬 \udcff"


def svg(figure: str) -> ElementTree.Element:
    """Parse the drawing inside a figure, which proves that it is well formed."""
    found = re.search(r'<svg [^>]*role="img".*</svg>', figure, re.DOTALL)  # not those of the legend
    assert found
    return ElementTree.fromstring(found.group())


def drawn(points: Points, log: bool = False) -> str:
    """Draw a chart of one line over epochs."""
    return line_chart("t", [Series("train", 0, points)], Axes("epoch", "loss", log_y=log))


def path_of(figure: str, line: int = 0) -> list[tuple[float, float]]:
    """Return the pixels of a chart's line."""
    d = [g for g in svg(figure).findall("g") if "data-points" in g.attrib][line].find("path").attrib["d"]  # type: ignore[union-attr]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", d)]


def ticks(figure: str) -> dict[str, float]:
    """Return label -> pixel row of the y axis."""
    return {t.text or "": float(t.attrib["y"]) - 4 for t in svg(figure).iter("text") if t.attrib.get("class") == "end"}


def test_a_value_is_at_the_height_of_its_tick() -> None:
    figure = drawn([(0, 0.0), (5, 2.0), (10, 4.0)])
    marks = ticks(figure)
    assert [y for _, y in path_of(figure)] == [marks["0"], marks["2"], marks["4"]]
    assert marks["4"] < marks["2"] < marks["0"]  # pixels count downwards
    xs = [x for x, _ in path_of(figure)]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])

    figure = drawn([(0, 0.01), (1, 1.0), (2, 100.0)], log=True)
    marks, rows = ticks(figure), [y for _, y in path_of(figure)]
    assert rows == [marks["0.01"], marks["1"], marks["100"]]
    assert rows[0] - rows[1] == pytest.approx(rows[1] - rows[2], abs=0.11)  # one decimal is drawn


def levels_of(figure: ElementTree.Element) -> list[str]:
    """Return the shapes of horizontal lines."""
    return [path.attrib["d"] for path in figure.iter("path") if path.get("class") == "level"]


def test_a_line_breaks_where_a_loss_is_not_finite() -> None:
    figure = drawn([(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)])
    assert svg(figure).find("g").find("path").attrib["d"].count("M") == 2  # type: ignore[union-attr]
    assert "nan" not in figure
    assert "no finite value" in drawn([(1, math.nan)])
    assert "no finite value" in line_chart("t", [], Axes("epoch", "loss"))


def test_captions_of_lines_stay_apart_and_off_curves() -> None:
    levels = [("low", 90.0), ("high", 91.0), ("far", 99.0)]
    curve = [Series("a", 0, [(1, 10.0), (2, 95.0)])]
    figure = svg(line_chart("t", curve, Axes("epoch", "%", levels=levels)))
    words = {text.text: text.attrib for text in figure.iter("text") if "halo" in text.get("class", "")}
    rows = {name: float(words[name]["y"]) for name, _ in levels}
    assert rows["far"] < rows["high"] <= rows["low"] - 11  # pixels of a line of words
    assert [name for name, about in words.items() if "end" in about["class"].split()] == ["high", "low"]
    lines = sorted(float(d.split()[1].partition("H")[0]) for d in levels_of(figure))
    assert rows["far"] < lines[0] < lines[2] < rows["high"]
    assert [child.tag for child in figure][-len(words) :] == ["text"] * len(words), "drawn over the curves"


def test_captions_move_along_a_line_off_curves() -> None:
    curve = [Series("a", 0, [(0, 0.0), (2, 80.0), (20, 30.0)])]
    axes = Axes("epoch", "%", levels=[("nearest neighbor", 50.0)], moments=[("best", 2.0)])
    figure = line_chart("t", curve, axes)
    (words,) = [text for text in svg(figure).iter("text") if text.text == "nearest neighbor"]
    left, base = float(words.attrib["x"]), float(words.attrib["y"])
    right = left + 6 * len("nearest neighbor")  # pixels of a letter
    (a, b), (c, d), (e, f) = path_of(figure)
    for step in range(101):
        for x, y in (
            (a + (c - a) * step / 100, b + (d - b) * step / 100),
            (c + (e - c) * step / 100, d + (f - d) * step / 100),
        ):
            assert not (left <= x <= right and base - 9 <= y <= base + 3)
    assert not left <= c <= right, "the best epoch's line"
    assert "end" not in words.attrib["class"].split()


def test_captions_without_a_free_place_are_in_the_legend() -> None:
    curve = [Series("a", 0, [(i, 100.0 * (i % 2)) for i in range(100)])]
    figure = line_chart("t", curve, Axes("epoch", "%", levels=[("nearest neighbor", 48.04)]))
    assert not [text for text in svg(figure).iter("text") if text.text == "nearest neighbor"]
    assert "nearest neighbor <b>48.04</b>" in figure[: figure.index("</div>")]
    assert len(levels_of(svg(figure))) == 1


def test_a_logarithm_needs_positive_values() -> None:
    figure = drawn([(1, -1.0), (2, 1.0)], log=True)
    assert len(path_of(figure)) == 2
    assert "logarithmic" not in figure


@pytest.mark.parametrize(
    "values", [[0.5], [1.0], [0.0, 0.0], [7.0] * 3, [-3.0, -3.0], [1e-12, 2e-12], [1e9, 3e9], [0.99, 1.0]]
)
@pytest.mark.parametrize("log", [False, True])
def test_every_range_of_values_has_two_ticks(values: list[float], log: bool) -> None:
    figure = drawn([(float(i + 1), v) for i, v in enumerate(values)], log=log)
    marks = [y for label, y in ticks(figure).items() if label != "epoch"]
    assert 2 <= len(marks) <= 12
    for _, y in path_of(figure):
        assert min(marks) - 0.1 <= y <= max(marks) + 0.1


@pytest.mark.parametrize(
    "values", [[1.1143, 1.1153], [-1.00001, -1.0], [0.99999, 1.00001], [4321.1, 4321.9], [2e-5, 3e-5]]
)
def test_no_two_ticks_have_one_label(values: list[float]) -> None:
    marks = value_ticks(values)
    assert len({number(mark) for mark in marks}) == len(marks) >= 2


def test_long_lines_are_thinned_to_their_ends() -> None:
    points = [(i / 1000, float(i % 7)) for i in range(100_000)]
    kept = json.loads(svg(drawn(points)).find("g").attrib["data-points"])  # type: ignore[union-attr]
    assert len(kept) <= 400
    assert kept[0] == [0.0, 0.0]
    assert kept[-1][0] == pytest.approx(100, abs=0.01)


def test_a_heat_map_fills_the_cell_of_its_row_and_column() -> None:
    """The shade is the root of the share of the row, in eighths: 1 for the lone image, 7/8 for 3 of 4."""
    counts = np.array([[0, 0, 1], [0, 3, 1], [0, 0, 0]])
    drawing = svg(heat_map("m", counts, list("abc"), list("abc")))
    left, top = (float(drawing.find("rect").attrib[side]) for side in "xy")  # type: ignore[union-attr]
    shapes = [e for e in drawing.iter("path") if e.find("title") is not None]
    cells = {e.find("title").text: (e.attrib["class"], e.attrib["fill-opacity"], e.attrib["d"]) for e in shapes}  # type: ignore[union-attr]
    size = 36
    assert cells == {
        "a → c\n1 of 1 (100.0 %)": ("miss", "1.000", f"M{left + 2 * size:g} {top:g}h36v36h-36z"),
        "b → b\n3 of 4 (75.0 %)": ("hit", "0.875", f"M{left + size:g} {top + size:g}h36v36h-36z"),
        "b → c\n1 of 4 (25.0 %)": ("miss", "0.500", f"M{left + 2 * size:g} {top + size:g}h36v36h-36z"),
    }
    assert [e.text for e in drawing.iter("text") if "middle" in e.attrib.get("class", "")] == ["1", "3", "1"]


def test_cells_of_a_large_map_are_labeled_by_the_script() -> None:
    assert MAX_TIPS < 41**2
    counts = np.zeros((41, 41), np.int64)
    counts[0, 2], counts[1, 1], counts[1, 2] = 1, 3, 1
    names = [f"n{i}" for i in range(41)]
    drawing = svg(heat_map("m", counts, names, names))
    data = json.loads(drawing.attrib["data-heat"])
    assert data["cells"] == [[0, 2, 1], [1, 1, 3], [1, 2, 1]]
    assert data["sums"][:3] == [1, 4, 0]
    left, top, size = data["box"]
    (hit,) = [e.attrib["d"] for e in drawing.iter("path") if e.attrib["class"] == "hit"]
    assert hit.startswith(f"M{left + size:g} {top + size:g}h")


def test_heat_maps_of_many_classes_stay_small_and_label_without_overlap() -> None:
    counts = np.random.default_rng(0).poisson(0.25, (200, 200)) + 30 * np.eye(200, dtype=int)
    names = [f"n{i:08d} a rather long name" for i in range(200)]
    figure = heat_map("m", counts, names, names)
    rows = [float(e.attrib["y"]) for e in svg(figure).iter("text") if e.attrib.get("class") == "end"]
    assert np.diff(rows).min() >= 9
    assert len(figure) < 700_000
    assert all("middle" not in e.attrib.get("class", "") for e in svg(figure).iter("text"))


def test_every_figure_escapes_names() -> None:
    table = Table(EVIL, [Column(EVIL), Column("n", "percent")], [[EVIL, 0.5]], EVIL)
    figures = [
        line_chart(EVIL, [Series(EVIL, 0, [(1, 1.0)], legend=EVIL)], Axes(EVIL, EVIL, levels=[(EVIL, 2)]), EVIL),
        scatter_chart(EVIL, [Series(EVIL, 0, [(1, 1.0)], [(0.5, 2.0)], [EVIL])], Axes(EVIL, EVIL), EVIL),
        row_chart(EVIL, [Series(EVIL, 0, [(1.0, 0)], tips=[EVIL])], EVIL, EVIL),
        value_map(EVIL, [(EVIL, np.eye(2))], [EVIL, "<u>&"], [EVIL, "<u>&"], EVIL),
        heat_map(EVIL, np.eye(2, dtype=int), [EVIL, "<u>&"], [EVIL, "<u>&"], EVIL),
        image_grid(EVIL, [([np.zeros((4, 4, 3), np.uint8)], [EVIL])], EVIL),
        html_table(table, sortable=True),
    ]
    for figure in figures:
        assert "<script" not in figure
        assert "<u>" not in figure
        assert '"q"' not in re.sub(r">[^<]*<", "><", figure)  # no bare quote inside a tag
        figure.encode("utf-8")  # a lone surrogate would raise
        if "<svg" in figure:
            svg(figure)


def test_pictures_are_embedded_exactly_or_fitted() -> None:
    def back(uri: str) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))

    small = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    np.testing.assert_array_equal(back(picture_uri(small)), small)
    assert back(picture_uri(np.zeros((400, 800, 3), np.uint8))).shape == (96, 192, 3)
    assert back(picture_uri(np.zeros((20, 10_000, 3), np.uint8))).shape[:2] == (1, 192)
    assert back(picture_uri(np.zeros((1, 1, 3), np.uint8))).shape == (1, 1, 3)
    assert back(picture_uri(np.zeros((100, 100), np.uint8))).shape == (100, 100)


def test_a_map_is_laid_over_its_photograph() -> None:
    photograph = np.zeros((8, 16, 3), np.uint8)
    photograph[:, 8:] = 255
    looked = np.zeros((2, 4), np.float32)
    looked[0, 0] = 1
    above = overlay(photograph, looked)
    assert above.shape == (64, 128, 3)
    assert above[60, 100].min() > above[60, 10].max()  # the photograph shows through
    assert int(above[5, 5].max()) > int(above[60, 10].max())  # and so does the map
    html = gallery(Gallery("t", [([photograph, looked], ["a"])]))
    pictures = re.findall(r"<details class=.view.><summary[^>]*><img[^>]*src=.([^\"]*)", html)
    assert len(pictures) == 2
    assert pictures[1] == picture_uri(above)
    assert picture_uri(heat(looked)) in gallery(Gallery("t", [([looked], ["a"])]))


def test_pictures_with_boxes_are_larger() -> None:
    photograph = np.zeros((300, 400, 3), np.uint8)
    shown = Gallery("t", [([photograph], ["a"])])
    assert picture_uri(photograph, 384) in gallery(shown, 384)
    assert 'class="pictures large"' in gallery(shown, 384)
    assert 'class="pictures"' in gallery(shown)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (5e-4, "5e-4"),
        (-2.5e-5, "-2.5e-5"),
        (100, "100"),
        (1800, "1,800"),
        (0.30000000000000004, "0.3"),
    ],
)
def test_numbers_on_axes_are_short(value: float, words: str) -> None:
    assert number(value) == words


def test_of_repeated_measurements_the_later_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,epoch,name,value\n1,0,lr,9.0\n0,0,lr,0.1\n1,0,lr,0.2\n3,1,lr,nan\n", encoding="utf-8")
    found = read_curves(path)["lr"]
    assert found[:2] == [(0.5, 0.1), (1.0, 0.2)]
    assert math.isnan(found[2][1])
    path.write_text("step,epoch,name,value\n", encoding="utf-8")
    assert read_curves(path) == {}


@pytest.mark.parametrize("content", [b"\x00\xff", b"step,epoch,name,value\nx,y,lr,0.1\n", b"step,epoch,name\n1,1,lr\n"])
def test_a_damaged_file_of_metrics_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    refused(r"metrics\.csv is damaged", read_curves, path)


def test_the_pareto_front_holds_what_nothing_beats() -> None:
    points = [(1.0, 10.0), (2.0, 9.0), (3.0, 20.0), (3.0, 25.0), (4.0, 25.0), (0.5, 1.0)]
    assert pareto(points) == [(0.5, 1.0), (1.0, 10.0), (3.0, 25.0)]
    assert pareto([]) == []


def test_points_are_at_their_values() -> None:
    """Logarithmic x: 10, 100 and 1,000 images are equally far apart; 100 % is the top."""
    one = Series(
        "a", 0, [(10, 50.0), (100, 60.0), (1000, 70.0)], [(45.0, 55.0), (58.0, 62.0), (60.0, 140.0)], ["", "", ""]
    )
    chart = line_chart("t", [one], Axes("images", "%", log_x=True, at=[10, 100, 1000], max_y=100))
    paths = re.findall(r'class="mark" d="M([\d.]+) ([\d.]+)a4.2', chart)[1:]  # the first is the legend's
    dots = [(float(x) + 4.2, float(y)) for x, y in paths]
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.11)
    assert dots[0][1] > dots[1][1] > dots[2][1]
    (band,) = re.findall(r'class="band" points="([^"]*)"', chart)
    corners = [tuple(map(float, corner.split(","))) for corner in band.split()]
    assert corners[0][0] == corners[-1][0] == pytest.approx(dots[0][0], abs=0.11)
    assert corners[0][1] + corners[-1][1] == pytest.approx(2 * dots[0][1], abs=0.3)
    assert min(y for _, y in corners) >= 24
    flat = scatter_chart("t", [one, Series("b", 7, [(5, 20.0)])], Axes("min", "%"))
    assert 'class="front"' in flat
    rows = row_chart("t", [Series("a", 0, [(50.0, 0), (60.0, 0)], [(40.0, 70.0)], ["tip"])], "%")
    assert ">55.0</text>" in rows
    assert "no finite value" in line_chart("t", [], Axes("x", "y"))


def test_an_interval_cut_by_the_chart_ends_in_an_arrow() -> None:
    many = Series("c", 0, [(3, 50.0), (4, 51.0)], [(49.0, 52.0), (49.0, 90.0)], ["", ""])
    paths = re.findall(r'class="whisker" d="([^"]*)"', scatter_chart("t", [many], Axes("min", "%")))
    ends = [[[float(at.split()[1]) for at in line.split("L")] for line in path[1:].split("M")[1:]] for path in paths]
    straight = [[len(set(heights)) == 1 for heights in of_both] for of_both in ends]
    assert straight == [[True, True], [True, False]]


def cells(html: str) -> dict[str, float]:
    """Return what a cell says under the pointer -> its share of color."""
    found = re.findall(r'fill-opacity="([\d.]+)"[^>]*><title>([^<]*)</title>', html)
    return {words: float(shade) for shade, words in found}


def test_heat_maps_share_one_scale() -> None:
    first, second = np.array([[0.0, 1.0, np.nan]]), np.array([[2.0, 4.0, 3.0]])
    html = value_map("t", [("a", first), ("b", second)], ["r<"], ["x", "y", "z"], "note")
    assert cells(html) == {
        "r&lt;, x: 0": PALEST,
        "r&lt;, y: 1": PALEST + 0.25 * (1 - PALEST),
        "r&lt;, x: 2": PALEST + 0.5 * (1 - PALEST),
        "r&lt;, y: 4": 1.0,
        "r&lt;, z: 3": PALEST + 0.75 * (1 - PALEST),
    }
    assert re.findall(r">(.*) <i class=.ramp.></i> (.*)</span>", html) == [("0", "4")]
    assert 'class="middle' not in html
    assert 'class="middle' in value_map("t", [("a", first)], ["r"], ["x", "y", "z"])
    assert cells(value_map("t", [("a", np.full((1, 1), 7.0))], ["r"], ["c"])) == {"r, c: 7": PALEST}


def test_nearly_equal_values_look_alike_and_have_distinct_labels() -> None:
    html = value_map("t", [("a", np.array([[33.30, 33.34], [33.31, 33.36]]))], ["r", "s"], ["x", "y"])
    assert max(cells(html).values()) < 0.2
    assert set(re.findall(r'class="middle[^>]*>([^<]*)', html)) == {"33.3", "33.4"}
    html = value_map("t", [("a", np.array([[0.981, 0.994, 0.12]]))], ["r"], ["x", "y", "z"])
    assert re.findall(r'class="middle[^>]*>([^<]*)', html) == ["0.98", "0.99", "0.12"]


def test_links_are_drawn_by_block_layer_and_epoch() -> None:
    links = Links({"s1": 2, "s2": 3}, [2, 1], [(2, 2)] * 2, [[0, 1], [1]])
    magnitudes = [torch.tensor([[1.0, 2.0], [0.0, 3.0]]) * (epoch + 1) for epoch in range(11)]
    html = links_section(TrainedLinks(links, magnitudes)).html
    large, small = html.split("</figure>")[:2]
    assert set(cells(large)) == {"block 0, s1, layer 0: 11", "block 0, s1, layer 1: 22", "block 1, s2, layer 1: 33"}
    assert "Empty: not linked." in large
    assert re.findall(r">after (\d+) epochs<", small) == ["0", "2", "4", "6", "8", "10"]
    inside = links_section(TrainedLinks(links, magnitudes, inside=True)).html
    assert re.findall(r">((?:after|in) [a-z0-9 ]+)<", inside)[-2:] == ["after 8 epochs", "in epoch 10"]
