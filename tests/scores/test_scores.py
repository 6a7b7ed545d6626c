# SPDX-License-Identifier: Apache-2.0
"""Average precision and intersection over union: equal to COCO's code and to counts by hand; confidence intervals of
boxes, pixels and labels.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import viticulture
from simulated_gpu import OnApple
from viticulture.scores import labels, objects, pixels
from viticulture.scores.intervals import ENDS, error_of_recalls, interval_of
from viticulture.scores.objects import (
    AREAS,
    THRESHOLDS,
    Matches,
    Strays,
    box_areas,
    box_overlaps,
    image_precision,
    match,
    precision,
    ranked,
    recall,
    resampled,
)
from viticulture.scores.pixels import class_ious, confusion, mean_iou, right_share
from viticulture.scores.pixels import resampled as iou_resampled

Boxes = list[list[float]]


def matched(
    boxes: Boxes, scores: list[float], true: Boxes, crowd: list[bool] | None = None, areas: Any = None
) -> Matches:
    ours, theirs = (np.array(each, dtype=np.float64).reshape(-1, 4) for each in (boxes, true))
    crowds = np.array(crowd or [False] * len(true), dtype=bool)
    overlap = box_overlaps(ours, theirs, crowds)
    sizes = box_areas(theirs) if areas is None else areas
    return match(np.array(scores, dtype=np.float64), box_areas(ours), sizes, crowds, overlap)


def scene(generator: np.random.Generator, objects: int, detections: int) -> tuple[Any, Any]:
    """Draw objects of three classes, some of them crowds, and detections near them, with equal scores."""

    def boxes(count: int) -> Any:
        corner, size = generator.uniform(0, 150, (count, 2)), generator.uniform(3, 140, (count, 2))
        return np.concatenate([corner, corner + size], 1)

    true = {"boxes": boxes(objects), "labels": generator.integers(0, 3, objects)}
    true["iscrowd"] = generator.random(objects) < 0.15
    true["area"] = box_areas(true["boxes"]) * generator.uniform(0.3, 1, objects)  # an outline's
    near = true["boxes"][generator.integers(0, objects, detections)] if objects else boxes(detections)
    moved = near + generator.normal(0, 6, (detections, 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    scores = np.round(generator.random(detections), 1)
    return {"boxes": moved, "labels": generator.integers(0, 3, detections), "score": scores}, true


def coco_precision(scenes: list[tuple[Any, Any]]) -> Any:
    """Compute pycocotools' precision [C, A, T, 101] and recall [C, A, T], NaN without true objects."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def rows(image: int, held: dict[str, Any]) -> list[dict[str, Any]]:
        sides = np.concatenate([held["boxes"][:, :2], held["boxes"][:, 2:] - held["boxes"][:, :2]], 1).tolist()
        more = held.keys() - {"boxes", "labels"}
        return [
            {"image_id": image, "category_id": label, "bbox": sides[i], **{key: held[key][i] for key in more}}
            for i, label in enumerate(held["labels"].tolist())
        ]

    said, known = ([row for i, scene in enumerate(scenes) for row in rows(i, scene[of])] for of in (0, 1))
    true = COCO()
    images, categories = [{"id": i} for i in range(len(scenes))], [{"id": c} for c in range(3)]
    annotations = [{**row, "id": i} for i, row in enumerate(known, 1)]
    true.dataset = {"info": {}, "images": images, "categories": categories, "annotations": annotations}
    true.createIndex()
    judged = COCOeval(true, true.loadRes(said), "bbox")
    judged.evaluate()
    judged.accumulate()
    shares, found = judged.eval["precision"][..., -1], judged.eval["recall"][..., -1]  # [T, 101, C, A], [T, C, A]
    return (np.where(each < 0, np.nan, each) for each in (shares.transpose(2, 3, 0, 1), found.transpose(1, 2, 0)))


