# SPDX-License-Identifier: Apache-2.0
"""`viticulture compare --folds`: cross-validation, from the command to the page."""

import csv
import os
from pathlib import Path

import pytest

from noise import photographs
from viticulture.errors import UserError
from viticulture.report.study_page import study_warnings, write_study
from viticulture.study.comparison import PairedResults
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.plan import StudyPlan
from viticulture.study.run import run_study
from viticulture.study.study import Study
from viticulture.study.terms import Subsets, Where
from viticulture.study.work import Worker

SMALL = {"train.batch_size": 8}
ROWS = (
    Candidate("plain ViT", "default/digits", {**SMALL, "augment.padded_crop": None}),
    Candidate("cropped", "default/digits", SMALL),
)


def work(path: Path) -> list[str]:
    """Train what is missing; return the printed lines."""
    said: list[str] = []
    Worker(StudyFolder.open(path), said.append).run()
    return said


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two candidates on three folds of 60 pictures, one training lost and repeated."""
    root = tmp_path_factory.mktemp("folds")
    os.environ["VITICULTURE_CACHE"] = str(root / "cache")
    grid = Grid(str(photographs(root / "photos")), ROWS, Subsets(folds=3), (0, 1, 2), epochs=1)
    study = StudyFolder.create(root / "study", grid, "viticulture compare photos --folds 3")
    names = [one.name for one in ROWS]
    epochs = {(name, "all images"): 1 for name in names}
    study.update(plan=StudyPlan(epochs, {}, dict.fromkeys(names, 100), dict.fromkeys(names, 5.0)).to_dict())
    said = work(study.path)
    assert len(said) == 6
    assert "fold 2" in said[-1]
    study.clear(grid.cells()[0])
    assert len(work(study.path)) == 1, "only what is missing is trained"
    return study.path


def test_folds_without_images_of_a_class_are_refused_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITICULTURE_CACHE", str(tmp_path / "cache"))
    grid = Grid(str(photographs(tmp_path / "photos")), ROWS, Subsets(folds=50), tuple(range(50)), epochs=1)
    study = StudyFolder.create(tmp_path / "study", grid, "viticulture compare photos --folds 50")
    said: list[str] = []
    with pytest.raises(UserError, match="50 folds need 50 images of every class"):
        run_study(study, Where(workers=1), said.append, lambda _, plan: None)
    assert said == []


def test_folds_are_shared_by_the_rows_and_test_every_image_once(crossed: Path) -> None:
    study = StudyFolder.open(crossed)
    tested: dict[str, list[str]] = {}
    for cell in study.grid.cells():
        names = study.run(cell).read("split.json")["names"]
        assert not set(names["train"]) & {*names["val"], *names["test"]}
        tested.setdefault(cell.candidate.name, []).extend(names["test"])
    first, second = tested.values()
    assert first == second
    assert len(set(first)) == len(first) == 60


def test_numbers_and_texts_are_those_of_folds(crossed: Path) -> None:
    study = Study(crossed)
    page = write_study(study).read_text(encoding="utf-8")
    for words in ("Means over folds", "min a fold", "folds", "Nadeau and Bengio", "1/3 + 1/2", "--data.fold"):
        assert words in page, words
    text = (crossed / "summary.md").read_text(encoding="utf-8") + study.conclusion + " ".join(study_warnings(study))
    assert "seed" not in text
    assert "corrected for their shared training images" in text
    with (crossed / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["fold"] for row in rows) == sorted("001122")
    entry = study.comparisons[-1].ranking[0]
    assert PairedResults(study.folder).own_images(entry.outcomes)
    sd, low, high = entry.test.sd, entry.test.low, entry.test.high
    assert sd is not None
    assert low is not None
    assert high is not None
    student = 4.302653 * sd * (1 / 3 + 1 / 2) ** 0.5
    share = (60 * entry.test.mean + 1.92) / 63.84
    images = 1.959964 * (share * (1 - share) / 63.84) ** 0.5
    assert (high - low) / 2 == pytest.approx(max(student, images), rel=1e-3), "all 60 images count"


def test_a_declared_study_of_folds_is_read_as_it_was_written(crossed: Path) -> None:
    study = StudyFolder.open(crossed)
    assert study.grid.subsets == Subsets(folds=3)
    assert study.grid.cells()[0].name.endswith("fold-0")
    assert study.extend() == []
    other = Grid(study.grid.data, study.grid.candidates, Subsets(folds=4), (0, 1, 2), study.grid.conditions, epochs=1)
    assert StudyFolder(crossed, other).terms != study.terms
