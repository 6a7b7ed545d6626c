# SPDX-License-Identifier: Apache-2.0
"""Studies of detectors, segmenters and multilabel students: ranked by their metric, with intervals."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import viticulture
from colored import colored_csv
from dense_scenes import coco_folder, mask_folder
from viticulture.config.load import load_config
from viticulture.data.targets.objects import Boxed, Masked, Objects
from viticulture.errors import UserError
from viticulture.evaluation.outputs import Predictions
from viticulture.models.data_spec import DataSpec
from viticulture.models.detection.networks import detector, segmenter
from viticulture.models.students import create_student
from viticulture.report.study_page import write_study
from viticulture.report.study_tables import all_results_table
from viticulture.study.cell import contents, is_vit
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.paper_tables import read_table
from viticulture.study.plan import StudyPlan
from viticulture.study.statistics import difference, estimate_resampled
from viticulture.study.study import Study
from viticulture.study.terms import Subsets, Where
from viticulture.tasks.detection import Detection
from viticulture.tasks.detection_metrics import DetectedObjects, evaluate_detections
from viticulture.tasks.multilabel import Multilabel
from viticulture.tasks.multilabel_metrics import MultilabelResult, evaluate_labels
from viticulture.tasks.results import RESULTS, Result, Results
from viticulture.tasks.segmentation import Segmentation
from viticulture.tasks.segmentation_metrics import evaluate_pixels
from viticulture.tasks.task import Task

IMAGES, NAMES = 40, ("disk", "square")


def boxes_found(seed: int, share: float) -> Result:
    """Create the result of a detector that finds that share of the objects."""
    draw = np.random.default_rng(seed)
    true, found = [], []
    for _ in range(IMAGES):
        corners = draw.uniform(0, 60, (3, 2))
        boxes = np.concatenate([corners, corners + 20], 1).astype(np.float32)
        labels = draw.integers(0, 2, 3)
        true.append(Objects(torch.from_numpy(boxes), torch.from_numpy(labels), torch.zeros(3, dtype=torch.bool)))
        right = draw.uniform(size=3) < share
        said = np.where(right[:, None], boxes, boxes + 40)
        found.append(DetectedObjects(said, draw.uniform(0.5, 1, 3).astype(np.float32), labels))
    return evaluate_detections(found, Boxed(true, masks=False), NAMES, np.full((IMAGES, 2), 100))


def pixels_found(seed: int, share: float) -> Result:
    """Create the same of a segmenter."""
    draw = np.random.default_rng(seed)
    true = draw.integers(0, 2, (IMAGES, 8, 8)).astype(np.uint8)
    said = np.where(draw.uniform(size=true.shape) < share, true, 1 - true).astype(np.uint8)
    masked = Masked(torch.from_numpy(true), torch.arange(IMAGES), lambda i: true[i])
    return evaluate_pixels(said, masked, NAMES, 0)[0]


def labels_found(seed: int, share: float) -> MultilabelResult:
    """Create the same of a student of several labels."""
    draw = np.random.default_rng(seed)
    true = torch.from_numpy(draw.uniform(size=(IMAGES, 2)) < 0.5).float()
    right = torch.from_numpy(draw.uniform(size=true.shape) < share)
    said = torch.where(right, true, 1 - true) * 0.5 + torch.from_numpy(draw.uniform(0, 0.5, true.shape))
    return evaluate_labels(Predictions(said.float(), true, [""] * IMAGES), NAMES, [0.5, 0.5])


JUDGES: dict[str, Any] = {"objects": boxes_found, "pixels": pixels_found, "labels": labels_found}
TASKS: dict[str, type[Task]] = {"objects": Detection, "pixels": Segmentation, "labels": Multilabel}
CURVES = {"objects": "ap50", "pixels": "iou", "labels": "map"}
RECIPES = {"objects": "detection/photos", "pixels": "segmentation/photos", "labels": "multilabel/photos"}


def made(path: Path, kind: str, candidates: dict[str, tuple[float, Candidate]], seeds: int) -> Study:
    """Create a study's folder without training: each candidate gets its share right."""
    grid = Grid("cells", tuple(one for _, one in candidates.values()), Subsets(), tuple(range(seeds)), epochs=4)
    folder = StudyFolder.create(path, grid, "viticulture compare cells")
    epochs = {(name, subset.name): 4 for name in candidates for subset in grid.subsets.each()}
    plan = StudyPlan(epochs, {}, dict.fromkeys(candidates, 60), dict.fromkeys(candidates, None))
    folder.update(plan=plan.to_dict())
    for cell in grid.cells():
        run = folder.run(cell)
        run.path.mkdir(parents=True)
        share = candidates[cell.candidate.name][0]
        judge = JUDGES[kind]
        test = judge(cell.seed, share)
        results = {"best/test": test, "best/val": judge(100 + cell.seed, share), "last/test": judge(cell.seed, 0.01)}
        run.write(RESULTS, Results("best/test", results, TASKS[kind]).to_dict())
        curve = CURVES[kind]
        run.write("metrics.csv", f"step,epoch,name,value\n9,0,val/{curve},0.2\n18,1,val/{curve},0.4\n")
        images = {"train": 90, "val": IMAGES, "test": IMAGES}
        run.write(
            "run.json",
            {
                **{"format": 2, "status": "finished", "cell": contents(folder, cell, plan), "vit": True, "epochs": 4},
                **{"seconds": 60.0, "steps": 36, "batch_size": 4, "seed": cell.seed, "warnings": []},
                **{"recipe": cell.candidate.recipe, "versions": {"viticulture": "0"}},
                "student": {"name": "vit_nano", "parameters": 200_000, "macs": 3_000_000},
                "data": {"source": "cells", "folder": None, "classes": list(NAMES), "images": images},
                "hardware": {"cpu": "a CPU", "cores": 2, "gpus": []},
            },
        )
    return Study(path)


