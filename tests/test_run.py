# SPDX-License-Identifier: Apache-2.0
"""Runs in Python and notebooks: tables, images of any kind, the head of the page."""

import csv
import io
import re
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

import viticulture
from refusals import refused
from viticulture.api import run as api_run
from viticulture.data.images.decode import as_pixels, decode
from viticulture.data.open import open_source
from viticulture.errors import UserError
from viticulture.evaluation import inputs
from viticulture.evaluation.inputs import as_images
from viticulture.table import Column, Spread, Table
from viticulture.tasks.classification import ClassPrediction
from viticulture.tasks.detection import DetectionPrediction
from viticulture.tasks.multilabel import LabelsPrediction


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> viticulture.Run:
    path = tmp_path_factory.mktemp("runs") / "digits & <co>"
    few = {"data.per_class": 4, "train.epochs": 2, "train.batch_size": 20, "schedule.warmup_epochs": 1}
    return viticulture.train("digits", "default/digits", out=str(path), overrides=few)


def predicted(run: viticulture.Run, images: object) -> list[ClassPrediction]:
    return cast("list[ClassPrediction]", run.predict(images))


def test_a_run_is_opened_by_its_folders_name(run: viticulture.Run, tmp_path: Path) -> None:
    for opened in (viticulture.open(str(run.path)), viticulture.Run(str(run.path))):  # type: ignore[arg-type]
        assert opened == run
        assert opened.path / "run.json" == run.path / "run.json"
    refused("no run", viticulture.open, tmp_path)
    wrong: tuple[Any, ...] = (None, 5, b"run", [])
    for given in wrong:
        for verb in (viticulture.open, viticulture.resume, viticulture.report, viticulture.robustness):
            refused("a run is a folder, by str or Path, got", verb, given)


