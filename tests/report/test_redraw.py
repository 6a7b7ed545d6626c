# SPDX-License-Identifier: Apache-2.0
"""A page is a function of files: it is redrawn without a network or the images, to the same bytes."""

import json
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import viticulture
from made_results import save_classes
from refusals import refused
from viticulture import api
from viticulture.analysis.galleries import Gallery, read_galleries, save_galleries
from viticulture.analysis.pictures import examples
from viticulture.data.image_set import CachedImages, Records
from viticulture.errors import UserError
from viticulture.evaluation.outputs import Predictions
from viticulture.models.weights.files import load, save
from viticulture.report.run_page import page_of
from viticulture.report.terminal import say
from viticulture.tasks.figures import TaskPage
from viticulture.tasks.results import PREDICTIONS, RESULTS, read_predictions
from viticulture.text import shell_word
from viticulture.training.run_folder import RunFolder

SMALL = {
    "student.name": "vit_nano",
    "images.image_size": 16,
    "train.epochs": 1,
    "train.batch_size": 8,
    "data.val_fraction": 0.25,
    "train.validate": "val",
}


def photographs(folder: Path) -> Path:
    """Write two classes, eight training images of each and six test images."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 6)):
        for name in ("ash", "elm"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 255, (20, 90 if number else 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[viticulture.Run, Path, bytes]:
    """Train a run; return it, its images, and its page."""
    root = tmp_path_factory.mktemp("redraw")
    data = photographs(root / "trees")
    run = viticulture.train(str(data), "default/digits", out=str(root / "run"), overrides=SMALL)
    return run, data, (run.path / "report.html").read_bytes()


@pytest.fixture
def run(trained: tuple[viticulture.Run, Path, bytes], tmp_path: Path) -> viticulture.Run:
    """Copy the run, for tests that change its files."""
    shutil.copytree(trained[0].path, tmp_path / "run")
    return viticulture.Run(tmp_path / "run")


def test_a_student_below_the_baseline_is_reported(run: viticulture.Run, capsys: pytest.CaptureFixture[str]) -> None:
    for share, told in ((1.1, True), (0.0, False)):
        kept = run.folder.read("references.json")
        names = ("always the commonest class", "logistic regression on pixels")
        run.folder.write("references.json", {**kept, "accuracy": dict(zip(names, (0.0, share), strict=True))})
        say(run)
        shown = capsys.readouterr().out
        assert ("note: logistic regression on pixels gets 110.0 %; a student below that" in shown) is told
        assert "report: " in shown


def test_results_of_replaced_weights_are_not_shown(run: viticulture.Run, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.txt"
    boxes.write_text("".join(f"test/{name}/1.png 20 4 60 16\n" for name in ("ash", "elm")))
    viticulture.evaluate(run)
    viticulture.explain(run, images=8)
    viticulture.probe(run)
    viticulture.localize(run, str(boxes))
    viticulture.robustness(run, limit=1)
    before = {section.title for section in page_of(run.folder).sections if section.html}
    parts = {"Robustness", "Localization", "Frozen features", "What it attends to"}
    assert parts <= before
    assert len(run.results) > 0

    best = run.folder.weights("best")
    student, data_spec, config = load(best)
    with torch.no_grad():
        next(iter(student.parameters())).add_(1)
    save(student, best, data_spec, {"epoch": config["epoch"]})
    page = page_of(run.folder)
    assert not parts & {section.title for section in page.sections if section.html}
    assert page.task == TaskPage()
    with pytest.raises(UserError, match=r"of its weights; to have it: viticulture evaluate"):
        _ = run.results
    viticulture.evaluate(run)
    assert len(run.results) > 0


def refuse(*_: Any, **__: Any) -> Any:
    """Fail when called."""
    raise AssertionError("drawing measures")


def test_a_page_is_redrawn_without_images_and_networks(
    trained: tuple[viticulture.Run, Path, bytes], run: viticulture.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data, page = trained
    assert b"What it attends to" in page
    assert b"Most confident mistakes" in page
    for weights in run.path.glob("weights/*/model.safetensors"):
        weights.unlink()
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "report.html").unlink()
    gone = data.rename(data.with_name("gone"))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "__call__", refuse)
            assert api.report(str(run.path)).read_bytes() == page
    finally:
        gone.rename(data)


def test_a_run_without_saved_figures_is_completed_by_evaluation(
    trained: tuple[viticulture.Run, Path, bytes], run: viticulture.Run
) -> None:
    for name in (PREDICTIONS, "pictures.npz"):
        (run.path / name).unlink()
    page = api.report(str(run.path)).read_text()
    assert f"viticulture evaluate {shell_word(run.path)}" in unescape(page)
    assert "What it attends to" not in page
    refused("viticulture evaluate", read_predictions, run.folder)
    run.evaluate()
    assert (run.path / "report.html").read_bytes() == trained[2]
    assert read_predictions(run.folder).predicted.shape == (12,)


def test_predictions_agree_with_the_metrics(run: viticulture.Run) -> None:
    names = run.folder.read("split.json")["names"]
    assert run.results.counts == "best/test"
    assert len(run.results) >= 4
    for key, evaluation in run.results.items():
        answers = read_predictions(run.folder, key, probabilities=True)
        assert (answers.predicted == answers.labels).mean() == pytest.approx(evaluation.top1)
        assert answers.probabilities is not None
        assert answers.probabilities.shape == (len(names[key.partition("/")[2]]), 2)
        assert np.allclose(answers.probabilities.sum(1, dtype=np.float32), 1, atol=2e-3)  # float16
        label = ["ash" in name for name in names[key.partition("/")[2]]]
        assert (answers.labels == 0).tolist() == label


def test_the_result_that_counts_is_found_by_name(run: viticulture.Run) -> None:
    results = {key: {**result.to_dict(), "top1": 0.1 * i} for i, (key, result) in enumerate(run.results.items(), 1)}
    backwards = dict(reversed(results.items()))
    run.folder.write(RESULTS, {"task": "classification", "counts": "best/val", "results": backwards})
    assert run.accuracy == run.results["best/val"].top1 == results["best/val"]["top1"]
    page = api.report(str(run.path)).read_text()
    assert "Top-1 accuracy, validation, best weights" in page
    run.folder.write(RESULTS, {"task": "classification", "counts": "best/nowhere", "results": results})
    with pytest.raises(UserError, match=r"evaluation.json is damaged .*best/nowhere"):
        _ = run.accuracy


def test_predictions_survive_rounding(tmp_path: Path) -> None:
    """Two probabilities that are one in float16."""
    run = RunFolder(tmp_path)
    close = torch.tensor([[0.49999, 0.50001]])
    save_classes(run, "best/val", {"last/val": Predictions(1 - close, torch.tensor([0]), ["a"]),
                                   "best/val": Predictions(close, torch.tensor([-1]), ["a"])})  # fmt: skip
    answers = read_predictions(run)
    assert (answers.predicted.tolist(), answers.labels.tolist(), answers.probabilities) == ([1], [-1], None)
    assert read_predictions(run, "last/val").predicted.tolist() == [0]
    refused("damaged", read_predictions, run, "ema/val")


def test_galleries_are_read_for_the_same_choice_alone(tmp_path: Path) -> None:
    path = tmp_path / "pictures.npz"
    assert read_galleries(path) is None
    map_ = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    small, large = np.full((5, 4, 3), 7, np.uint8), np.zeros((400, 200, 3), np.uint8)
    shown = {"a": [Gallery("t\u2028", [([small, map_], ["x", "\udcff"]), ([large], ["y"])], "n")], "b": []}
    save_galleries(path, shown, ["these", 1])
    assert read_galleries(path, ["others", 1]) is None
    found = read_galleries(path, ["these", 1])
    assert found is not None
    (gallery,) = found["a"]
    assert (gallery.title, gallery.note, found["b"]) == ("t\u2028", "n", [])
    (pictures, words), (big, _) = gallery.groups
    assert np.array_equal(pictures[0], small)
    assert np.array_equal(pictures[1], map_)
    assert (words, big[0].shape) == (["x", "\udcff"], (192, 96, 3))
    path.write_bytes(path.read_bytes()[:200])
    refused("damaged", read_galleries, path)


def test_examples_are_limited() -> None:
    labels = torch.tensor([c for c in range(40) for _ in range(10) if c != 3])
    images = CachedImages(
        torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(390, dtype=torch.long),
        Records(labels, torch.full((390, 2), 4), [""] * 390),
    )  # fmt: skip
    (gallery,) = examples(images, [f"class {c}" for c in range(40)])
    assert [words for _, words in gallery.groups] == [(f"class {c}",) for c in range(12) if c != 3]
    assert {len(pictures) for pictures, _ in gallery.groups} == {4}


def test_evaluation_json_names_the_result_that_counts(run: viticulture.Run) -> None:
    written = json.loads((run.path / RESULTS).read_text())
    assert set(written) == {"task", "counts", "headline", "results", "checksums"}
    assert written["counts"] in written["results"]
