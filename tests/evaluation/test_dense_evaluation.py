# SPDX-License-Identifier: Apache-2.0
"""Metrics of detectors and segmenters: counted by hand, saved, drawn and laid out on a page."""

import dataclasses
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from dense_scenes import coco_folder, mask_folder
from refusals import refused
from simulated_gpu import OnApple
from untrained_dense import untrained_dense
from viticulture.analysis.galleries import FILE, Gallery, read_galleries
from viticulture.data.batches.evaluation import target_batches
from viticulture.data.dataset import read_rows
from viticulture.data.image_set import CachedImages, Records
from viticulture.data.inspect import inspect
from viticulture.data.open import open_source
from viticulture.data.targets.objects import Boxed, Masked, Objects
from viticulture.evaluation.inputs import MAX_SENT_PIXELS
from viticulture.methods.detection import crowds_of, matched, targets_of
from viticulture.models.data_spec import DataSpec
from viticulture.report.page import section_of
from viticulture.scores.objects import image_precision
from viticulture.tasks.annotated_task import AnnotatedPredictor, model_of
from viticulture.tasks.detection import Detection, DetectionPrediction, coco_results, find, restored
from viticulture.tasks.detection_metrics import (
    DetectedObjects,
    DetectionResult,
    confusion,
    evaluate_detections,
    mean_boxes,
    mean_detections,
    pairs,
)
from viticulture.tasks.drawing import MISSED, RIGHT, WRONG, color_of, counts_of, draw_classes, draw_compared, draw_found
from viticulture.tasks.results import FOUND, Results
from viticulture.tasks.segmentation import ClassMap, Segmentation, SegmentationPrediction
from viticulture.tasks.segmentation_metrics import evaluate_pixels
from viticulture.tasks.task import Task, task_of
from viticulture.training.run_inputs import config_of

NAMES = ("disk", "square")
SIZES = np.array([[100, 100], [100, 100]])


def objects(*rows: tuple[float, float, float, float, int], crowd: tuple[int, ...] = (), **more: Any) -> Objects:
    boxes = torch.tensor([row[:4] for row in rows]).reshape(-1, 4).float()
    flags = torch.tensor([i in crowd for i in range(len(rows))], dtype=torch.bool)
    return Objects(boxes, torch.tensor([row[4] for row in rows], dtype=torch.int64), flags, **more)


def found(*rows: tuple[float, float, float, float, int, float], outlines: list[Any] | None = None) -> DetectedObjects:
    boxes = np.array([row[:4] for row in rows], dtype=np.float32).reshape(-1, 4)
    labels = np.array([row[4] for row in rows], dtype=np.int64)
    return DetectedObjects(boxes, np.array([row[5] for row in rows], dtype=np.float32), labels, outlines)


TRUE = Boxed([objects((0, 0, 20, 20, 0), (50, 50, 90, 90, 1)), objects((10, 10, 60, 60, 0))], masks=False)
SAID = [
    found((0, 0, 20, 20, 0, 0.9), (50, 50, 90, 90, 0, 0.8), (0, 60, 30, 90, 1, 0.7)),
    found((60, 60, 99, 99, 1, 0.2)),
]


def test_boxes_are_right_confused_or_missed() -> None:
    assert pairs(SAID[0], TRUE.objects[0], 0.5) == ({0: 0, 1: 1}, [2], [])
    assert confusion(SAID, TRUE.objects, 2, 0.5) == ((1, 0, 1), (1, 0, 0), (0, 1, 0))
    assert counts_of(SAID[0], TRUE.objects[0], 0.5) == {"correct": 1, "wrong": 2, "missed": 0}
    twice = found((0, 0, 20, 20, 0, 0.9), (0, 0, 20, 21, 0, 0.8))
    assert pairs(twice, objects((0, 0, 20, 20, 0)), 0.5) == ({0: 0}, [1], [])
    inside = found((5, 5, 15, 15, 0, 0.9))
    assert pairs(inside, objects((0, 0, 90, 90, 0), crowd=(0,)), 0.5) == ({}, [], [])


