# SPDX-License-Identifier: Apache-2.0
"""Figures put values where their axes say, and survive what strangers call their classes."""

import base64
import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger
from PIL import Image

from viticulture.errors import UserError
from viticulture.report.charts.curves import read_curves
from viticulture.report.charts.figures import bar_chart, heat_map, image_grid, line_chart, picture_uri, table
from viticulture.report.charts.marks import number
from viticulture.report.tables.sheet import Column, Sheet

EVIL = "<script>alert(1)</script> \"q\" 'q' & 👩‍🔬 \udcff"


def svg(figure: str) -> ElementTree.Element:
    """The drawing inside a figure; parsing it proves that it is well formed."""
    found = re.search(r"<svg.*</svg>", figure, re.DOTALL)
    assert found
    return ElementTree.fromstring(found.group())


def path_of(figure: str, line: int = 0) -> list[tuple[float, float]]:
    """Pixels of a chart's line."""
    d = svg(figure).findall("g")[line][0].attrib["d"]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", d)]


def ticks(figure: str) -> dict[str, float]:
    """Label -> pixel row of the y axis."""
    return {t.text or "": float(t.attrib["y"]) - 4 for t in svg(figure).iter("text") if t.attrib.get("class") == "end"}


def test_a_value_lies_at_the_height_of_its_tick() -> None:
    """Points drawn at 0, 2 and 4 must meet the grid lines of the ticks 0, 2 and 4, on both kinds of axis.

    Fails for an upside-down axis, a natural logarithm, or margins that differ between ticks and lines.
    """
    figure = line_chart("t", {"train": [(0, 0.0), (5, 2.0), (10, 4.0)]}, ("epoch", "loss"))
    marks = ticks(figure)
    assert [y for _, y in path_of(figure)] == [marks["0"], marks["2"], marks["4"]]
    assert marks["4"] < marks["2"] < marks["0"]  # pixels count downwards
    xs = [x for x, _ in path_of(figure)]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])

    figure = line_chart("t", {"train": [(0, 0.01), (1, 1.0), (2, 100.0)]}, ("epoch", "loss"), log=True)
    marks, rows = ticks(figure), [y for _, y in path_of(figure)]
    assert rows == [marks["0.01"], marks["1"], marks["100"]]
    assert rows[0] - rows[1] == pytest.approx(rows[1] - rows[2], abs=0.11)  # one decimal is drawn


def test_a_line_breaks_where_a_loss_was_not_finite() -> None:
    """A straight line across NaN would invent values; infinity must not stretch the axis."""
    figure = line_chart("t", {"train": [(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)]}, ("epoch", "loss"))
    assert svg(figure).find("g")[0].attrib["d"].count("M") == 2  # type: ignore[index]
    assert "nan" not in figure
    assert "no finite value" in line_chart("t", {"train": [(1, math.nan)]}, ("epoch", "loss"))
    assert "no finite value" in line_chart("t", {}, ("epoch", "loss"))


def test_a_logarithm_is_used_only_where_every_value_is_positive() -> None:
    """An alignment loss may be negative: its chart stays linear, rather than losing points."""
    figure = line_chart("t", {"train": [(1, -1.0), (2, 1.0)]}, ("epoch", "loss"), log=True)
    assert len(path_of(figure)) == 2
    assert "logarithmic" not in figure


@pytest.mark.parametrize(
    "values", [[0.5], [1.0], [0.0, 0.0], [7.0] * 3, [-3.0, -3.0], [1e-12, 2e-12], [1e9, 3e9], [0.99, 1.0]]
)
@pytest.mark.parametrize("log", [False, True])
def test_every_range_of_values_has_two_ticks_at_least_around_it(values: list[float], log: bool) -> None:
    """Constant, tiny, huge, negative and single values stay inside the plot."""
    figure = line_chart("t", {"train": [(float(i + 1), v) for i, v in enumerate(values)]}, ("epoch", "loss"), log=log)
    marks = [y for label, y in ticks(figure).items() if label != "epoch"]
    assert 2 <= len(marks) <= 12
    for _, y in path_of(figure):
        assert min(marks) - 0.1 <= y <= max(marks) + 0.1


def test_long_lines_are_thinned_to_their_first_and_last_points() -> None:
    """A page of ten charts with 100,000 steps each would not open; the ends are what people read."""
    points = [(i / 1000, float(i % 7)) for i in range(100_000)]
    drawn = json.loads(svg(line_chart("t", {"train": points}, ("epoch", "loss"))).find("g").attrib["data-points"])  # type: ignore[union-attr]
    assert len(drawn) <= 400
    assert drawn[0] == [0.0, 0.0]
    assert drawn[-1][0] == pytest.approx(100, abs=0.01)