def test_every_command_takes_a_run_or_a_path(run: viticulture.Run, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.txt"
    boxes.write_text("a 0 0 1 1\n")
    for named in (run, run.path, str(run.path)):
        assert viticulture.report(named, compare_with=named) == run.path / "report.html"
        refused(r"must end in .onnx", viticulture.export, named, tmp_path / "x.txt")
        refused("nowhere", viticulture.localize, named, str(boxes), weights="nowhere")
        refused("nowhere", viticulture.serve, named, "nowhere", port=0)
        refused("links", viticulture.links, named)
        refused("USER/NAME", viticulture.push, named, "nobody")


def test_the_repr_is_short(run: viticulture.Run, tmp_path: Path) -> None:
    assert repr(run) == f"<Run {run.path}: vit_nano on digits, finished>"
    assert repr(viticulture.Run(tmp_path)) == f"<Run {tmp_path}: no run>"
    (prediction,) = predicted(run, np.zeros((8, 8), np.uint8))
    expected = f"name='image 0', label={prediction.label!r}, probability={prediction.probability!r}, error=''"
    assert repr(prediction) == f"ClassPrediction({expected})"
    assert repr(LabelsPrediction("a", ("x",), {"x": 1.0})) == "LabelsPrediction(name='a', labels=('x',), error='')"
    dense = DetectionPrediction("a", None, ("x",), "broken")
    assert repr(dense) == "DetectionPrediction(name='a', error='broken')"


def test_a_list_of_runs_is_a_table(run: viticulture.Run) -> None:
    pandas = pytest.importorskip("pandas")
    listed = viticulture.runs(str(run.path.parent))
    table = pandas.DataFrame(listed)
    assert list(table.columns[:3]) == ["run", "data", "student"]
    assert (table.run[0], table["top-1"][0]) == (run.path.name, run.accuracy)
    assert repr(listed).startswith(f"<Table Runs in {run.path.parent}: 1 row of run, data, student")
    columns = [Column("a"), Column("b", "spread"), Column("a")]
    assert Table("", columns, [["x", Spread((1.0, 3.0)), "y"]]).csv().splitlines() == [
        "a,b mean,b sd,b seeds,a", "x,2.0,1.4142135623730951,2,y",
    ]  # fmt: skip


def test_tables_agree_with_the_files(run: viticulture.Run) -> None:
    pandas = pytest.importorskip("pandas")
    counting = run.results.counting
    assert counting is not None
    metrics, history, confusion, answers = run.metrics, run.history, run.confusion, run.predictions
    assert all(isinstance(table, pandas.DataFrame) for table in (metrics, history, confusion, answers))
    assert metrics.loc[metrics.counts, "top1"].item() == run.accuracy
    assert list(history.epoch) == [1, 2]
    with (run.path / "metrics.csv").open() as file:
        last = [row["value"] for row in csv.DictReader(file) if row["name"] == "train/loss"][-1]
    assert history["train/loss"].iloc[-1] == float(last)
    assert tuple(confusion.columns) == tuple(confusion.index) == run.classes
    assert (confusion.to_numpy() == counting.confusion).all()
    assert (answers.label == answers.predicted).mean() == run.accuracy
    assert (answers[list(run.classes)].idxmax(axis=1) == answers.predicted).mean() > 0.99  # ties in float16
    assert pandas.crosstab(answers.label, answers.predicted).loc["3"].sum() == confusion.loc["3"].sum()
    assert run.recipe["student"]["name"] == "vit_nano"
    assert run.report.is_file()


def test_without_pandas_a_table_is_a_list(run: viticulture.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_run, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["epoch"] for row in run.history] == [1, 2]
    assert run.metrics[0].keys() >= {"weights", "split", "top1"}


def test_an_image_is_the_same_in_every_form(run: viticulture.Run, tmp_path: Path) -> None:
    gray = np.random.default_rng(0).integers(0, 256, (2, 8, 8), np.uint8)
    pixels = gray[..., None].repeat(3, axis=-1)
    files = []
    for i, array in enumerate(pixels):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(array).save(files[-1])
    first, second = (prediction.probabilities for prediction in predicted(run, files))
    assert first != pytest.approx(second, abs=1e-3)
    tensors = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    alone = [str(files[0]), files[0], Image.open(files[0]), gray[0], pixels[0], pixels[0] / 255, tensors[0]]
    for image in [*alone, tensors[0].float() / 255, tensors[0, :1]]:
        (prediction,) = predicted(run, image)
        assert prediction.probabilities == pytest.approx(first, abs=1e-5), "float32, in batches of one and two"
    together = [
        files,
        np.array(list(map(str, files))),
        [str(files[0]), pixels[1]],
        pixels,
        tensors,
        tuple(tensors / 255),
        str(tmp_path),
        iter(files),
    ]
    if pandas := sys.modules.get("pandas"):
        together.append(pandas.DataFrame({"path": files}).path)
    for images in together:
        assert [prediction.probabilities for prediction in predicted(run, images)] == [first, second]
    assert [prediction.name for prediction in predicted(run, [pixels[0], files[1]])] == ["image 0", str(files[1])]


def test_an_invalid_picture_is_reported_by_its_place(run: viticulture.Run, tmp_path: Path) -> None:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(content, "PNG")
    path = tmp_path / "good.png"
    path.write_bytes(content.getvalue())
    closed, unread, cut = Image.open(path), Image.open(path), Image.open(io.BytesIO(content.getvalue()[:400]))
    closed.load()
    for picture in (closed, unread):
        picture.close()
    with path.open("rb") as file:
        outside = Image.open(file)
    bad: list[tuple[object, str]] = [
        (closed, "was closed before"),
        (unread, "was closed before"),
        (outside, "was closed before"),
        (cut, "truncated"),
        (file, "closed file"),
        (io.StringIO("x"), "binary"),
        (None, "no image: None"),
        (float("nan"), "no image: nan"),
        (pixels[:0], "an image if"),
        (np.full((8, 8), np.nan), "floats from 0 to 1"),
        (torch.zeros(300, 8, dtype=torch.complex64), r"no image: ndarray \[300, 8\] of complex64"),
        ({"image": pixels}, r"no image: {'image': ndarray \[32, 32, 3\] of uint8}"),
        (content.getvalue()[:400], "truncated"),
    ]
    (good,) = predicted(run, path)
    predictions = predicted(run, [image for picture, _ in bad for image in (picture, pixels)])
    assert [prediction.name for prediction in predictions] == [f"image {place}" for place in range(2 * len(bad))]
    for (_, said), prediction in zip(bad, predictions[::2], strict=True):
        assert re.search(said, prediction.error), prediction.error
        assert len(prediction.error) < 250
    for prediction in predictions[1::2]:
        assert (prediction.error, prediction.label) == ("", good.label)
    for alone in (closed, [cut]):
        refused("no image could be read; image 0: ", run.predict, alone)


def test_bytes_open_files_data_frames_and_channels_last_are_images(run: viticulture.Run, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    (expected,) = predicted(run, path)
    frame = pandas.DataFrame({"label": ["x"], "path": [str(path)]}, index=[7])
    tensor = torch.from_numpy(pixels)
    same = [path.read_bytes(), memoryview(path.read_bytes()), io.BytesIO(path.read_bytes()), frame, frame.path]
    for image in [*same, tensor, tensor[None], [tensor], tensor.permute(2, 0, 1)]:
        (prediction,) = predicted(run, image)
        assert prediction.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
    for wrong, said in (
        (frame.rename(columns={"path": "file"}), "needs the column path, and its columns are label, file"),
        (pandas.concat([frame, frame], axis=1), "two columns of the data frame are called"),
        (frame[:0], r"no images were given, got DataFrame \[0, 2\]"),
        (pixels[None][:0], "no images were given, got ndarray"),
    ):
        refused(said, run.predict, wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    {
        "": "name is empty",
        3: "no image: 3",
        b"x.png": r"not an image \(begins with 'x.png'\)",
        (None,): "no image: None",
        (): r"no images were given, got \(\)",
    }.items(),
)
def test_what_is_no_image_is_refused(given: object, said: str) -> None:
    refused(said, decoded, given)


def decoded(given: object) -> None:
    """Decode as a run of color images."""
    for image in as_images(given):
        inputs.decoded("image", image, 8)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((2, 8, 8), np.uint8), "holds 8 channels"),
        (np.zeros(5), r"\[5\]"),
        (np.zeros((0, 8, 3), np.uint8), "an image if"),
        (np.zeros((8, 8), np.int64), "int64"),
        (np.full((8, 8), 255.0), "floats from 0 to 1"),
        (np.full((8, 8), np.nan), "nan"),
    ],
)
def test_numbers_that_are_no_colors_are_refused(array: np.ndarray, said: str) -> None:
    refused(said, decoded, array)