def test_a_perfect_detector_has_an_ap_of_one_and_an_empty_one_of_none() -> None:
    perfect = [
        found(*[(*box.tolist(), int(label), 0.9) for box, label in zip(each.boxes, each.labels, strict=True)])
        for each in TRUE.objects
    ]
    result = evaluate_detections(perfect, TRUE, NAMES, SIZES)
    assert (result.boxes.ap, result.boxes.ap50, result.boxes.ap75, result.score) == pytest.approx((1.0,) * 4)
    assert result.boxes.interval[1] == pytest.approx(1.0)
    assert result.boxes.by_size == {"small": pytest.approx(1.0), "medium": pytest.approx(1.0), "large": None}
    assert [each.objects for each in result.boxes.per_class] == [2, 1]
    nothing = evaluate_detections([found(), found()], TRUE, NAMES, SIZES)
    assert (nothing.boxes.ap, nothing.boxes.interval, nothing.confusion[0]) == (0.0, (0.0, 0.0), (0, 0, 2))


def test_metrics_in_training_are_those_of_evaluation() -> None:
    """Of an image whose surest box lies on a `difficult` object, and another in a crowd."""
    size = (40, 80)
    known = objects((5, 5, 15, 15, 0), (20, 5, 60, 35, 0), (62, 4, 78, 38, 1), crowd=(1, 2))
    said = found((22, 8, 34, 20, 0, 0.9), (5, 5, 15, 15, 0, 0.8), (64, 6, 70, 30, 1, 0.7))
    records = Records(torch.tensor([-1]), torch.tensor([size]), [""])
    images = CachedImages(torch.zeros(1, 3, 48, 48, dtype=torch.uint8), torch.arange(1), records)
    data_spec = DataSpec(NAMES, (64, 64), (0.5,) * 3, (0.25,) * 3)
    (batch,) = target_batches(images, Boxed([known], masks=False), data_spec, 4, torch.device("cpu"))
    canvas = {
        "boxes": torch.from_numpy(said.boxes) * 64 / 80,
        "scores": torch.from_numpy(said.scores),
        "labels": torch.from_numpy(said.labels),
    }
    (true,), (crowds,) = targets_of(batch), crowds_of(batch)
    told = evaluate_detections([said], Boxed([known], masks=False), NAMES, np.array([size]))
    assert image_precision(matched(canvas, true, crowds)) == pytest.approx(told.boxes.ap50) == pytest.approx(1.0)
    nothing = {name: value[:0] for name, value in crowds.items()}
    assert image_precision(matched(canvas, true, nothing)) == pytest.approx(0.25)
    on_apple = [{name: value.as_subclass(OnApple) for name, value in each.items()} for each in (canvas, true, crowds)]
    assert image_precision(matched(*on_apple)) == pytest.approx(1.0)


def test_at_most_a_hundred_boxes_per_class_and_image_count() -> None:
    """COCO's limit."""
    true = Boxed([objects((0, 0, 20, 20, 0)), objects((0, 0, 20, 20, 1))], masks=False)
    far = [(60, 60, 99, 99, 0, 0.9)] * 100
    said = [found(*far, (0, 0, 20, 20, 0, 0.8)), found(*far, (60, 60, 99, 99, 0, 0.3), (0, 0, 20, 20, 1, 0.2))]
    result = evaluate_detections(said, true, NAMES, SIZES)
    assert [each.ap for each in result.boxes.per_class] == [0.0, pytest.approx(1.0)]
    under = evaluate_detections([found(*far[1:], (0, 0, 20, 20, 0, 0.8)), found()], true, NAMES, SIZES)
    assert under.boxes.per_class[0].ap == pytest.approx(1 / 100)


