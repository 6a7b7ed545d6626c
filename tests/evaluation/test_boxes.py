# SPDX-License-Identifier: Apache-2.0
"""True boxes: three file layouts agree, and a box is where its object is in the student's input."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from refusals import refused
from viticulture.data.transforms.crop import CenterCrop
from viticulture.evaluation.localization.boxes import boxes_of, in_view, read_boxes

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
