# SPDX-License-Identifier: Apache-2.0
"""Weights trained on the images by which a training is evaluated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import viticulture
from photographs import pictures
from refusals import refused
from trained import trained
from viticulture.errors import UserError
from viticulture.training.session import begin

FEW = {"train.epochs": 1, "images.image_size": 16, "images.cache_size": 16}


@pytest.fixture
def photos(tmp_path: Path) -> str:
    """Write a hundred images without declared splits."""
    return str(pictures(tmp_path / "photos", {"cats": 50, "dogs": 50}))


def warnings(out: Path, data: str, overrides: dict[str, Any]) -> list[str]:
    """Return the warnings of a session."""
    session = begin(data, "default/digits", 0, str(out), False, overrides, "test")
    session.run.unlock()
    return session.warnings


def test_weights_trained_on_test_images_are_refused(tmp_path: Path, photos: str) -> None:
    """As a start, as a teacher, also by its file, and as the start of the start."""
    known = trained(tmp_path / "known", {**FEW, "data.test_fraction": 0.1}, data=photos)
    others = str(pictures(tmp_path / "others", {"cats": 20, "dogs": 20}))
    heir = trained(tmp_path / "heir", {**FEW, "student.init": str(known.path)}, data=others)
    more = {**FEW, "data.test_fraction": 0.4}
    for number, run in enumerate((known.path, known.path / "weights" / "last", heir.path)):
        with pytest.raises(UserError, match=r"student\.init: .*known was trained on \d+ of the \d+ test images"):
            warnings(tmp_path / f"start{number}", photos, {**more, "student.init": str(run)})
    teacher = {"guides.logits": {"teacher": str(known.path)}}
    with pytest.raises(UserError, match=r"guides\.logits\.teacher: .*known was trained on"):
        warnings(tmp_path / "taught", photos, {**more, **teacher})
    assert not (tmp_path / "taught").exists(), "told before the folder is made"
    file = {"guides.logits": {"teacher": f"vit_nano={known.path}/weights/last/model.safetensors"}}
    refused(r"guides\.logits\.teacher: .*known was trained on", warnings, tmp_path / "file", photos, {**more, **file})
    same = {**FEW, "data.test_fraction": 0.1}
    assert not any("was trained on" in said for said in warnings(tmp_path / "same", photos, {**same, **teacher}))


def test_one_folder_is_one_by_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = pictures(tmp_path / "photos", {"a/cats": 50, "b/dogs": 50})
    known = trained(tmp_path / "known", {**FEW, "data.test_fraction": 0.1}, data=f"{photos}/*")
    (tmp_path / "link").symlink_to(photos)
    monkeypatch.chdir(photos / "a")
    heir = {**FEW, "data.test_fraction": 0.4, "student.init": str(known.path)}
    for number, same in enumerate((str(photos), f"{tmp_path}/link/*", "..")):
        refused(r"known was trained on \d+ of the \d+ test images", warnings, tmp_path / f"heir{number}", same, heir)


def test_a_folder_may_be_a_part_of_another(tmp_path: Path) -> None:
    """Weights that were trained without labels on the folder of test images."""
    photos = pictures(tmp_path / "photos", {"train/cats": 8, "train/dogs": 8, "test/cats": 8, "test/dogs": 8})
    without_labels = {**FEW, "method.name": "mae", "student.name": "vit_nano", "train.batch_size": 8}
    known = trained(
        tmp_path / "known",
        {**without_labels, "data.test_fraction": 0, "data.val_fraction": 0},
        data=str(photos / "test"),
    )
    with pytest.raises(UserError, match=r"known was trained on 16 of the 16 test images"):
        warnings(tmp_path / "heir", str(photos), {**FEW, "student.init": str(known.path)})


def test_weights_trained_on_validation_images_are_reported(tmp_path: Path, photos: str) -> None:
    known = trained(tmp_path / "known", {**FEW, "data.val_fraction": 0.1}, data=photos)
    said = warnings(tmp_path / "heir", photos, {**FEW, "data.val_fraction": 0.4, "student.init": str(known.path)})
    assert any("validation images, so validation results are too good" in line for line in said)


def test_images_of_the_same_names_are_not_identified(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    one, other = (draw.integers(0, 256, (100, 16, 16, 3), dtype=np.uint8) for _ in range(2))
    labels = np.arange(100) % 2
    few = {**FEW, "data.test_fraction": 0.1}
    known = viticulture.train(
        (one, labels), "default/digits", out=str(tmp_path / "known"), overrides=few, progress=False
    )
    heir = {**FEW, "data.test_fraction": 0.4, "student.init": str(known.path)}
    viticulture.train((other, labels), "default/digits", out=str(tmp_path / "heir"), overrides=heir, progress=False)
    with pytest.raises(UserError, match="known was trained on"):
        viticulture.train((one, labels), "default/digits", out=str(tmp_path / "same"), overrides=heir, progress=False)


def test_a_damaged_run_is_no_traceback(tmp_path: Path, photos: str) -> None:
    known = trained(tmp_path / "known", {**FEW, "data.test_fraction": 0.1}, data=photos)
    (known.path / "split.json").write_text("{}")
    assert warnings(tmp_path / "heir", photos, {**FEW, "student.init": str(known.path)}) is not None