def test_the_score_threshold_is_given_or_the_best() -> None:
    assert evaluate_detections(SAID, TRUE, NAMES, SIZES).threshold == pytest.approx(0.9)
    given = evaluate_detections(SAID, TRUE, NAMES, SIZES, threshold=0.7)
    assert (given.threshold, given.confusion) == (0.7, confusion(SAID, TRUE.objects, 2, 0.7))
    assert evaluate_detections([found((0, 0, 5, 5, 0, 0.9)), found()], TRUE, NAMES, SIZES).threshold == 0.5


def test_boxes_of_equal_score_count_together() -> None:
    here = (0.0, 0.0, 20.0, 20.0, 0)
    wrong = [(60.0, 60.0, 99.0, 99.0, 0, 0.5)] * 9
    true = Boxed([objects(here), objects(here)], masks=False)
    result = evaluate_detections([found((*here, 0.9)), found((*here, 0.5), *wrong)], true, ("disk",), SIZES)
    assert result.threshold == pytest.approx(0.9)


def test_validation_images_choose_the_score_threshold(tmp_path: Path) -> None:
    run = untrained_dense(tmp_path / "run", "detection")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (4, 3, 80, 80), dtype=torch.uint8, generator=generator)
    images = CachedImages(pixels, torch.arange(4), Records(torch.full((4,), -1), torch.full((4, 2), 80), ["a"] * 4))
    splits = {name: images.part(torch.tensor(rows)) for name, rows in (("val", [0, 1]), ("test", [2, 3]))}
    subject, annotations = model_of(run), {}
    for name, most in (("val", 1), ("test", 100)):
        each = [(one.boxes[:most], one.labels[:most]) for one in find(subject, splits[name])]
        assert min(len(boxes) for boxes, _ in each) >= min(most, 2)
        annotations[name] = Boxed(
            [
                objects(*[(*box, int(label)) for box, label in zip(boxes.tolist(), labels, strict=True)])
                for boxes, labels in each
            ],
            masks=False,
        )
    held_out = {split: splits[split] for split in ("test", "val")}
    data: Any = SimpleNamespace(held_out=held_out, train=splits["val"], classes=subject.data_spec.classes)
    data.annotations = {**annotations, "train": annotations["val"]}
    task = task_of(run)
    judged = task.evaluate(data).results
    test, val = judged["last/test"], judged["last/val"]
    assert isinstance(test, DetectionResult)
    assert isinstance(val, DetectionResult)
    alone = evaluate_detections(list(find(subject, splits["test"])), annotations["test"], NAMES + NAMES[:1], SIZES)
    assert test.threshold == val.threshold > alone.threshold
    assert [*judged] == ["last/test", "last/val"]
    predictor = task.predictor()
    assert isinstance(predictor, AnnotatedPredictor)
    assert predictor.threshold == val.threshold
    saved = [restored(each) for each in run.read(FOUND)["images"]]
    for written, made in zip(saved, find(subject, splits["test"]), strict=True):
        np.testing.assert_array_equal(written.scores, made.scores)  # else one at the threshold may be drawn as missed

    data.annotations["test"] = Boxed([objects(), objects()], masks=False)  # of which nothing can be measured
    assert (task.evaluate(data).results.counts, [*(task.read_results() or ())]) == ("last/val", ["last/val"])
    data.annotations["val"] = data.annotations["test"]
    assert not task.evaluate(data).results


def test_the_mean_box_is_a_baseline() -> None:
    sizes = np.array([[100, 200], [50, 100]])
    true = Boxed([objects((0, 0, 100, 50, 0)), objects((0, 0, 50, 25, 0), (10, 10, 20, 20, 1))], masks=False)
    rows = mean_boxes(true, sizes, 3)
    np.testing.assert_allclose(rows[0], [0, 0, 0.5, 0.5, 1.0])
    np.testing.assert_allclose(rows[1], [0.1, 0.2, 0.2, 0.4, 0.5])
    assert np.isnan(rows[2]).all()
    guessed = mean_detections(rows, [200, 100])
    assert guessed.labels.tolist() == [0, 1]
    np.testing.assert_allclose(guessed.boxes[1], [10, 40, 20, 80])
    result = evaluate_detections([found()] * 2, true, ("a", "b", "c"), sizes, rows)
    assert result.baselines["nothing"] == 0.0
    assert result.baselines["the mean box"] == pytest.approx(
        (1 + 1 / 2) / 2
    )  # the second class is in one of two images


