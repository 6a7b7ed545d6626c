# SPDX-License-Identifier: Apache-2.0
"""Boxes out of attention, and MaxBoxAcc: Choe et al., arXiv:2001.07437; true boxes: three file layouts agree, and a box
is where its object is in the student's input.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from refusals import refused
from viticulture.data.transforms.crop import CenterCrop
from viticulture.evaluation.localization.boxes import boxes_of, in_view, read_boxes
from viticulture.evaluation.localization.metrics import (
    AS_EVALUATED,
    PUBLISHED,
    THRESHOLDS,
    Protocol,
    best_overlaps,
    component_boxes,
    max_box_accuracy,
    score_maps,
)
from viticulture.scores.objects import box_overlaps

SCORE = np.array(  # two parts at 0.5: six pixels that hang together by a corner, and two that hold the peak
    [
        [0.0, 0.5, 0.5, 0.0, 0.0, 0.0],
        [0.0, 0.5, 0.5, 0.0, 0.0, 0.9],
        [0.0, 0.0, 0.0, 0.6, 0.0, 1.0],
        [0.0, 0.0, 0.0, 0.6, 0.0, 0.0],
    ]
)


def boxes(*rows: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(rows, dtype=np.float64)


def test_a_box_encloses_the_largest_connected_part() -> None:
    np.testing.assert_array_equal(component_boxes(SCORE, 0.5), boxes((1, 0, 4, 4), (5, 1, 6, 3)))
    np.testing.assert_array_equal(component_boxes(SCORE, 0.6), boxes((5, 1, 6, 3), (3, 2, 4, 4)))
    np.testing.assert_array_equal(component_boxes(SCORE, 1.0), boxes((5, 2, 6, 3)))
    np.testing.assert_array_equal(component_boxes(SCORE, 0.0), boxes((0, 0, 6, 4)))
    assert component_boxes(SCORE, 1.1).shape == (0, 4)
    diagonal = np.zeros((5, 9))
    diagonal[range(4), range(4)] = 1
    diagonal[2:, 6:] = 1  # nine pixels in a box of nine, after four in a box of sixteen
    np.testing.assert_array_equal(component_boxes(diagonal, 0.5), boxes((6, 2, 9, 5), (0, 0, 4, 4)))


def test_overlap_is_shared_area_over_covered_area() -> None:
    first = boxes((0, 0, 4, 2), (10, 10, 12, 13))
    second = boxes((0, 0, 4, 2), (2, 0, 6, 2), (2, 1, 4, 5), (4, 0, 5, 2))
    expected = [[1, 4 / 12, 2 / 14, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(box_overlaps(first, second), expected, rtol=1e-15)
    np.testing.assert_array_equal(box_overlaps(first, second), box_overlaps(3 * first + 7, 3 * second + 7))


def test_any_true_box_may_be_found_by_the_largest_part_or_by_any() -> None:
    true = boxes((5, 1, 6, 3), (0, 0, 6, 2))
    found = best_overlaps(SCORE, true, Protocol("mine", False, np.array([0.0, 0.5, 1.0, 1.5])))
    largest, peak = 6 / 18, 1 / 2
    np.testing.assert_allclose(found, [[12 / 24, largest, peak, 0], [12 / 24, 1, peak, 0]])


def test_each_overlap_has_its_best_threshold_over_the_set() -> None:
    """Shares at 0.3 are 2/4, 3/4, 0; at 0.5: 2/4, 1/4, 0; at 0.7: 0, 1/4, 0."""
    found = np.array([[0.5, 0.3, 0.0], [0.6, 0.3, 0.0], [0.1, 0.7, 0.0], [0.0, 0.1, 0.29]])
    accuracy = max_box_accuracy(found, np.array([0.1, 0.2, 0.3]))
    assert accuracy.accuracies == (0.75, 0.5, 0.25)
    assert accuracy.thresholds == (0.2, 0.1, 0.2)
    assert accuracy.mean == pytest.approx(0.5)


def test_threshold_zero_is_a_box_around_everything() -> None:
    draw = np.random.default_rng(0)
    true = boxes((1, 1, 8, 8))
    for score in (draw.random((8, 8)), np.zeros((8, 8))):
        score = score - score.min()
        assert best_overlaps(score, true, AS_EVALUATED)[0, 0] == 49 / 64
    assert THRESHOLDS[0] == 0
    assert len(set(THRESHOLDS)) == 100


def test_a_bright_rectangle_is_found_exactly() -> None:
    attention = torch.full((1, 2, 12, 16), 1e-4)
    attention[..., 3:9, 5:14] = 1.0
    attention /= attention.sum((-2, -1), keepdim=True)
    score = score_maps([attention], (12, 16))[0].numpy()
    true = boxes((5, 3, 14, 9))
    np.testing.assert_array_equal(component_boxes(score, 0.5), true)
    assert max_box_accuracy(best_overlaps(score, true)[:1]).accuracies == (1, 1, 1)


def test_every_map_counts_once_whatever_its_grid() -> None:
    """Two fine heads attend to the left and a coarse one to the right: left gets two thirds."""
    fine, coarse = torch.zeros(2, 2, 4, 8), torch.zeros(2, 1, 2, 2)
    fine[..., :4], coarse[..., 1] = 1 / 16, 1 / 2
    fine[1], coarse[1] = 1 / 32, 1 / 4  # the second image is flat
    scores = score_maps([fine, coarse], (4, 8))
    resized = torch.nn.functional.interpolate(torch.tensor([[[[0.0, 2.0]] * 2]]), (4, 8), mode="bicubic")[0, 0]
    mean = (2 * torch.tensor([[2.0] * 4 + [0.0] * 4]) + resized) / 3
    torch.testing.assert_close(scores[0], (mean - mean.min()) / (mean.max() - mean.min()))
    assert (scores[1] == 0).all()


def test_scores_do_not_depend_on_the_rest_of_the_batch_and_span_zero_to_one() -> None:
    maps = [
        torch.rand(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1, 5, 9])[:, None, None, None]
    ]
    maps = [layer / layer.sum((-2, -1), keepdim=True) ** 0.5 for layer in maps]
    scores = score_maps(maps, (10, 12))
    torch.testing.assert_close(scores[1:2], score_maps([maps[0][1:2]], (10, 12)))
    assert scores.amin((1, 2)).tolist() == [0, 0, 0]
    assert scores.amax((1, 2)).tolist() == [1, 1, 1]


def test_the_published_masks_are_quantized() -> None:
    """floor(255 s) > floor(255 t), t = 0, 0.001, ..., 0.999, as the authors make them."""
    score = np.random.default_rng(3).random((7, 9)).round(2)
    score[0, 0], score[6, 8] = 0, 1
    true, shares = boxes((2, 1, 7, 5)), best_overlaps(score, boxes((2, 1, 7, 5)), PUBLISHED)
    assert shares.shape == (2, 1000)
    for place in (0, 1, 3, 4, 200, 499, 600, 998, 999):
        mask = (255 * score).astype(np.uint8) > int(255 * place / 1000)
        parts = component_boxes(mask.astype(float), 0.5)
        overlaps = box_overlaps(parts, true).max(1) if len(parts) else np.zeros(1)
        assert tuple(shares[:, place]) == (overlaps[0], overlaps.max())
    assert (best_overlaps(np.zeros((7, 9)), true, PUBLISHED) == 0).all(), "a flat map has no mask"


TWO = {"cat/a b.jpg": [[2.0, 3.0, 10.0, 7.0], [0.0, 0.0, 1.0, 1.0]], "dog/1.jpg": [[5.0, 0.0, 6.0, 9.0]]}


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_three_layouts_of_the_same_boxes_agree(tmp_path: Path) -> None:
    text = "cat/a b.jpg 2 3 9 6\n\ndog/1.jpg 5 0 5 8\ncat/a b.jpg 0 0 0 0\n"
    names = "7 dog/1.jpg\n3 cat/a b.jpg\n1 none.jpg\n"
    folder = write(tmp_path, boxes=text, images=names, bounding_boxes="3 2.0 3.0 8 4\n3 0 0 1 1\n7 5.0 0 1 9\n")
    images = [{"id": 9, "file_name": "dog/1.jpg"}, {"id": 4, "file_name": "cat/a b.jpg"}]
    cells = [(4, [2, 3, 8, 4], 0), (4, [0, 0, 20, 20], 1), (4, [0, 0, 1, 1], 0), (9, [5, 0, 1, 9], 0)]
    content = [{"image_id": image, "bbox": box, "iscrowd": crowd} for image, box, crowd in cells]
    (tmp_path / "instances.json").write_text(json.dumps({"images": images, "annotations": content}))
    for file in (folder / "boxes.txt", folder / "bounding_boxes.txt", folder, folder / "instances.json"):
        assert {name: boxes.tolist() for name, boxes in read_boxes(file).items()} == TWO


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("b.txt", "a.jpg 1 2 3 4\na.jpg 1 2 3\n", "line 2: expected NAME LEFT TOP RIGHT BOTTOM"),
        ("b.txt", "a.jpg 1 2 three 4\n", "line 1: expected"),
        ("b.txt", "\na.jpg 5 2 3 4\n", "line 2: a box needs left < right"),
        ("b.txt", "a.jpg -1 2 3 4\n", "none below 0"),
        ("b.txt", "a.jpg 1 2 nan 4\n", "left < right"),
        ("b.txt", "\n", "holds no boxes"),
        ("bounding_boxes.txt", "1 2 3 4 5\n", "images.txt, which names them, is missing"),
        ("b.json", "{", "cannot read .*b.json as JSON"),
        ("b.json", "[" * 10**5, "cannot read .*b.json as JSON"),
        ("b.json", '{"images": []}', "annotations"),
        ("b.json", '{"images": [], "annotations": [{"image_id": 1, "bbox": [1, 2, 3, 4]}]}', "not a COCO file"),
        ("b.json", '{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "bbox": [1, 2, 0, 4]}]}',
         "annotation 0: a box needs"),
    ],
)  # fmt: skip
def test_an_invalid_line_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    refused(said, read_boxes, tmp_path / name)
    refused("no file of boxes", read_boxes, tmp_path / "missing.txt")


def test_an_image_is_found_by_the_end_of_its_path() -> None:
    boxes = {"a/1.jpg": np.ones((1, 4)), "1.jpg": np.zeros((1, 4)), "b/2.jpg": np.ones((2, 4))}
    found = boxes_of(["set/test/a/1.jpg", "set/test/c/1.jpg", "b/2.jpg", "b/12.jpg"], boxes)
    assert [None if one is None else one.sum() for one in found] == [4, 0, 8, None]
    refused(r"1.jpg could be those of x/1.jpg or of y/1.jpg", boxes_of, ["x/1.jpg", "y/1.jpg"], boxes)
    refused(r"none of the 2 images.*x/7.jpg.*a/1.jpg", boxes_of, ["x/7.jpg", "1.jpg/x"], boxes)


def test_boxes_are_mapped_as_evaluation_crops() -> None:
    """By hand: of 100x200 pixels (H x W) a square has the middle 100 columns."""
    boxes = np.array([[60.0, 10, 110, 90], [0, 0, 200, 100], [0, 0, 50, 100]])
    whole = in_view(boxes, (100, 200), CenterCrop(), (50, 50))
    np.testing.assert_allclose(whole, [[5, 5, 30, 45], [0, 0, 50, 50]], atol=1e-12)
    close = in_view(boxes, (100, 200), CenterCrop(0.8), (40, 40))
    np.testing.assert_allclose(close, [[0, 0, 25, 40], [0, 0, 40, 40]], atol=1e-12)
    wide = in_view(boxes, (100, 200), CenterCrop(), (50, 100))
    np.testing.assert_allclose(wide, boxes / 2, atol=1e-12)
    refused("ends outside its image", lambda: in_view(boxes, (100, 150), CenterCrop(), (50, 50)))


def test_the_box_of_a_rectangle_follows_it_through_the_crop() -> None:
    """Edges of the rectangle are chosen so that they fall between pixels everywhere."""
    crop, size, input_size = CenterCrop(0.875), (120, 160), (84, 84)
    stored = torch.zeros(1, 3, 120, 120, dtype=torch.uint8)
    stored[:, :, 30:80, 30:90] = 255
    seen = crop(stored, torch.tensor([size]), torch.empty(1, 0), input_size)[0, 0].float() > 127
    rows, columns = seen.any(1).nonzero()[:, 0], seen.any(0).nonzero()[:, 0]
    drawn = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
    mapped = in_view(np.array([[40.0, 30.0, 120.0, 80.0]]), size, crop, input_size)[0]
    np.testing.assert_allclose(mapped, drawn, atol=1e-9)
    assert drawn == [10, 18, 74, 58]