@pytest.mark.parametrize("seed", range(3))
def test_average_precision_is_that_of_cocos_code(seed: int) -> None:
    """Precision and recall of sixty images at every overlap, size and class."""
    pytest.importorskip("pycocotools", reason="COCO's own code comes with the extra `dense`")
    generator = np.random.default_rng(seed)
    scenes = [scene(generator, *generator.integers((0, 0), (9, 20))) for _ in range(60)]
    classes: list[dict[int, Matches]] = [{} for _ in range(3)]
    for number, (found, true) in enumerate(scenes):
        for label in {*found["labels"].tolist(), *true["labels"].tolist()}:
            ours, rows = found["labels"] == label, true["labels"] == label
            boxes, scores = found["boxes"][ours].tolist(), found["score"][ours].tolist()
            crowd, area = true["iscrowd"][rows].tolist(), true["area"][rows]
            classes[label][number] = matched(boxes, scores, true["boxes"][rows].tolist(), crowd, area)
    expected, recalls = coco_precision(scenes)
    ranks = [ranked(of_class, len(scenes)) for of_class in classes]
    np.testing.assert_allclose(np.stack([precision(each) for each in ranks]), expected, atol=1e-12)
    np.testing.assert_allclose(np.stack([recall(each) for each in ranks]), recalls, atol=1e-12)
    assert 0.01 < np.nanmean(expected) < 0.2


def test_images_without_objects_are_evaluated_in_batch_as_one_by_one() -> None:
    draw = np.random.default_rng(5)
    said = {}
    for image in range(8):
        corners = draw.uniform(0, 80, (5, 2))
        said[image] = np.concatenate([corners, corners + draw.uniform(5, 150, (5, 1))], 1), draw.integers(1, 4, 5) / 4
    true = {image: said[image][0][:2].tolist() if image % 3 == 0 else [] for image in said}
    every = {image: matched(boxes.tolist(), scores.tolist(), true[image]) for image, (boxes, scores) in said.items()}
    others = [image for image in said if not true[image]]
    strays = Strays(
        np.repeat(others, 5),
        np.concatenate([said[image][1] for image in others]),
        np.concatenate([box_areas(said[image][0]) for image in others]),
    )
    expected, found = ranked(every, 8), ranked({i: every[i] for i in every if true[i]}, 8, strays)
    assert expected.wrong[1:].any(axis=(1, 2)).tolist() == [True] * 3
    for name in ("scores", "images", "right", "wrong", "true"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_average_precision_can_be_counted_by_hand() -> None:
    """Two objects; detections 1 and 3 are right: precision 1 (51 recalls of 101), then 2/3 (50)."""
    true = [[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]]
    boxes = [[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0], [20.0, 20.0, 30.0, 30.0]]
    found = matched(boxes, [0.9, 0.8, 0.7], true)
    shares = precision(ranked({0: found}, 1))
    assert shares[0, 0].mean() == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert image_precision([found]) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert np.isnan(shares[list(AREAS).index("large")]).all()  # there is no large object


def test_an_overlap_counts_from_its_threshold() -> None:
    found = matched([[0, 0, 10, 6]], [0.5], [[0.0, 0, 10, 10]])
    np.testing.assert_array_equal(found.right[0, :, 0], THRESHOLDS <= 0.6 + 1e-9)


def test_detections_in_a_crowd_are_ignored() -> None:
    found = matched([[0, 0, 5, 5], [5, 5, 9, 9]], [0.9, 0.8], [[0.0, 0, 10, 10]], [True])
    ranks = ranked({0: found}, 1)
    assert not ranks.wrong[0].any()
    assert not ranks.right[0].any()
    assert ranks.true[0, 0] == 0
    assert image_precision([found]) == 1.0
    assert image_precision([matched([[0, 0, 5, 5], [50, 50, 60, 60]], [0.9, 0.8], [[0.0, 0, 10, 10]], [True])]) == 0.0


def test_an_image_without_objects_is_right_where_nothing_is_found() -> None:
    assert image_precision([]) == 1.0
    assert image_precision([matched([[0, 0, 5, 5]], [0.5], [])]) == 0.0


def test_the_interval_of_identical_images_is_a_point() -> None:
    true, right, wrong = [[0.0, 0, 10, 10]], [[0.0, 0, 10, 10]], [[50.0, 50, 60, 60]]
    same = ranked({i: matched(right, [0.5], true) for i in range(6)}, 6)
    assert set(resampled([same], 6).tolist()) == {1.0}
    mixed = ranked({i: matched(right if i % 2 else wrong, [0.5 + i / 100], true) for i in range(12)}, 12)
    low, high = np.percentile(resampled([mixed], 12), [2.5, 97.5])
    mean = precision(mixed)[0].mean()
    assert 0 <= low < mean < high <= 1


def test_a_bootstrap_draw_is_evaluated_as_that_set() -> None:
    draw = np.random.default_rng(3)
    classes = []
    for images in (range(9), (1, 5)):
        found = {}
        for i in images:
            corners = draw.uniform(0, 40, (4, 2))
            true = np.concatenate([corners, corners + 20], 1)
            said = np.concatenate([true + draw.uniform(-5, 5, true.shape), true[:2] + 60])
            found[i] = matched(said.tolist(), draw.uniform(size=6).tolist(), true.tolist(), [False] * 3 + [i % 2 == 0])
        classes.append(ranked(found, 9))
    values = resampled(classes, 9)
    generator = np.random.default_rng(0)
    for value in values:
        often = np.bincount(generator.integers(9, size=9), minlength=9).astype(float)
        each = [precision(ranks, often, slice(0, 1)).mean() for ranks in classes]
        assert value == pytest.approx(np.nanmean(each), abs=1e-12)
    assert len(set(values.round(9))) > 50


def test_intersection_over_union_can_be_counted_by_hand() -> None:
    true = np.array([[0, 0, 1, 255], [1, 1, 1, 255]], dtype=np.uint8)
    said = np.array([[0, 1, 1, 0], [1, 1, 0, 1]], dtype=np.uint8)
    counts = confusion(said, true, 3)
    np.testing.assert_array_equal(counts, [[1, 1, 0], [1, 3, 0], [0, 0, 0]])
    np.testing.assert_allclose(class_ious(counts), [1 / 3, 3 / 5, np.nan])
    assert mean_iou(counts) == pytest.approx((1 / 3 + 3 / 5) / 2)
    assert right_share(counts) == pytest.approx(4 / 6)
    np.testing.assert_array_equal(confusion(said, true, 256)[:3, :3], counts)
    assert confusion(said, true, 256).sum() == 6
    same = np.stack([counts] * 5)
    assert iou_resampled(same) == pytest.approx(mean_iou(counts))


def test_intervals_of_intersection_over_union_are_of_sums_over_images() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (6, 4, 4))
    counts[1:, 3] = counts[1:, :, 3] = 0
    draws = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), size=1000)
    each = [mean_iou(np.tensordot(often, counts, 1)) for often in draws]
    np.testing.assert_allclose(iou_resampled(counts), each, rtol=1e-12)
    assert (draws[:, 0] == 0).any()