def test_masks_are_evaluated_apart_from_boxes() -> None:
    """The same box with the right outline and with half of it: box AP 1, mask AP 1 and 0.1."""
    pytest.importorskip("pycocotools", reason="outlines are drawn by the extra `dense`")
    from viticulture.data.targets.outlines import encoded

    shape = [[10, 10, 50, 10, 50, 50, 10, 50]]
    true = Boxed([objects((10, 10, 50, 50, 0), shapes=(shape,))], masks=True)
    for rows, expected in ((40, 1.0), (20, 0.1)):
        mask = np.zeros((100, 100), np.uint8)
        mask[10 : 10 + rows, 10:50] = 1
        said = found((10, 10, 50, 50, 0, 0.9), outlines=[encoded(mask)])
        result = evaluate_detections([said], true, ("disk",), SIZES[:1])
        assert result.boxes.ap == pytest.approx(1.0)
        assert result.masks is not None
        assert result.masks.ap == pytest.approx(expected)


def test_object_sizes_are_those_of_the_annotations() -> None:
    true = objects((10, 10, 50, 50, 0), (60, 60, 99, 99, 1))
    areas = torch.tensor([800.0, 1500.0], dtype=torch.float64)
    for known, kept in ((None, {"medium"}), (areas, {"small"})):
        first = dataclasses.replace(true, areas=known).part(torch.tensor([True, False]))
        result = evaluate_detections(
            [found((10, 10, 50, 50, 0, 0.9))], Boxed([first], masks=False), ("disk",), SIZES[:1]
        )
        assert {size for size, ap in result.boxes.by_size.items() if ap is not None} == kept


def pixels() -> Any:
    masks = [np.array([[0, 0], [1, 255]], np.uint8), np.array([[1, 1], [0, 0]], np.uint8)]
    true = Masked(torch.zeros(2, 2, 2, dtype=torch.uint8), torch.arange(2), lambda i: masks[i])
    return evaluate_pixels([np.zeros((2, 2), np.uint8), masks[1]], true, NAMES, frequent=0)


def test_segmentation_metrics_can_be_counted_by_hand() -> None:
    """Class 0: 4 pixels right of 5 predicted or true; class 1: 2 of 3."""
    result, ious = pixels()
    assert [each.iou for each in result.per_class] == [4 / 5, 2 / 3]
    assert result.miou == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert result.accuracy == 6 / 7
    assert result.baselines == {"disk everywhere": pytest.approx(4 / 7 / 2)}
    np.testing.assert_allclose(ious, [(2 / 3 + 0) / 2, 1.0])


def test_an_image_without_labeled_pixels_has_no_accuracy(tmp_path: Path) -> None:
    run = untrained_dense(tmp_path / "run", "segmentation")
    pixels = torch.zeros(2, 3, 80, 80, dtype=torch.uint8)
    images = CachedImages(pixels, torch.arange(2), Records(torch.full((2,), -1), torch.full((2, 2), 80), ["a", "b"]))
    masks = [np.full((80, 80), 255, np.uint8), np.arange(6400, dtype=np.uint8).reshape(80, 80) % 3]
    true = Masked(torch.from_numpy(np.stack(masks)), torch.arange(2), lambda i: masks[i])
    data: Any = SimpleNamespace(held_out={"val": images}, train=images, classes=model_of(run).data_spec.classes)
    data.annotations, data.image_settings = {"train": true, "val": true}, SimpleNamespace(channels=3)
    task = task_of(run)
    task.save_pictures(data, task.evaluate(data))
    galleries = read_galleries(run.path / FILE)
    assert galleries is not None
    (_, (second, measured)), (_, (first, unmeasured)) = galleries["annotated"][0].groups
    assert (second, first) == ("b", "a")
    assert re.fullmatch("image, truth, prediction: mIoU [0-9]+ %", measured)
    assert unmeasured == "image, truth, prediction: no labeled pixels"