def field(kind: str, shares: dict[str, float], **measures: str) -> dict[str, tuple[float, Candidate]]:
    return {
        name: (
            share,
            Candidate(name, RECIPES[kind], {"optim.lr": 1e-4 * (1 + i)}, measure=measures.get(name, "accuracy")),
        )
        for i, (name, share) in enumerate(shares.items())
    }


@pytest.mark.parametrize(
    ("kind", "title", "words"),
    [
        ("objects", "AP of boxes", "reaches an AP of boxes of"),
        ("pixels", "mIoU", "reaches an mIoU of"),
        ("labels", "mAP", "reaches an mAP of"),
    ],
)
def test_a_study_ranks_by_its_metric_and_names_it(tmp_path: Path, kind: str, title: str, words: str) -> None:
    share = 0.99 if kind == "labels" else 0.9  # mAP of few images is the noisiest
    found = made(tmp_path / "study", kind, field(kind, {"plain": 0.5, "better": share}), 3)
    comparison = found.comparisons[-1]
    expected = [JUDGES[kind](seed, share).score for seed in range(3)]
    assert (comparison.ranked_by, comparison.leader.candidate.name, found.winner) == ("val", "better", "better")
    assert comparison.leader.test.values == pytest.approx(expected)
    assert found.conclusion.startswith("better trains the best ViT on cells, all images: it reaches")
    assert words in found.conclusion
    assert comparison.rivals["plain"].over_images is not None
    assert found.rows[0]["measure"] == {"objects": "ap", "pixels": "miou", "labels": "map"}[kind]
    page = write_study(found).read_text(encoding="utf-8")
    assert f"{title} on cells, %" in re.sub("</?abbr[^>]*>", "", page)
    assert "the bootstrap interval over the test images" in page
    assert "Learning curves" in page
    assert "accuracy" not in page.lower().partition("<body")[2].partition("how to reproduce")[0]


def test_equally_good_detectors_have_no_winner(tmp_path: Path) -> None:
    found = made(tmp_path / "study", "objects", field("objects", {"one": 0.6, "other": 0.62}), 3)
    assert found.winner is None
    assert found.conclusion.startswith("No winner on cells")


def test_a_row_names_another_metric(tmp_path: Path) -> None:
    measures = {"plain": "ap50", "better": "ap50", "masks": "ap_masks"}
    shares = {"plain": 0.5, "better": 0.9, "masks": 0.9}
    found = made(tmp_path / "study", "objects", field("objects", shares, **measures), 3)
    comparison = found.comparisons[-1]
    fifty = [boxes_found(seed, 0.9).measures["ap50"] for seed in range(3)]
    assert comparison.leader.test.values == pytest.approx(fifty)
    assert [one.candidate.name for one in comparison.ranking] == ["better", "plain"]
    assert comparison.measure.title == "AP50 of boxes"
    assert comparison.rivals["plain"].over_images is None  # draws are kept of what counts alone


def test_a_page_names_the_intervals_it_has(tmp_path: Path) -> None:
    shares = {"labels": 0.5, "a": 0.6, "b": 0.7, "a + b": 0.9}
    found = made(tmp_path / "study", "objects", field("objects", shares, **dict.fromkeys(shares, "ap50")), 3)
    page = write_study(found).read_text(encoding="utf-8")
    assert "bootstrap" not in page
    assert "Differences in AP50 over labels" in page
    note = " ".join((all_results_table(found).note, rule_of(page)))
    assert "Student's over seeds. " in note
    assert "with Student's interval." in note
    assert "Student's interval over seeds lies above zero" in note
    assert "over seeds and test images" not in note


def rule_of(page: str) -> str:
    """Read the page's rule for a winner."""
    return unescape(page).partition("beats every rival")[2][:200]


