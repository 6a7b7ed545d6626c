# SPDX-License-Identifier: Apache-2.0
"""Evaluation without held-out images, and without near-duplicates of training images."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import viticulture
from colored import SMALL, colored_csv
from dense_scenes import mask_folder
from photographs import pictures
from refusals import refused
from viticulture.cli import main
from viticulture.tasks.results import read_predictions

ALL = {"data.val_fraction": 0.0, "data.test_on": "none", "train.epochs": 1}


def classes(root: Path) -> Path:
    return pictures(root / "photos", {"a": 16, "b": 16}, side=24)


def labels(root: Path) -> Path:
    return colored_csv(root / "colors", 32)


def pixels(root: Path) -> Path:
    return mask_folder(root / "masks", {"train": 6})


@pytest.mark.parametrize(("images", "recipe"), [(classes, ""), (labels, ""), (pixels, "segmentation/photos")])
def test_no_held_out_images_is_one_line(images: Callable[[Path], Path], recipe: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {**SMALL, **ALL, "images.image_size": 24, "train.batch_size": 4}
    named = {"recipe": recipe} if recipe else {}
    run = viticulture.train(str(images(tmp_path)), out=str(tmp_path / "run"), overrides=keys, progress=False, **named)
    refused(r"held out none of its images; name others.*evaluate .*run DATA", viticulture.evaluate, str(run.path))


def test_accuracy_without_near_duplicates_is_reported_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of twelve test images four are training images as well."""
    root = tmp_path / "photos"
    pictures(root / "train", {"a": 16, "b": 16}, side=24)
    for name in ("a", "b"):
        (root / "test" / name).mkdir(parents=True)
        for i in range(2):
            shutil.copy(root / "train" / name / f"{i}.png", root / "test" / name / f"0{i}.png")
    new = pictures(tmp_path / "new", {"other than those": 32, "a": 20, "b": 20}, side=24)
    shutil.rmtree(new / "other than those")
    for name in ("a", "b"):
        for i in range(16, 20):
            shutil.copy(new / name / f"{i}.png", root / "test" / name / f"{i}.png")
    keys = {**SMALL, "data.val_fraction": 0.0, "train.epochs": 1, "images.image_size": 24, "train.batch_size": 4}
    words = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
    assert main(["train", str(root), "--out", str(tmp_path / "run"), *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text("utf-8"))
    result = kept["results"]["last/test"]
    copies = json.loads((tmp_path / "run" / "split.json").read_text("utf-8"))["near_duplicates"]["test"]
    assert copies == [f"test/{name}/0{i}.png" for name in ("a", "b") for i in range(2)]
    run = viticulture.Run(tmp_path / "run")
    predictions = read_predictions(run.folder, "last/test")
    rest = [name not in copies for name in run.folder.image_names["test"]]
    right = (predictions.predicted == predictions.labels)[rest]
    assert (result["without_copies"]["copies"], result["without_copies"]["top1"]) == (4, right.mean())
    sentence = (
        f"4 of 12 test images have near-duplicates among the training images; without them {100 * right.mean():.1f} %"
    )
    assert sentence in said
    assert sentence in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert viticulture.evaluate(str(run.path))["last/test"].without_copies.top1 == right.mean()
    other = viticulture.evaluate(str(run.path), str(new))
    assert next(iter(other.values())).without_copies is None
    run.folder.write("split.json", {"names": run.folder.image_names, "near_duplicates": {"test": 5}})
    refused(r"split\.json is damaged", viticulture.evaluate, str(run.path))