def test_intervals_contain_their_metrics() -> None:
    """Draws lack classes that are predicted elsewhere."""
    draw = np.random.default_rng(0)
    masks = [draw.choice(draw.choice(20, 3, replace=False), (20, 20)).astype(np.uint8) for _ in range(12)]
    said = [np.where(draw.random((20, 20)) < 0.7, mask, draw.integers(0, 20, (20, 20))) for mask in masks]
    true = Masked(torch.zeros(12, 2, 2, dtype=torch.uint8), torch.arange(12), lambda i: masks[i])
    told, _ = evaluate_pixels(said, true, tuple("abcdefghijklmnopqrst"), None)
    corners = [draw.uniform(0, 70, (draw.integers(1, 3), 2)) for _ in range(15)]
    rows = [[(x, y, x + 25, y + 25, int(draw.integers(8))) for x, y in each] for each in corners]
    guesses = [(*draw.uniform(0, 70, 2), 99.0, 99.0, int(draw.integers(8)), draw.random()) for _ in range(60)]
    shown = [found(*[(*row, draw.random()) for row in each], *guesses[i::15]) for i, each in enumerate(rows)]
    boxed = Boxed([objects(*each) for each in rows], masks=False)
    boxes = evaluate_detections(shown, boxed, tuple("abcdefgh"), np.full((15, 2), 100)).boxes
    for value, interval, drawn in (
        (told.miou, told.interval, told.resampled),
        (boxes.ap, boxes.interval, boxes.resampled),
    ):
        assert value is not None
        assert 0 < interval[0] < value < interval[1] < 1
        assert np.mean(drawn) == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("kind", [Detection, Segmentation])
def test_saved_results_load_and_make_a_page(kind: type[Task], tmp_path: Path) -> None:
    result: Any = evaluate_detections(SAID, TRUE, NAMES, SIZES) if kind is Detection else pixels()[0]
    run = untrained_dense(tmp_path / "run", kind.name)
    saved = Results("best/test", {"best/test": result}, kind)
    run.write("evaluation.json", saved.to_dict())
    task = task_of(run)
    assert task.read_results() == saved
    page = task.page(saved, {"annotated": [Gallery("Pictures")]})
    html = "".join(str(section_of(section).html) for section in page.before)
    assert "disk" in html
    if isinstance(result, DetectionResult):
        right = sum(result.confusion[label][label] for label in range(len(NAMES)))
        assert f"finds {right} of {result.objects} objects in {result.images} test images" in page.answer
    else:
        assert f"{100 * result.accuracy:.1f} % of the labeled pixels" in page.answer
    assert [section.title for section in page.before][:2] == ["Pictures", "Results"]
    key = "".join(
        f'<span><i style="background: rgb{color_of(label)}"></i>{name}</span>' for label, name in enumerate(NAMES)
    )
    assert (key in html) == (kind is Segmentation)
    label, value, _ = page.tile or ("", "", "")
    assert label.startswith("AP of boxes, test" if kind is Detection else "mIoU, test")
    assert value == f"{100 * result.score:.1f} %"
    run.write("evaluation.json", {**saved.to_dict(), "counts": "last/test"})
    refused("is not among", task.read_results)


