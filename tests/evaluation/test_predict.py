# SPDX-License-Identifier: Apache-2.0
"""Files named by the user are classified each by its pixels, and no prediction is lost."""

import csv
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from untrained import photo, untrained
from viticulture.cli import main
from viticulture.tasks.classification import ClassPrediction
from viticulture.tasks.segmentation import ClassMap, SegmentationPrediction
from viticulture.tasks.task import class_columns, task_of
from viticulture.text import shell_word
from viticulture.training.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return untrained(tmp_path / "run", ("=cmd()", "\x1b[31mred"))


def test_every_image_is_classified_by_its_own_pixels(run: RunFolder, tmp_path: Path) -> None:
    shapes = [(24, 40), (40, 24), (20, 20), (12, 60)]
    photos = [str(photo(tmp_path / f"{i}.png", i, shape)) for i, shape in enumerate(shapes)]
    torn = tmp_path / "torn.png"
    torn.write_bytes(b"")
    named = [photos[0], photos[0], str(torn), *photos[1:], photos[2]]
    together = task_of(run).predict(list(map(Path, named)), "last")
    assert [one.name for one in together] == named
    for one in (one for one in together if one.name != str(torn)):
        (alone,) = task_of(run).predict([Path(one.name)], "last")
        assert one.probabilities == pytest.approx(alone.probabilities, abs=1e-5), "float32, in batches of two sizes"
    assert together[2].error
    assert len({round(one.probability, 4) for one in together}) == 5, "answers differ, so a mix-up would show"


def test_undecodable_names_and_formulas_are_written(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo(tmp_path / "photos" / "a.png", 0)
    os.rename(tmp_path / "photos" / "a.png", os.fsencode(tmp_path / "photos") + b"/q\xff.png")  # noqa: PTH104
    for out in ("predictions.csv", "predictions.json"):
        assert main(["predict", str(run.path), str(tmp_path / "photos"), "--out", str(tmp_path / out)]) == 0
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as file:
        heading, row = csv.reader(file)
    assert heading == ["name", "label", "probability", "known", "similarity", "'=cmd()", "\\x1b[31mred", "error"]
    assert row[0].endswith("q\\udcff.png")
    (answer,) = json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8"))
    assert answer["name"] == row[0]
    assert float(row[2]) == answer["probability"]


def test_what_cannot_be_classified_is_one_line(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torn.png").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.png")
    for name, said in {
        "": "name is empty",
        str(tmp_path / "torn.png"): "no image could be read; ",
        str(tmp_path / "pipe.png"): "is not a file",
        str(tmp_path / "absent.png"): "no file or folder",
    }.items():
        assert main(["predict", str(run.path), name, "--out", str(tmp_path / "x.csv")]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not (tmp_path / "x.csv").exists()


def test_an_unfinished_run_is_reported(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(photo(tmp_path / "a.png", 0))
    for status, words in (("running", f"`viticulture resume {shell_word(run.path)}` continues it"), ("finished", "")):
        run.update(status=status)
        for command in (
            ["predict", str(run.path), image],
            ["export", str(run.path), "--out", str(tmp_path / "a.onnx")],
        ):
            assert main(command) == 0
            error = capsys.readouterr().err
            assert words in error
            assert ("weights  last" in error) == (command[0] == "export")
            assert ("so far" in error) == (status == "running")
    run.update(status="running")
    run.lock()
    assert main(["predict", str(run.path), image]) == 0
    assert "is still training" in capsys.readouterr().err
    run.unlock()


def test_a_class_named_like_a_column_has_its_column() -> None:
    told = ClassPrediction("a.png", "label", 0.75, {"label": 0.75, "cat": 0.25})
    (row,) = csv.DictReader(io.StringIO(ClassPrediction.csv([told])))
    assert row == {
        "name": "a.png",
        "label": "label",
        "probability": "0.75",
        "known": "",
        "similarity": "",
        "probability of label": "0.75",
        "cat": "0.25",
        "error": "",
    }
    assert class_columns(["cat", "predicted"], ("name", "label", "predicted")) == ["cat", "probability of predicted"]
    pixels = ClassMap.of(np.array([[0, 1, 2, 2]], np.uint8))
    names = ("name", "error", "cat")
    (row,) = csv.DictReader(
        io.StringIO(SegmentationPrediction.csv([SegmentationPrediction("a.png", pixels, names)], names))
    )
    assert row == {"name": "a.png", "share of name": "0.25", "share of error": "0.25", "cat": "0.5", "error": ""}


def test_the_most_likely_classes_are_listed_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(untrained(tmp_path / "three", ("ape", "bee", "cat")).path)
    (tmp_path / "torn.png").write_bytes(b"")
    names = [str(photo(tmp_path / "a.png", 0)), str(tmp_path / "torn.png")]
    for out in ("all.csv", "all.json"):
        assert main(["predict", path, *names, "--top", "9", "--out", str(tmp_path / out)]) == 0
    shown = capsys.readouterr().out
    first, torn = json.loads((tmp_path / "all.json").read_text())
    ranked = sorted(first["probabilities"].items(), key=lambda pair: -pair[1])
    assert [tuple(pair) for pair in first["top"]] == ranked
    assert (first["label"], torn["top"]) == (ranked[0][0], [])
    with (tmp_path / "all.csv").open() as file:
        good, bad = csv.DictReader(file)
    assert (good["label 2"], good["label 3"], bad["label 3"], bad["error"]) == (
        ranked[1][0],
        ranked[2][0],
        "",
        "empty file",
    )
    assert float(good["probability 2"]) == ranked[1][1]
    assert f"{ranked[1][0]} {100 * ranked[1][1]:.1f} %" in shown
    assert main(["predict", path, names[0], "--top", "0"]) == 2
    assert "at least 1, got 0" in capsys.readouterr().err