def test_bootstrap_intervals_of_metrics_agree_with_those_of_predictions() -> None:
    """Shares of images right, drawn 4,000 times."""
    draw = np.random.default_rng(0)
    ours, theirs = draw.random((4, 300)) < 0.7, draw.random((4, 300)) < 0.6
    often = draw.multinomial(300, np.full(300, 1 / 300), size=4000) / 300
    right = ours.astype(np.int8) - theirs.astype(np.int8)
    known = difference(ours.mean(1).tolist(), theirs.mean(1).tolist(), right)
    drawn = difference(ours.mean(1).tolist(), theirs.mean(1).tolist(), resampled=right @ often.T)
    assert drawn.over_images is not None
    assert known.over_images is not None
    assert drawn.mean == known.mean
    assert drawn.floor == pytest.approx(known.floor, rel=0.05)
    assert drawn.over_images.low == pytest.approx(known.over_images.low, abs=0.01)
    assert drawn.over_images.high == pytest.approx(known.over_images.high, abs=0.01)
    alone = estimate_resampled([0.7] * 4, ours @ often.T)  # without a spread over seeds
    assert (alone.low, alone.high) == pytest.approx(np.quantile((ours @ often.T).mean(0), [0.025, 0.975]))
    assert estimate_resampled([0.5, 0.5], None).low == 0.5


def test_a_detector_with_a_vit_counts_as_a_vit() -> None:
    data_spec = DataSpec(NAMES, (32, 32), (0.5,) * 3, (0.5,) * 3)
    for name, around in (("dhvt_nano", detector), ("vit_nano", segmenter)):
        student = create_student(name, DataSpec((), (32, 32), (0.5,) * 3, (0.5,) * 3), 8, {"depth": 1})
        assert is_vit(around(student, data_spec))


def test_box_and_mask_ap_are_two_metrics_of_one_network() -> None:
    """ "A Closer Look", Tables 4 and 5: four starts, each with AP of boxes and of masks from one training."""
    table = read_table("mae/table4-coco")
    published = [40.7, 36.5, 40.0, 36.0, 38.9, 35.1, 42.7, 38.2]
    assert [(row.published, row.measure) for row in table.rows] == list(
        zip(published, ["accuracy", "ap_masks"] * 4, strict=True)
    )
    assert len({str(row.overrides) for row in table.rows}) == 4
    values = load_config(table.rows[0].recipe).values
    settings = {"masks": True, "window": 14, "global_blocks": [2, 5, 8, 11], "relative_positions": True}
    assert settings.items() <= values["method"].items()  # as ViTDet
    assert (values["train"]["batch_size"], values["train"]["epochs"], values["optim"]["lr"]) == (64, 100, 1e-4)


def test_a_field_is_shipped_for_boxes_and_masks() -> None:
    for name in ("detection/photos", "segmentation/photos"):
        rows = read_table(name).rows
        assert [row.recipe for row in rows].count(name) == len(rows) - 1 >= 2
        assert {row.published for row in rows} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["objects", "pixels"])
def test_compare_chooses_the_field_by_the_data(tmp_path: Path, kind: str) -> None:
    splits = {"train": 6, "val": 2, "test": 2}
    data = (coco_folder if kind == "objects" else mask_folder)(tmp_path / "data", splits)
    small: dict[str, Any] = {"images.image_size": 32, "images.cache_size": 32, "student.patch_size": 8}
    small |= {"train.batch_size": 3, "schedule.warmup_epochs": 0, "train.epochs": 1}
    found = viticulture.compare(str(data), seeds=1, where=Where(out=str(tmp_path / "study")), overrides=small)
    assert found.counts == (4, 4)
    assert {one.measured for one in found.outcomes if one.test is not None} == {"ap" if kind == "objects" else "miou"}
    assert [row["candidate"] for row in found.rows if row["test_accuracy"] is None] == ["MAE, the start"]
    assert all(row["train_images"] == 6 for row in found.rows)
    assert (tmp_path / "study" / "report.html").exists()


def test_per_class_subsets_are_refused_for_boxes(tmp_path: Path) -> None:
    data = coco_folder(tmp_path / "data", {"train": 6, "val": 2, "test": 2})
    with pytest.raises(UserError, match=r"set data\.fraction"):
        viticulture.compare(str(data), subsets=Subsets(per_class=(2,)), where=Where(out=str(tmp_path / "study")))


def test_candidates_with_other_test_images_are_refused_before_training(tmp_path: Path) -> None:
    data = colored_csv(tmp_path / "data", 40)
    small = {"images.image_size": 32, "train.batch_size": 8, "schedule.warmup_epochs": 0, "student.name": "vit_nano"}
    small |= {"student.patch_size": 8, "train.epochs": 1}
    recipes = ("default/small-images", "multilabel/photos")
    with pytest.raises(
        UserError, match=r"tested on different images of the same data .* trains on classes, .* trains on labels"
    ):
        viticulture.compare(str(data), recipes, seeds=1, where=Where(out=str(tmp_path / "study")), overrides=small)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_compare_ranks_students_of_several_labels_by_map(tmp_path: Path) -> None:
    data = colored_csv(tmp_path / "data", 40)
    small = {"images.image_size": 32, "train.batch_size": 8, "schedule.warmup_epochs": 0, "train.epochs": 1}
    found = viticulture.compare(str(data), seeds=1, where=Where(out=str(tmp_path / "study")), overrides=small)
    assert found.counts == (4, 4)
    assert {one.measured for one in found.outcomes} == {"map"}
    assert "mAP" in (found.path / "report.html").read_text(encoding="utf-8")