def test_pictures_mark_right_and_wrong_by_color() -> None:
    image = np.zeros((100, 100, 3), np.uint8)
    drawn = draw_compared(image, SAID[0], TRUE.objects[0], NAMES, 0.5)
    assert tuple(drawn[0, 10]) == RIGHT
    assert tuple(drawn[50, 70]) == WRONG
    missed = draw_compared(image, found(), TRUE.objects[0], NAMES, 0.5)
    assert tuple(missed[0, 10]) == MISSED
    plain = draw_classes(np.full((2, 2, 3), 100, np.uint8), np.array([[0, 255], [255, 255]], np.uint8))
    assert tuple(plain[0, 1]) == (100, 100, 100)
    assert tuple(plain[0, 0]) != (100, 100, 100)
    assert len({color_of(label) for label in range(21)}) == 21


def test_captions_of_boxes_stay_apart_inside_the_image() -> None:
    image = np.full((240, 320, 3), 127, np.uint8)
    corner = found((290, 210, 318, 238, 0, 0.9), (290, 210, 318, 238, 1, 0.8), (290, 210, 318, 238, 1, 0.7))
    drawn = draw_found(image, corner, NAMES, 0.5)
    counts = [int((drawn == color_of(label)).all(-1).sum()) for label in (0, 1)]
    one = [int((draw_found(image, found(box), NAMES, 0.5) == color_of(box[4])).all(-1).sum()) for box in (
        (290, 210, 318, 238, 0, 0.9), (290, 210, 318, 238, 1, 0.8))]  # fmt: skip
    edges = 4 * 28
    assert counts[0] > one[0] - 2 * edges
    assert counts[1] > 2 * (one[1] - 2 * edges)


def test_every_class_of_common_sets_has_a_distinct_color() -> None:
    """Distances in OKLab."""
    linear = np.array([color_of(label) for label in range(21)]) / 255
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    lab = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    places = np.cbrt(linear @ np.array(cones).T) @ np.array(lab).T
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.eye(21)
    assert apart.min() > 0.1


def test_predictions_are_listed_in_coco_format() -> None:
    unread = DetectionPrediction("a.jpg", None, NAMES, "truncated")
    (row,) = coco_results([unread, DetectionPrediction("b.jpg", found((1, 2, 11, 22, 1, 0.5)), NAMES)])
    assert row == {
        "image_id": 2,
        "file_name": "b.jpg",
        "category_id": 2,
        "category": "square",
        "bbox": [1.0, 2.0, 10.0, 20.0],
        "score": 0.5,
    }


@pytest.mark.parametrize("sent", [False, True])
def test_a_large_jpeg_is_drawn_as_evaluated(tmp_path: Path, sent: bool) -> None:
    run, folder = untrained_dense(tmp_path / "run", "detection"), tmp_path / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (400, 480, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "a.jpg")
    images, _ = read_rows(open_source(str(folder)), np.arange(1), config_of(run).images)
    (expected,) = find(model_of(run), images)
    with (folder / "a.jpg").open("rb") as file:
        item = ("a.jpg", file) if sent else ("a.jpg", folder / "a.jpg")
        ((prediction, picture),) = task_of(run).predictor().predict([item], MAX_SENT_PIXELS, longest=None)
    assert prediction.objects is not None
    np.testing.assert_array_equal(prediction.objects.scores, expected.scores)
    assert picture is not None
    assert picture.shape == (400, 480, 3)