def test_an_interval_is_symmetric_in_probability() -> None:
    drawn = np.random.default_rng(0).permutation(1001) / 1000
    assert interval_of(drawn) == pytest.approx((0.025, 0.975))
    assert interval_of(drawn + 0.1) == pytest.approx((0.125, 1))


def test_the_interval_of_mean_recall_reflects_its_rarest_class() -> None:
    """Recalls of 0.9 (90 images) and 0.5 (10): the spread of a million draws of both."""
    draw = np.random.default_rng(0)
    means = (draw.binomial(90, 0.9, 1_000_000) / 90 + draw.binomial(10, 0.5, 1_000_000) / 10) / 2
    right, shown = torch.tensor([[81.0, 5, 0], [90.0, 10, 0]])
    assert error_of_recalls(right, shown) == pytest.approx(means.std(), rel=0.01)
    assert error_of_recalls(right.as_subclass(OnApple), shown.as_subclass(OnApple)) == error_of_recalls(right, shown)


def test_draws_without_targets_have_the_mean_of_the_others() -> None:
    areas = np.array([100.0])
    right = objects.match(np.array([0.9]), areas, areas, np.zeros(1, bool), np.ones((1, 1)))
    counts = np.zeros((3, 2, 2), np.int64)
    counts[0] = [[50, 0], [0, 50]]
    shown, scores = np.array([[1.0], [0], [0]]), np.array([[0.9], [0.1], [0.2]])
    perfect = [
        objects.resampled([objects.ranked({0: right}, 3)], 3),
        pixels.resampled(counts),
        labels.resampled(scores, shown),
    ]
    for drawn in perfect:
        assert interval_of(drawn) == pytest.approx((1, 1))
    nothing = [objects.resampled([objects.ranked({}, 3)], 3), pixels.resampled(0 * counts)]
    assert [set(drawn.tolist()) for drawn in nothing] == [{0.0}, {0.0}]


def test_percentiles_are_defined_once() -> None:
    root = Path(viticulture.__file__).parent
    written = re.compile(r"\(\s*2\.5,\s*97\.5\s*\)")
    assert [path.name for path in root.rglob("*.py") if written.search(path.read_text("utf-8"))] == ["intervals.py"]
    assert ENDS == (2.5, 97.5)
