# SPDX-License-Identifier: Apache-2.0
"""A run evaluated on other images: class by class, on a page, with a warning for its training images."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from untrained import photo
from viticulture.cli import main
from viticulture.data.dataset import ImageSettings, prepare_test
from viticulture.data.image_set import StreamedImages
from viticulture.tasks.image_task import trained_on
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import begin

SMALL: dict[str, Any] = {
    "student.name": "vit_nano", "student.patch_size": 4, "images.image_size": 16, "images.cache_size": 20,
    "train.epochs": 1, "train.batch_size": 4, "schedule.warmup_epochs": 0, "train.validate": "none",
}  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(16):
        photo(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", i, (24, 24))
    return tmp_path / "photos"


@pytest.fixture
def run(tmp_path: Path, photos: Path) -> Path:
    """Train for a step or two on files."""
    session = begin(str(photos), "default/photos", 0, str(tmp_path / "run"), False, SMALL, "test")
    fit(session)
    session.run.unlock()
    return tmp_path / "run"


def test_training_images_of_the_run_are_reported(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = json.loads((run / "split.json").read_text())["names"]
    mixed, fresh = tmp_path / "mixed", tmp_path / "fresh"
    for i, name in enumerate(sorted([*names["train"][:3], *names["test"][:2]])):
        (mixed / name[0]).mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / name, mixed / name[0] / f"other-{i}.png")
    for i in range(4):
        photo(fresh / "ab"[i % 2] / f"{i}.png", 100 + i, (24, 24))
    page, facts = tmp_path / "page.html", tmp_path / "facts.json"
    assert main(["evaluate", str(run), str(mixed), "--out", str(page)]) == 0
    said = capsys.readouterr()
    assert "this run was trained on 3 images of 5" in said.err
    assert "recall" in said.out, "class by class"
    text = page.read_text()
    assert "this run was trained on 3 images of 5" in text
    assert "Confusion" in text
    assert "run on" in text
    assert main(["evaluate", str(run), str(fresh), "--out", str(facts)]) == 0
    assert "this run was trained on" not in capsys.readouterr().err
    content = json.loads(facts.read_text())
    assert (content["warnings"], content["results"][f"last/{fresh}"]["images"]) == ([], 4)
    listed = "path,label\na/0.png,a\nb/1.png,b\na/2.png,\n"
    (fresh / "some.csv").write_text(listed)
    assert main(["evaluate", str(run), str(fresh / "some.csv")]) == 0
    assert "left out 1 image without a label" in capsys.readouterr().err
    photo(fresh / "cover.png", 200, (24, 24))
    assert main(["evaluate", str(run), str(fresh)]) == 0
    assert "not read: 1 image outside the class folders" in capsys.readouterr().err
    shutil.rmtree(photos)
    assert main(["evaluate", str(run), str(fresh)]) == 0
    assert "is not known" in capsys.readouterr().err


def test_images_that_are_not_compared_are_not_called_new(run: Path, photos: Path) -> None:
    images, _ = prepare_test(str(photos), ("a", "b"), ImageSettings(16, 20, max_cache_gb=1e-9))
    assert isinstance(images, StreamedImages)
    assert "is not known: streamed images" in trained_on(RunFolder(run), images)[0]


def test_an_output_file_for_the_runs_images_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--out", "x.html"]) == 2
    assert "--out is for other images" in capsys.readouterr().err
    assert main(["evaluate", str(run), "digits", "--out", "x.txt"]) == 2
    assert "must end in .html or .json" in capsys.readouterr().err