def test_detections_are_counted_from_the_drawn_score() -> None:
    said = DetectionPrediction("a.jpg", found((1, 2, 11, 22, 1, 0.5), (1, 2, 11, 22, 0, 0.2)), NAMES, threshold=0.5)
    assert said.counts() == {"square": 1}
    table = DetectionPrediction.table([said])
    assert table.rows == [["a.jpg", "1 square", ""]]
    assert "at least 0.50" in table.note
    assert DetectionPrediction.table([dataclasses.replace(said, threshold=0.9)]).rows[0][1] == "nothing"
    assert len(coco_results([said])) == 2
    pixels = np.ones((100, 100), np.uint8)
    pixels[:30], pixels[0, 0] = 0, 2
    pictured = SegmentationPrediction("b.jpg", ClassMap.of(pixels), (*NAMES, "ring"))
    np.testing.assert_array_equal(pictured.pixels, pixels)
    assert len(pickle.dumps(pictured)) < pixels.size / 10  # many are held at once
    assert SegmentationPrediction.table([pictured]).rows == [["b.jpg", "square 70%, disk 30%", ""]]
    pictured = dataclasses.replace(pictured, classes=("ring, thin", *NAMES[1:], "ring"))
    assert SegmentationPrediction.table([pictured]).rows == [["b.jpg", "square 70%, 'ring, thin 30%'", ""]]


def test_a_data_set_is_summarized_before_training(tmp_path: Path) -> None:
    source = open_source(coco_folder(tmp_path / "boxes", {"train": 3, "val": 2}), "objects")
    count = sum(map(len, source.objects))
    told = inspect(source)
    assert told.splits == {"train": 3, "val": 2}
    assert sum(map(sum, told.counts.values())) == sum(told.annotations.sizes.values()) == count
    assert (told.annotations.outside, told.annotations.empty, told.annotations.masks) == (0, 0, True)
    for boxes in (source.objects[0].boxes + 500, source.objects[0].boxes * float("nan")):
        first = dataclasses.replace(source.objects[0], boxes=boxes)
        told = inspect(dataclasses.replace(source, targets=[first, *source.objects[1:]]))
        assert told.annotations is not None
        assert told.annotations.outside == len(first)
    many = [dataclasses.replace(each, crowd=torch.ones_like(each.crowd)) for each in source.objects[:3]]
    crowded = inspect(dataclasses.replace(source, targets=[*many, *source.objects[3:]]))
    objects = crowded.annotations
    assert objects is not None
    assert (objects.crowds, objects.masks, sum(crowded.counts["train"])) == (sum(map(len, many)), True, 0)
    assert sum(objects.sizes.values()) == sum(crowded.counts["val"]) == count - objects.crowds
    assert "in no training image" in crowded.warnings[0]
    other = dataclasses.replace(source.objects[0], size=(640, 800))
    (why,) = inspect(dataclasses.replace(source, targets=[other, *source.objects[1:]])).unreadable.values()
    assert "says 800x640" in why
    masks = inspect(open_source(mask_folder(tmp_path / "masks", {"train": 3}), "pixels"))
    assert masks.counts["train"][0] == 3
    assert (masks.contents, masks.warnings) == ("pixels", ())
    for path in (tmp_path / "masks" / "train" / "masks").glob("*"):
        Image.new("L", (80, 64), 1).save(path)
    (note,) = inspect(open_source(tmp_path / "masks", "pixels")).warnings
    assert "all labeled pixels of the training images are disk" in note


def test_the_orientation_tag_of_a_mask_is_applied(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (60, 40)).save(tmp_path / "images" / "a.jpg", exif=exif)
    Image.fromarray(np.eye(40, 60, dtype=np.uint8)).save(tmp_path / "masks" / "a.png")
    (tmp_path / "classes.json").write_text('["ground", "line"]')
    told = inspect(open_source(tmp_path, "pixels"))
    assert (told.unreadable, told.counts) == ({}, {"train": (1, 1)})


def test_a_class_without_training_objects_is_reported(tmp_path: Path) -> None:
    source = open_source(coco_folder(tmp_path / "boxes", {"train": 2, "val": 2}), "objects")
    assert inspect(source).warnings == ()
    train = set(source.splits["train"].tolist())
    objects = [
        dataclasses.replace(each, labels=torch.full_like(each.labels, 0 if row in train else 1))
        for row, each in enumerate(source.objects)
    ]
    (note,) = inspect(dataclasses.replace(source, targets=objects)).warnings
    assert note == f"in val, but in no training image: {source.classes[1]}"