def test_pil_images_are_upright() -> None:
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    image.getexif()[0x0112] = 6
    assert decode(as_pixels(image), "image").pixels.shape == (4, 2, 3)


def test_a_notebook_shows_the_head_of_the_page(run: viticulture.Run, tmp_path: Path) -> None:
    shown = run._repr_html_()
    assert "digits &amp; &lt;co&gt;" in shown
    assert f"top-1 {100 * run.accuracy:.1f} %" in shown
    assert "no run" in viticulture.Run(tmp_path)._repr_html_()


def test_predictions_of_a_damaged_run_are_one_line(run: viticulture.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    copy = viticulture.Run(tmp_path / "run")
    for content, said in ((b"{}", "must hold names"), (b'{"names": {"train": []}}', "holds no images of test")):
        (copy.path / "split.json").write_bytes(content)
        with pytest.raises(UserError, match=rf"split\.json.* {said}"):
            _ = copy.predictions


def test_test_images_as_arrays_have_the_saved_predictions(run: viticulture.Run) -> None:
    pytest.importorskip("pandas")
    source, answers = open_source("digits"), run.predictions
    arrays = [np.asarray(source.reader.open(list(source.names).index(name))) for name in answers.name[:5]]
    assert [prediction.label for prediction in predicted(run, arrays)] == list(answers.predicted[:5])