def test_a_heat_map_fills_the_cell_of_its_row_and_column() -> None:
    """One image of class 0 taken for class 2: a `miss` cell in row 0, column 2; three of class 1 right: a `hit`.

    The shade is the root of the share of the row, in eighths: 1 for the lone image, 7/8 for 3 of 4, 4/8 for 1 of 4.
    Fails if the matrix is transposed, or if shares are of columns (both misses would be 6/8).
    """
    counts = np.array([[0, 0, 1], [0, 3, 1], [0, 0, 0]])
    figure = heat_map("m", counts, list("abc"), list("abc"))
    drawing = svg(figure)
    data = json.loads(drawing.attrib["data-heat"])
    left, top, size = data["box"]
    cells = [(e.attrib["class"], e.attrib["fill-opacity"], e.attrib["d"].split("h")[0]) for e in drawing.iter("path")]
    assert cells == [
        ("hit", "0.875", f"M{left + size:g} {top + size:g}"),
        ("miss", "0.5", f"M{left + 2 * size:g} {top + size:g}"),
        ("miss", "1", f"M{left + 2 * size:g} {top:g}"),
    ]
    assert data["cells"] == [[0, 2, 1], [1, 1, 3], [1, 2, 1]]
    assert data["sums"] == [1, 4, 0]
    assert [e.text for e in drawing.iter("text") if "middle" in e.attrib.get("class", "")] == ["1", "3", "1"]


def test_heat_maps_of_many_classes_stay_small_and_label_without_overlap() -> None:
    """200 classes: no number in cells, every shown name at least 9 pixels from the next, under 0.7 MB."""
    counts = np.random.default_rng(0).poisson(0.25, (200, 200)) + 30 * np.eye(200, dtype=int)
    names = [f"n{i:08d} a rather long name" for i in range(200)]
    figure = heat_map("m", counts, names, names)
    rows = [float(e.attrib["y"]) for e in svg(figure).iter("text") if e.attrib.get("class") == "end"]
    assert np.diff(rows).min() >= 9
    assert len(figure) < 700_000
    assert all("middle" not in e.attrib.get("class", "") for e in svg(figure).iter("text"))


def test_no_name_can_leave_its_place() -> None:
    """Tags, quotes, ampersands and broken file names are shown, never obeyed, by every figure."""
    sheet = Sheet(EVIL, [Column(EVIL), Column("n", "percent")], [[EVIL, 0.5]], EVIL)
    figures = [
        line_chart(EVIL, {EVIL: [(1, 1.0)]}, (EVIL, EVIL), note=EVIL),
        bar_chart(EVIL, {EVIL: 1.0}, EVIL),
        heat_map(EVIL, np.eye(2, dtype=int), [EVIL, "<u>&"], [EVIL, "<u>&"], EVIL),
        image_grid(EVIL, [([np.zeros((4, 4, 3), np.uint8)], [EVIL])], EVIL),
        table(sheet, sortable=True),
    ]
    for figure in figures:
        assert "<script" not in figure
        assert "<u>" not in figure
        assert '"q"' not in re.sub(r">[^<]*<", "><", figure)  # no bare quote inside a tag
        figure.encode("utf-8")  # a lone surrogate would raise
        if "<svg" in figure:
            svg(figure)


def test_pictures_survive_the_way_into_the_page() -> None:
    """Small images come back exactly; large ones fit a square of 192 pixels in their proportions; gray ones work."""

    def back(uri: str) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))

    small = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    np.testing.assert_array_equal(back(picture_uri(small)), small)
    assert back(picture_uri(np.zeros((400, 800, 3), np.uint8))).shape == (96, 192, 3)
    assert back(picture_uri(np.zeros((20, 10_000, 3), np.uint8))).shape[:2] == (1, 192)
    assert back(picture_uri(np.zeros((1, 1, 3), np.uint8))).shape == (1, 1, 3)
    assert back(picture_uri(np.zeros((100, 100), np.uint8))).shape == (100, 100)


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


def test_curves_read_what_lightning_wrote(tmp_path: Path) -> None:
    """Two epochs of four steps, logged every other step, validation at the end of each: x counts epochs done.

    The last step of an epoch is step 3, so 4 steps an epoch; a row of step 1 lies at 0.5 epochs, validation at 1 and 2.
    """
    logger = CSVLogger(tmp_path, name="", version="")
    for epoch in range(2):
        for step in (1, 3):
            logger.log_metrics({"epoch": epoch, "train/loss": 1.0 / (4 * epoch + step)}, step=4 * epoch + step)
        logger.log_metrics({"epoch": epoch, "val/accuracy": 0.5 + epoch / 4}, step=4 * epoch + 3)
    logger.save()
    found = read_curves(tmp_path / "metrics.csv")
    assert set(found) == {"train/loss", "val/accuracy"}
    assert [x for x, _ in found["train/loss"]] == [0.5, 1, 1.5, 2]
    assert found["val/accuracy"] == [(1, 0.5), (2, 0.75)]


def test_curves_read_rows_of_names_and_the_later_of_two_measurements_counts(tmp_path: Path) -> None:
    """A resumed run may repeat steps; the chart must not go back in time, and NaN stays NaN."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,epoch,name,value\n1,0,lr,9.0\n0,0,lr,0.1\n1,0,lr,0.2\n3,1,lr,nan\n", encoding="utf-8")
    found = read_curves(path)["lr"]
    assert found[:2] == [(0.5, 0.1), (1.0, 0.2)]
    assert math.isnan(found[2][1])
    path.write_text("step,epoch,name,value\n", encoding="utf-8")
    assert read_curves(path) == {}


@pytest.mark.parametrize("content", [b"\x00\xff", b"step,epoch,name,value\nx,y,lr,0.1\n", b"step,epoch,name\n1,1,lr\n"])
def test_a_damaged_file_of_measurements_is_named(tmp_path: Path, content: bytes) -> None:
    """Catches: a traceback where bytes are no text, words are no numbers or a column is missing."""
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"metrics\.csv is damaged"):
        read_curves(path)
