# SPDX-License-Identifier: Apache-2.0
"""Annotation formats: lists of objects and folders of masks, read to the same objects, or refused."""

import codecs
import json
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import viticulture
from dense_scenes import KINDS, Object, coco_folder, mask_folder, picture
from refusals import refused
from strewn import every_left_behind, strew
from viticulture.config.load import read
from viticulture.config.resolve import resolve
from viticulture.data.annotated import prepare_annotated, prepare_annotated_test
from viticulture.data.batches.evaluation import target_batches
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import Dataset
from viticulture.data.image_settings import ImageSettings
from viticulture.data.inspect import inspect
from viticulture.data.open import annotation_format, open_source
from viticulture.data.sources.labels import doubtful
from viticulture.data.sources.mask_folders import read_mask
from viticulture.data.sources.source import Source
from viticulture.data.target_checks import needed_of_mask
from viticulture.data.targets.objects import Boxed, Masked
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.report.terminal import say
from viticulture.training.data import load_dataset, open_for

PICTURES = ImageSettings(image_size=48, cache_size=64)
COUNTS = {"train": 4, "val": 2, "test": 2}
SPLITS = ["train"] * 4 + ["val"] * 2 + ["test"] * 2


def prepared(path: Path, wanted: str = "objects", masks: bool = False, **settings: Any) -> Dataset:
    return prepare_annotated(open_source(path, wanted), DataSettings(**settings), PICTURES, masks=masks)


def boxed(dataset: Dataset, split: str) -> Boxed:
    held = dataset.annotations[split]
    assert isinstance(held, Boxed)
    return held


def masked(dataset: Dataset, split: str) -> Masked:
    held = dataset.annotations[split]
    assert isinstance(held, Masked)
    return held


def yolo(root: Path) -> Path:
    for seed, split in enumerate(SPLITS):
        image, objects = picture(seed)
        for folder in ("images", "labels"):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        image.save(root / "images" / split / f"{seed:03}.png")
        lines = [yolo_line(thing, image.size) for thing in objects]
        (root / "labels" / split / f"{seed:03}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text("names: {0: disk, 1: square}\ntrain: images/train\n")
    return root


def yolo_line(thing: Object, size: tuple[int, int]) -> str:
    kind, (left, top, right, bottom) = thing
    width, height = size
    center = (left + right) / 2 / width, (top + bottom) / 2 / height
    return f"{kind} {center[0]} {center[1]} {(right - left) / width} {(bottom - top) / height}"


def voc(root: Path) -> Path:
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for seed, split in enumerate(SPLITS):
        image, objects = picture(seed)
        image.save(root / "JPEGImages" / f"{seed:03}.png")
        entries = "".join(
            f"<object><name>{KINDS[kind]}</name><difficult>0</difficult><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}"
            f"</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for kind, (left, top, right, bottom) in objects
        )
        size = f"<size><width>{image.width}</width><height>{image.height}</height></size>"
        text = f"<annotation><filename>{seed:03}.png</filename>{size}{entries}</annotation>"
        (root / "Annotations" / f"{seed:03}.xml").write_text(text)
        with (root / "ImageSets" / "Main" / f"{split}.txt").open("a") as file:
            file.write(f"{seed:03}\n")
    return root


def box_csv(root: Path) -> Path:
    root.mkdir()
    lines = ["path,label,x0,y0,x1,y1,split"]
    for seed, split in enumerate(SPLITS):
        image, objects = picture(seed)
        image.save(root / f"{seed:03}.png")
        lines += [f"{seed:03}.png,{KINDS[kind]},{','.join(map(str, box))},{split}" for kind, box in objects]
    (root / "boxes.csv").write_text("\n".join(lines))
    return root / "boxes.csv"


@pytest.mark.parametrize(
    "made", [lambda root: coco_folder(root, COUNTS), yolo, voc, box_csv], ids=["coco", "yolo", "voc", "csv"]
)
def test_every_format_reads_the_same_objects(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    path = made(tmp_path / "set")
    assert annotation_format(path)[0] == "objects"
    dataset = prepared(path)
    assert (dataset.name, dataset.classes) == (path.name, KINDS)
    for split, seeds in (("train", range(4)), ("val", range(4, 6)), ("test", range(6, 8))):
        held = dataset.annotations[split]
        assert isinstance(held, Boxed)
        names = dataset.split_names[split]
        assert [Path(name).stem for name in names] == [f"{seed:03}" for seed in seeds]
        for objects, seed in zip(held.objects, seeds, strict=True):
            _, drawn = picture(seed)
            torch.testing.assert_close(
                objects.boxes, torch.tensor([box for _, box in drawn]).float(), rtol=0, atol=1e-3
            )
            assert objects.labels.tolist() == [kind for kind, _ in drawn]


def test_masks_are_paired_by_name(tmp_path: Path) -> None:
    dataset = prepared(mask_folder(tmp_path / "set", {"train": 3, "val": 2}), "pixels", test_fraction=0)
    assert dataset.classes == ("ground", "disk", "square")
    held = masked(dataset, "val")
    true = np.asarray(Image.open(tmp_path / "set" / "val" / "masks" / "004.png"))
    found = held.original(1)
    np.testing.assert_array_equal(found[true < 9], true[true < 9])
    assert (found[true == 9] == 255).all()
    assert set(held.pixels[held.rows].unique().tolist()) <= {0, 1, 2, 255}


@every_left_behind
def test_system_files_annotate_nothing(name: str, tmp_path: Path) -> None:
    made: dict[str, Callable[[Path], Path]] = {
        "coco": lambda root: coco_folder(root, COUNTS),
        "yolo": yolo,
        "voc": voc,
        "csv": box_csv,
        "masks": lambda root: mask_folder(root, {"train": 3, "val": 2}),
    }
    for kind, make in made.items():
        path, wanted = make(tmp_path / kind), "pixels" if kind == "masks" else "objects"
        before = open_source(path, wanted)
        strew(tmp_path / kind, name)
        after = open_source(path, wanted)
        assert after.names == before.names
        assert {split: rows.tolist() for split, rows in after.splits.items()} == {
            split: rows.tolist() for split, rows in before.splits.items()
        }


def test_an_image_under_two_linked_names_is_the_one_of_its_list(tmp_path: Path) -> None:
    lists = coco_folder(tmp_path / "coco", COUNTS)
    (lists / "images").rename(tmp_path / "pool")
    for name in ("images", "train2017", "val2017"):
        (lists / name).symlink_to(tmp_path / "pool")
    images = open_source(lists, "objects")
    assert {split: [images.names[row] for row in rows] for split, rows in images.splits.items()} == {
        "train": [f"train2017/{i:03}.png" for i in range(4)],
        "val": [f"val2017/{i:03}.png" for i in (4, 5)],
        "test": [f"images/{i:03}.png" for i in (6, 7)],
    }
    xml = voc(tmp_path / "voc")
    (xml / "again").symlink_to(xml / "JPEGImages")
    assert len(open_source(xml, "objects")) == 8
    boxes = yolo(tmp_path / "yolo")
    for folder in ("images", "labels"):
        shutil.rmtree(boxes / folder / "test")
        (boxes / folder / "test").symlink_to(boxes / folder / "train")
    refused(r"every test image of yolo is a training image, by links", open_source, boxes, "objects")


def test_an_image_without_objects_is_background(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    change(
        root,
        "train",
        lambda content: content.update(annotations=[a for a in content["annotations"] if a["image_id"] != 1]),
    )
    held = boxed(prepared(root), "train")
    assert [len(objects) > 0 for objects in held.objects] == [True, False, True, True]


@pytest.mark.parametrize("turn", [6, 8, 5, 7])
def test_boxes_follow_an_image_rotated_by_its_tag(tmp_path: Path, turn: int) -> None:
    root = tmp_path / "set"
    (root / "images").mkdir(parents=True)
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[5:15, 30:50] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[ExifTags.Base.Orientation] = turn
    for name in ("a", "b", "c"):
        image.save(root / "images" / f"{name}.jpg", exif=exif, quality=95)
    entries = [{"id": i, "file_name": f"{name}.jpg", "height": 40, "width": 60} for i, name in enumerate("abc")]
    shapes: list[Any] = [None, {"size": [40, 60], "counts": [2400]}, [[1, 2, 3]]]
    objects = [
        {"image_id": i, "category_id": 1, "bbox": [30, 5, 20, 10], "segmentation": shape}
        for i, shape in enumerate(shapes)
    ]
    content = {"images": entries, "annotations": objects, "categories": [{"id": 1, "name": "white"}]}
    (root / "instances_train.json").write_text(json.dumps(content))
    dataset = prepared(root, test_fraction=0, val_fraction=0)
    held = boxed(dataset, "train")
    left, top, right, bottom = (int(side) for side in held.objects[0].boxes[0])
    upright = np.asarray(Image.fromarray(dataset.train.original(0)).resize((40, 60)))
    inside = np.zeros((60, 40), bool)
    inside[top:bottom, left:right] = True
    assert upright[inside].mean() > 230
    assert upright[~inside].mean() < 20


def change(root: Path, split: str, mend: Callable[[dict[str, Any]], object]) -> None:
    file = root / "annotations" / f"instances_{split}.json"
    content = json.loads(file.read_text())
    mend(content)
    file.write_text(json.dumps(content))


def first_box(box: list[float]) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["annotations"][0].update(bbox=box)


@pytest.mark.parametrize(
    ("mend", "words"),
    [
        (first_box([500, 5, 10, 10]), "1 box empty or reaching outside"),
        (first_box([5, 5, 0, 10]), "1 box empty or reaching outside"),
        (first_box([5, 5, 10]), "left, top, width, height"),
        (first_box([5, 5, 10**400, 10]), "left, top, width, height"),
        (lambda content: content["annotations"][0].update(category_id=4), "category 4, which it does not name"),
        (lambda content: content["images"][0].update(file_name="gone.png"), "none of that name"),
        (lambda content: content["images"][0].update(height=100), "says 80x100"),
        (
            lambda content: content.update(annotations=[]),
            "no object in any training image; there is nothing to train on",
        ),
        (
            lambda content: [each.update(iscrowd=1) for each in content["annotations"]],
            "no object in any training image but crowds and difficult ones; there is nothing to train on",
        ),
        (lambda content: content["categories"].append({"id": 9, "name": "disk"}), "class 'disk' twice"),
        (
            lambda content: content["annotations"][0].update(image_id=77),
            "that it does not list: an image_id is 77, which",
        ),
        (
            lambda content: content["annotations"][0].update(image_id="0"),
            "an image_id is text, '0', and the id that it means is a number, 0; write both as numbers",
        ),
        (lambda content: content["images"][0].pop("id"), "no list of objects"),
        (
            lambda content: content["images"][1].update(id=content["images"][0]["id"]),
            "gives two images the id 0, 000.png and 001.png; it is unclear which",
        ),
        (lambda content: [each.update(bbox=[0.1, 0.2, 0.3, 0.4]) for each in content["annotations"]], "as shares of"),
        (lambda content: content["images"][0].update(id=[1]), r"id \[1\] of images is missing or wrong"),
        (lambda content: content["annotations"][0].update(category_id=[3]), "no list of objects"),
        (lambda content: content["categories"][0].update(id="3"), "no list of objects"),
        (lambda content: content["images"][0].update(width="80"), "must be numbers"),
    ],
)
def test_an_invalid_list_is_refused_in_one_line(
    tmp_path: Path, mend: Callable[[dict[str, Any]], object], words: str
) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    change(root, "train", mend)
    refused(words, prepared, root)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("latest", "train"),
        ("contest_boxes", "train"),
        ("validated_labels", "train"),
        ("instances_train2017", "train"),
        ("instances_trainval2017", "train"),
        ("instances_val2017", "val"),
        ("instances_minival2014", "val"),
        ("image_info_test-dev2017", "test"),
        ("instancesTest", "test"),
        ("validation", "val"),
        ("testset", "test"),
        ("eval_boxes", "val"),
    ],
)
def test_a_lists_name_has_its_split_as_a_word(tmp_path: Path, name: str, split: str) -> None:
    root = coco_folder(tmp_path / "set", {"train": 2})
    file = root / "annotations" / f"{name}.json"
    (root / "annotations" / "instances_train.json").rename(file)
    assert list(open_source(file, "objects").splits) == [split]
    if split != "train":
        refused(rf"no training images, only {split}, by the name of .*{name}\.json$", prepared, file)


def test_several_lists_each_name_a_split(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", {"train": 4, "val": 1, "test": 1})
    folder = root / "annotations"
    for split in COUNTS:
        (folder / f"instances_{split}.json").rename(folder / f"my{split}.json")
    refused(r"it is unclear of which split .*mytest.json is; name train, val or test", open_source, root, "objects")


@pytest.mark.parametrize("size", [0, 100])
def test_a_truncated_list_is_reported(size: int, tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    file = root / "annotations" / "instances_val.json"
    file.write_bytes(file.read_bytes()[:size])
    refused(r"cannot read .*instances_val\.json", prepared, root)


ALL = 64 * 80  # pixels of an image


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([[1, 2, 3]], "lacks corners"),
        ([[1, 2, 3, 4, 5, float("nan")]], "lacks corners"),
        ([["1", "2", "3", "4", "5", "6"]], "corners are no numbers"),
        ([[1, 2, 1e12, 2, 1e12, 1e12]], "corners lie far outside the image"),
        ("outline", "neither a list of polygons nor run lengths"),
        ({"size": [64, 80]}, "neither a list of polygons nor run lengths"),
        ({"size": [5, 5], "counts": [0, 25]}, "of the size"),
        ({"size": [64, 80], "counts": [5]}, "do not fill the image"),
        ({"size": [64, 80], "counts": [-5, ALL + 5]}, "do not fill the image"),
        ({"size": [64, 80], "counts": "@@@@"}, "do not fill the image"),
        (None, "objects without a mask"),
    ],
)
def test_undrawable_masks_are_reported_where_masks_are_needed(tmp_path: Path, shape: Any, words: str) -> None:
    pytest.importorskip("pycocotools", reason="outlines are drawn by the extra `dense`")
    root = coco_folder(tmp_path / "set", COUNTS)
    change(root, "train", lambda content: content["annotations"][0].update(segmentation=[[0, 0, 9, 0, 9, 9]]))
    whole = boxed(prepared(root, masks=True), "train")
    change(root, "train", lambda content: content["annotations"][0].update(segmentation=shape))
    refused(words, prepared, root, masks=True)
    alone = boxed(prepared(root), "train")
    assert sum(map(len, alone.objects)) == sum(map(len, whole.objects))
    if shape is not None:
        dataset = prepared(root, masks=True, skip_unreadable=True)
        kept = boxed(dataset, "train")
        assert sum(map(len, kept.objects)) == sum(map(len, whole.objects)) - 1
        assert any("1 mask that cannot be drawn" in warning for warning in dataset.warnings)


@pytest.mark.parametrize("crowd", [0, 1, True, False, None, "0", "1", "false"])
def test_a_crowd_is_what_a_list_marks_as_one(tmp_path: Path, crowd: Any) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    for split in COUNTS:
        change(root, split, lambda content: [thing.update(iscrowd=crowd) for thing in content["annotations"]])
    told = torch.cat([objects.crowd for objects in open_source(root, "objects").objects])
    assert told.unique().tolist() == [crowd in (1, "1")]


def test_invalid_boxes_can_be_skipped(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    whole = prepared(root).annotations["train"]
    change(root, "train", first_box([500, 5, 10, 10]))
    dataset = prepared(root, skip_unreadable=True)
    held = boxed(dataset, "train")
    assert isinstance(whole, Boxed)
    assert sum(map(len, held.objects)) == sum(map(len, whole.objects)) - 1
    assert any("1 empty or outlying box" in warning for warning in dataset.warnings)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 0.5 0.5 0.1 0.1", "class 2, and the 2 classes are numbered from 0"),
        ("0 0.5 0.5 0.1", "a class and 4 numbers"),
        ("\n\r\ndisk 0.5 0.5 0.1 0.1", "line 3: must be a class's number, then shares"),
        ("0 0.5 0.5 1.5 0.1", "1 box empty or reaching outside"),
    ],
)
def test_an_invalid_yolo_label_is_refused_in_one_line(tmp_path: Path, line: str, words: str) -> None:
    root = yolo(tmp_path / "set")
    (root / "labels" / "train" / "000.txt").write_text(line)
    refused(words, prepared, root)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("images/000.png,,1,2,30,40", "line 2: a box without a label"),
        ("images/000.png,disk,1,2", "line 2: x0,y0,x1,y1 must be pixels, got 1,2,,"),
        ("images/000.png,disk,1,2,30,40,train", "line 2: 7 values for 6 columns; quote"),
        ("images/gone.png,disk,1,2,30,40", "1 file that .* does not hold: images/gone.png"),
        ("images/000.png,,,,,", "names no classes"),
        ("", "names no classes"),
    ],
)
def test_an_invalid_csv_is_refused_in_one_line(tmp_path: Path, line: str, words: str) -> None:
    file = coco_folder(tmp_path / "set", {"train": 1}) / "boxes.csv"
    file.write_text(f"path,label,x0,y0,x1,y1\n{line}\n")
    refused(words, prepared, file)


def test_whole_numbers_with_a_point_are_one_class_of_a_csv(tmp_path: Path) -> None:
    file = box_csv(tmp_path / "a")
    rows = [line.split(",") for line in file.read_text().splitlines()]
    labels = sorted({row[1] for row in rows[1:] if row[1]})
    for i, row in enumerate(rows[1:]):
        row[1] = f"{labels.index(row[1])}{'.0' * (i % 2)}" if row[1] else ""
    file.write_text("\n".join(",".join(row) for row in rows))
    assert open_source(file, "objects").classes == tuple(map(str, range(len(labels))))


def test_splits_of_a_csv_are_compared_by_meaning(tmp_path: Path) -> None:
    file = coco_folder(tmp_path / "set", {"train": 2}) / "boxes.csv"
    lines = ["images/000.png,disk,1,2,30,40,{}", "images/001.png,disk,1,2,30,40,{}", "images/001.png,disk,1,2,9,9,{}"]

    def opened(*splits: str) -> Source:
        rows = [line.format(split) for line, split in zip(lines, splits, strict=True)]
        file.write_text("\n".join(["path,label,x0,y0,x1,y1,split", *rows]))
        return open_source(file, "objects")

    splits = opened("Train", "val", "valid").splits
    assert {kind: rows.tolist() for kind, rows in splits.items()} == {"train": [0], "val": [1]}
    refused(r"line 4: images/001\.png is in two splits, val and test", opened, "train", "val", "test")
    refused("line 2: split must be train, val or test, got an empty cell; fill the column", opened, "", "val", "val")


def test_a_list_may_have_absolute_paths(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", {"train": 1})
    below = root / "images" / "000.png"
    change(root, "train", lambda content: content["images"][0].update(file_name=str(below)))
    for data in (root, root / "annotations" / "instances_train.json"):
        assert open_source(data, "objects").names == ["images/000.png"]
    shutil.copy(below, tmp_path / "000.png")
    for other in (tmp_path / "000.png", Path("/nowhere/000.png")):
        change(root, "train", lambda content, other=other: content["images"][0].update(file_name=str(other)))
        refused(
            f"lists the image '{other}', and below .* its name alone fits images/000.png", open_source, root, "objects"
        )


def test_labels_without_an_image_are_reported(tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    (root / "labels" / "classes.txt").write_text("disk\nsquare\n")
    (root / "data.yaml").unlink()
    assert open_source(root, "objects").warnings == ()
    (root / "labels" / "train" / "000.txt").rename(root / "labels" / "train" / "O00.txt")
    assert open_source(root, "objects").warnings == ("1 file of labels without an image: labels/train/O00.txt",)


def test_a_null_size_is_unknown(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    change(root, "train", lambda content: content["images"][0].update(height=None, width=None))
    source = open_source(root, "objects")
    assert [source.objects[row].size for row in source.splits["train"][:2]] == [None, (64, 80)]


def test_the_utf8_mark_of_windows_is_ignored(tmp_path: Path) -> None:
    wanted = open_source(yolo(tmp_path / "yolo"), "objects")
    files = [*(tmp_path / "yolo").rglob("*.txt")]
    (tmp_path / "yolo/data.yaml").unlink()
    (tmp_path / "yolo/classes.txt").write_text("disk\nsquare\n")
    root = coco_folder(tmp_path / "coco", COUNTS)
    for file in (*files, tmp_path / "yolo/classes.txt", *root.rglob("*.json")):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    for source in (open_source(tmp_path / "yolo", "objects"), open_source(root, "objects")):
        assert source.classes == wanted.classes
        assert sum(map(len, source.objects)) == sum(map(len, wanted.objects))


MADE = [lambda root: coco_folder(root, COUNTS), yolo, voc, box_csv]
TEXTS = {".json", ".txt", ".xml", ".csv", ".yaml"}


def texts(path: Path) -> list[Path]:
    root = path if path.is_dir() else path.parent
    return [file for file in sorted(root.rglob("*")) if file.suffix in TEXTS]


def contents(source: Source) -> tuple[object, ...]:
    """Read everything that a list holds, in the order of the images' names."""
    kinds = {row: split for split, rows in source.splits.items() for row in rows.tolist()}
    every = [
        (name.lower(), kinds[row], held.boxes.tolist(), held.labels.tolist(), held.crowd.tolist())
        for row, (name, held) in enumerate(zip(source.names, source.objects, strict=True))
    ]
    return source.classes, sorted(every)


@pytest.mark.parametrize("made", MADE, ids=["coco", "yolo", "voc", "csv"])
@pytest.mark.parametrize("written", ["utf-8-sig", "utf-16", "utf-16-be", "\r\n", "\r", "upper", "folders"])
def test_lists_of_objects_are_read_in_every_encoding(tmp_path: Path, made: Any, written: str) -> None:
    path = made(tmp_path / "set")
    expected = contents(open_source(path, "objects"))
    for file in texts(path):
        text = file.read_text()
        if written == "upper":
            file.rename(file.with_suffix(file.suffix.upper()))
        elif written.startswith("utf"):
            file.write_bytes((codecs.BOM_UTF16_BE if written.endswith("be") else b"") + text.encode(written))
        elif written != "folders":
            file.write_bytes(text.replace("\n", written).encode())
    for folder in ("images", "labels", "annotations", "Annotations", "ImageSets") if written == "folders" else ():
        if (tmp_path / "set" / folder).is_dir():
            (tmp_path / "set" / folder).rename(tmp_path / "set" / folder.upper())
    path = path.with_suffix(path.suffix.upper()) if written == "upper" and path.suffix else path
    assert contents(open_source(path, "objects")) == expected


@pytest.mark.parametrize(
    ("made", "pattern", "by"),
    [
        (MADE[0], r'("(?:image_)?id"|"category_id"|"width"|"height"): (\d+)', r"\1: \2.0"),
        (yolo, r"(?m)^(\d) ", r"\1.0 "),
        (yolo, r"(\d)\.(\d)", r"\1,\2"),
        (voc, r"<(width|height|xmin|ymin|xmax|ymax)>(\d+)<", r"<\1> \2.0 <"),
        (box_csv, r",(\d+)", r",\1.0"),
        (box_csv, r",", ";"),
        (box_csv, r"\A(.*)", r"# by a tool, of 2026\n\n\1"),
        (box_csv, r"\A", "sep=,\n"),
        (box_csv, r"\Z", "\n# the end\n"),
    ],
)
def test_numbers_and_rows_are_read_in_every_spelling(tmp_path: Path, made: Any, pattern: str, by: str) -> None:
    path = made(tmp_path / "set")
    expected = contents(open_source(path, "objects"))
    for file in texts(path):
        if file.suffix != ".yaml":
            file.write_text(re.sub(pattern, by, file.read_text()))
    assert contents(open_source(path, "objects")) == expected


@pytest.mark.parametrize("made", [MADE[0], voc, box_csv], ids=["coco", "voc", "csv"])
@pytest.mark.parametrize(
    "path",
    [
        "../images/1/{}", "..\\..\\media\\upload\\4\\{}", "https://host/data/upload/1/{}", "D:\\photos\\{}",
        "\\\\server\\share\\{}", "file:///C:/x/{}", "/data/upload/1/{}", "/data/local-files/?d=photos/{}",
    ],
)  # fmt: skip
def test_paths_of_other_systems_find_their_image(tmp_path: Path, made: Any, path: str) -> None:
    data = made(tmp_path / "set [1]")
    expected = contents(open_source(data, "objects"))
    places = {".json": r'(?<="file_name": ")[^"]+', ".xml": "(?<=<filename>)[^<]+", ".csv": r"(?m)^[^,\n]+[.]png"}
    for file in (file for file in texts(data) if file.suffix in places):
        written = path.replace("\\", r"\\") if file.suffix == ".json" else path
        file.write_text(re.sub(places[file.suffix], lambda m, by=written: by.format(m[0]), file.read_text()))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "000.png").write_bytes(b"another")
    source = open_source(data, "objects")
    assert contents(source) == expected
    assert any("found by the ends of their paths" in note for note in source.warnings)


def test_special_characters_of_a_path_are_read_literally(tmp_path: Path) -> None:
    for name in ("a:1.png", "b\\2.png", "c%203.png", "d[4].png", "e #5?.png"):
        root = coco_folder(tmp_path / name / "set", {"train": 1})
        (root / "images" / "000.png").rename(root / "images" / name)
        change(root, "train", lambda content, name=name: content["images"][0].update(file_name=name))
        source = open_source(root, "objects")
        assert (source.names, source.warnings) == ([f"images/{name}"], ())


def test_an_image_of_another_split_is_no_substitute(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", {"train": 1})
    (root / "images").rename(root / "train")
    change(root, "train", lambda content: content["images"][0].update(file_name="val/000.png"))
    refused(r"its name alone fits train/000\.png; correct the path", open_source, root, "objects")


@pytest.mark.parametrize("made", MADE, ids=["coco", "yolo", "voc", "csv"])
def test_repeated_objects_count_once(tmp_path: Path, made: Any) -> None:
    path = made(tmp_path / "set")
    expected = contents(open_source(path, "objects"))
    for file in texts(path):
        text = file.read_text()
        if file.suffix == ".json":
            content = json.loads(text)
            content["annotations"] *= 2
            file.write_text(json.dumps(content))
        elif file.suffix == ".xml":
            file.write_text(re.sub(r"(<object>.*</object>)", r"\1\1", text))
        elif file.suffix == ".csv" or "labels" in file.parts:
            rows = text.splitlines()
            file.write_text("\n".join(rows + rows[file.suffix == ".csv" :]))
    source = open_source(path, "objects")
    assert contents(source) == expected
    count = sum(map(len, source.objects))
    assert f"left out {count} objects that repeat another one of their image: " in source.warnings[-1]


@pytest.mark.parametrize("form", ["[{}]", "{{{}}}"])
def test_yolos_class_names_are_read_literally(form: str, tmp_path: Path) -> None:
    """02146, no, 1:30."""
    root = yolo(tmp_path / "set")
    for names in (["02146", "21008"], ["yes", "no"], ["1:30", "~"], ["0x1F", "1.10"], ["null", "2026-01-31"]):
        listed = names if form == "[{}]" else [f"{number}: {name}" for number, name in enumerate(names)]
        (root / "data.yaml").write_text(f"names: {form.format(', '.join(listed))}\n")
        assert list(open_source(root, "objects").classes) == names
    (root / "data.yaml").write_text("names: [a, [b]]\n")
    refused("a class has one name", open_source, root, "objects")


def test_names_of_pixel_values_are_read_literally(tmp_path: Path) -> None:
    root = mask_folder(tmp_path / "set", {"train": 1})
    for written in ("utf-8-sig", "utf-16"):
        (root / "classes.json").write_text('["1.10", 2.50, " sky "]', written)
        assert open_source(root, "pixels").classes == ("1.10", "2.50", "sky")
    (root / "classes.json").rename(root / "Classes.JSON")
    (root / "Classes.JSON").write_text('{"0.0": "a", "1": "b", "2": 3}')
    assert open_source(root, "pixels").classes == ("a", "b", "3")
    for wrong, said in (('["a", true]', "got true"), ('["a", null]', "got null"), ('{"0": "a", "0": "b"}', "twice")):
        (root / "Classes.JSON").write_text(wrong)
        refused(said, open_source, root, "pixels")


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "{", "7"])
def test_a_damaged_list_is_refused(text: str, tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", {"train": 1})
    (root / "annotations" / "instances_train.json").write_text(text)
    refused(r"instances_train\.json", open_source, str(root), annotations_first=True)


def test_many_classes_are_read_and_printed_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, many = coco_folder(tmp_path / "set", {"train": 1}), 100_000
    change(root, "train", lambda content: content.update(categories=[{"id": i, "name": f"c{i}"} for i in range(many)]))
    say(viticulture.inspect(root))
    printed = capsys.readouterr().out
    assert "100,000 classes; 3 train (the first 60" in printed
    assert "c59" in printed
    assert "c60" not in printed
    assert doubtful([f"c{i}, d" for i in range(many)]) == []


@pytest.mark.parametrize("names", ["{1: disk, 2: square}", "{0: disk, x: square}"])
def test_yolos_classes_count_from_0(names: str, tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    (root / "data.yaml").write_text(f"names: {names}\n")
    refused("must count from 0", prepared, root)


def moved(root: Path, folders: dict[str, str]) -> Path:
    """Write YOLO's folder with other names for its splits' folders."""
    for folder in ("images", "labels"):
        for split, name in folders.items():
            (root / folder / split).rename(root / folder / name)
    return root


def splits_of(root: Path, declared: str) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """Read split -> numbers of its images as data.yaml declares them, and the warnings."""
    (root / "data.yaml").write_text(f"names: [disk, square]\n{declared}")
    source = open_source(root, "objects")
    assert all(map(len, source.objects))
    stems = [int(Path(name).stem) for name in source.names]
    return {split: [stems[row] for row in rows] for split, rows in source.splits.items()}, source.warnings


YEARS = {"train": "train2017", "val": "val2017", "test": "test2017"}
PLACES = {"train": "vines", "val": "oaks", "test": "elms"}
TRUE = {"train": [0, 1, 2, 3], "val": [4, 5], "test": [6, 7]}


def test_two_images_of_one_label_file_are_refused(tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    first = next((root / "images" / "train").iterdir())
    Image.open(first).save(first.with_suffix(".jpg"))
    refused(r"several images of one file of labels: labels/train/\d+.txt", open_source, root, "objects")


def test_yolos_splits_are_those_of_its_file(tmp_path: Path) -> None:
    assert splits_of(moved(yolo(tmp_path / "years"), YEARS), "") == (TRUE, ())
    root = moved(yolo(tmp_path / "set"), PLACES)
    for split, numbers in TRUE.items():
        lines = [f"./images/{PLACES[split]}/{number:03}.png\n" for number in numbers]
        (root / f"{PLACES[split]}.txt").write_text("".join(lines))
    for declared in (
        "path: ../sets/set\ntrain: images/vines\nval: images/oaks/\ntest: [images/elms]\n",
        "val: ../set/images/oaks\ntrain: /content/set/images/vines\ntest: .\\images\\elms\n",
        "train: vines.txt\nval: oaks.txt\ntest: data/elms.txt\n",
        "train: [vines.txt]\nval: images/oaks\ntest: elms.txt\n",
    ):
        assert splits_of(root, declared) == (TRUE, ()), declared


def test_what_yolos_file_does_not_name_is_reported(tmp_path: Path) -> None:
    root = moved(yolo(tmp_path / "set"), PLACES)
    splits, notes = splits_of(root, "train: images/vines\nval: images/vines\ntest: images/gone\n")
    assert splits == {"train": TRUE["train"]}
    assert notes == (
        "data.yaml names no image of its test split",
        "data.yaml names 4 images for val and train; they are for train alone",
        "left out 4 images of no split that data.yaml names: images/elms/006.png, images/elms/007.png, "
        "images/oaks/004.png and 1 more",
    )
    splits, notes = splits_of(root, "train: images/vines\nval: images/elms\ntest: images/elms\n")
    assert splits == {split: TRUE[split] for split in ("train", "test")}
    assert notes[0] == "data.yaml names 2 images for val and test; they are for test alone"
    (root / "few.txt").write_text("images/vines/000.png\nimages/vines/999.png\n")
    splits, notes = splits_of(root, "train: few.txt\nval: images/oaks\n")
    assert splits == {"train": [0], "val": [4, 5]}
    assert notes[0] == "data.yaml names 1 image for train that the folder does not hold"
    assert notes[1].startswith("left out 5 images")


def test_boxes_of_yolos_poses_are_read(tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    boxes = prepared(root).annotations["train"]
    for file in (root / "labels").rglob("*.txt"):
        file.write_text("\n".join(f"{line} 0.4 0.4 0.6 0.5" for line in file.read_text().splitlines()))
    (root / "data.yaml").write_text("names: [disk, square]\nkpt_shape: [2, 2]\n")
    posed = prepared(root).annotations["train"]
    assert isinstance(boxes, Boxed)
    assert isinstance(posed, Boxed)
    assert not posed.masks
    assert all((a.boxes == b.boxes).all() for a, b in zip(boxes.objects, posed.objects, strict=True))
    (root / "data.yaml").write_text("names: [disk, square]\nkpt_shape: two\n")
    refused("kpt_shape must be points and numbers of each, got 'two'", open_source, root, "objects")


def test_yolos_labels_may_end_in_capitals(tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    before = open_source(root, "objects")
    for file in [*(root / "labels").rglob("*.txt")]:
        file.rename(file.with_suffix(".TXT"))
    source = open_source(root, "objects")
    assert source.warnings == before.warnings
    assert [len(each.boxes) for each in source.objects] == [len(each.boxes) for each in before.objects]
    (root / "labels" / "train" / "none.TXT").write_text("")
    assert open_source(root, "objects").warnings[-1].endswith("without an image: labels/train/none.TXT")


def test_yolos_outlines_are_masks(tmp_path: Path) -> None:
    """A polygon in shares of the image."""
    root = yolo(tmp_path / "set")
    for file in (root / "labels").rglob("*.txt"):
        file.write_text("1 0.25 0.25 0.5 0.25 0.5 0.75")
    held = boxed(prepared(root), "train")
    assert held.masks
    assert held.objects[0].boxes.tolist() == [[20, 16, 40, 48]]


def test_two_annotations_of_one_image_are_refused(tmp_path: Path) -> None:
    root = voc(tmp_path / "set")
    file = root / "Annotations" / "000.xml"
    file.write_text(file.read_text().replace("000.png", "007.png"))
    refused(r"Annotations lists JPEGImages/007.png twice", open_source, root, "objects")


def test_an_annotation_belongs_to_the_one_image_of_its_name(tmp_path: Path) -> None:
    root = voc(tmp_path / "set")
    file = root / "Annotations" / "000.xml"
    file.write_text(file.read_text().replace("000.png", "000"))
    (root / "SegmentationClass").mkdir()
    for name in ("000", "001"):
        Image.new("P", (80, 64)).save(root / "SegmentationClass" / f"{name}.png")
    assert all("JPEGImages" in name for name in open_source(root, "objects").names)
    (root / "JPEGImages").rename(root / "pictures")
    refused(r"'000', and there are several: (pictures|SegmentationClass)/000.png, ", open_source, root, "objects")
    (root / "pictures" / "000.png").unlink()
    (root / "SegmentationClass" / "000.png").unlink()
    refused("'000', and there is none of that name below", open_source, root, "objects")


@pytest.mark.parametrize("split", ["train", "test"])
def test_masks_are_evaluated_where_every_object_has_one(tmp_path: Path, split: str) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    change(root, split, lambda content: content["annotations"][0].pop("segmentation"))
    pictures = ImageSettings(image_size=32, cache_size=40)
    _, true, notes = prepare_annotated_test(open_source(root, "objects"), KINDS, pictures, masks=True)
    assert isinstance(true, Boxed)
    assert true.masks is (split == "train")
    assert [note for note in notes if "boxes alone are evaluated" in note] == notes[: split == "test"]


@pytest.mark.parametrize(("made", "wanted"), [(coco_folder, "objects"), (mask_folder, "pixels")])
def test_a_class_without_held_out_objects_is_reported(tmp_path: Path, made: Any, wanted: str) -> None:
    notes = prepared(made(tmp_path / "set", {"train": 9, "val": 1}), wanted, test_fraction=0).warnings
    _, objects = picture(9)
    (absent,) = {*KINDS} - {KINDS[kind] for kind, _ in objects}
    measured = {
        "objects": "nothing is measured of what no image shows",
        "pixels": "where a pixel is said to be such a class its IoU is 0, else it counts for nothing",
    }[wanted]
    assert [note for note in notes if "no val image shows" in note] == [f"no val image shows {absent}: {measured}"]


def test_a_class_without_images_is_reported_once(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    for split in COUNTS:
        change(root, split, lambda content: content["categories"].append({"id": 9, "name": "nothing"}))
    assert [note for note in prepared(root).warnings if "nothing" in note] == ["no training image has nothing"]


def narrowed(content: dict[str, Any]) -> None:
    """Make every second box a pixel wide, which at 48 of 80 pixels is none."""
    for annotation in content["annotations"][::2]:
        annotation["bbox"][2] = 1


def test_boxes_that_shrink_below_a_pixel_are_counted(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)
    change(root, "train", narrowed)
    source = open_source(root, "objects")
    trained = [source.objects[row] for row in source.splits["train"]]
    labels = torch.cat([each.labels for each in trained])
    lost = torch.cat([each.boxes[:, 2] - each.boxes[:, 0] == 1 for each in trained])
    by_class = ", ".join(
        f"{name}: {int((lost & (labels == label)).sum())} of {int((labels == label).sum())}"
        for label, name in enumerate(source.classes)
        if (lost & (labels == label)).any()
    )
    notes = [note for note in prepared(root).warnings if "pixel" in note]
    assert notes == [
        f"less than a pixel wide at image size 48: {int(lost.sum())} of {len(labels)} objects in train images "
        f"({by_class}), left out of training unless enlarged; --image-size 96 keeps all"
    ]
    assert [note for note in inspect(source, image_size=48).warnings if "pixel" in note] == notes
    dataset = prepare_annotated(source, DataSettings(), ImageSettings(image_size=96))
    assert not [note for note in dataset.warnings if "pixel" in note]
    assert not [note for note in inspect(source, image_size=96).warnings if "pixel" in note]
    seen = DataSpec(dataset.classes, (96, 96), (0.5,) * 3, (0.5,) * 3)
    (batch,) = target_batches(dataset.train, dataset.annotations["train"], seen, 4, torch.device("cpu"))
    assert int((batch["labels"] >= 0).sum()) == len(labels)


def test_a_training_without_objects_left_is_refused(tmp_path: Path) -> None:
    """At the largest scale of the recipe's jitter."""
    root = coco_folder(tmp_path / "set", {"train": 4, "val": 2})
    change(root, "train", lambda content: [each.update(bbox=[9, 9, 1, 9]) for each in content["annotations"]])
    raw, words = (
        read("detection/photos"),
        r"all \d+ objects of the training images are .* 32, .*; --image-size 96 keeps all",
    )
    for largest in (1.0, 2.0, 3.0):
        overrides = {"images.image_size": 32, "augment.scale_jitter.scale": [0.5, largest]}
        config = resolve("detection/photos", raw, overrides)
        expected = pytest.raises(UserError, match=words) if largest < 2.5 else nullcontext()
        with expected:
            load_dataset(open_for(config, str(root)), config, 0)


def with_pole(root: Path, count: int) -> None:
    """Draw a class one pixel wide in so many masks, at a column lost when 80 pixels become 64."""
    (root / "classes.json").write_text(
        json.dumps({"0": "ground", "1": "disk", "2": "square", "3": "pole", "9": "void"})
    )
    for path in sorted((root / "train" / "masks").glob("*"))[:count]:
        pixels = np.asarray(Image.open(path)).copy()
        pixels[:, 2] = 3
        Image.fromarray(pixels).save(path)


def test_a_class_thinner_than_a_pixel_is_reported_with_a_size(tmp_path: Path) -> None:
    root = mask_folder(tmp_path / "set", {"train": 4, "val": 2})
    with_pole(root, 3)
    source = open_source(root, "pixels")
    notes = prepare_annotated(source, DataSettings(test_fraction=0), PICTURES).warnings
    assert not [note for note in notes if "no training image has" in note]
    assert "at image size 48 no pixel is left in train masks of pole (3 images); --image-size 96 keeps all" in notes
    (thin,) = [note for note in inspect(source, image_size=48).warnings if "pixel" in note]
    assert "less than a pixel wide, of which little is left: pole in 3 of 3 images; --image-size 96 keeps all" in thin
    kept = prepare_annotated(source, DataSettings(test_fraction=0), ImageSettings(image_size=96))
    assert not [note for note in kept.warnings if "pole" in note and "train" in note]
    held = masked(kept, "train")
    assert int((held.pixels == 3).any(2).any(1).sum()) == 3
    (root / "train").rename(root / "test")
    _, _, notes = prepare_annotated_test(open_source(root, "pixels"), (*source.classes, "sky"), PICTURES)
    assert [note for note in notes if "no pixel is left in set masks of pole (3 images)" in note]
    assert [note for note in notes if "none of its 4 images shows" in note and "shows sky" in note]


def test_masks_reduced_to_one_class_are_refused_with_a_size(tmp_path: Path) -> None:
    root = mask_folder(tmp_path / "set", {"train": 3, "val": 2})
    for path in (root / "train" / "masks").glob("*"):
        Image.new("L", (80, 64)).save(path)
    with_pole(root, 3)
    words = (
        r"ground is all that is left to train on: at image size 48 no pixel is left .* pole \(3 images\); .* 96 keeps"
    )
    refused(words, prepared, root, "pixels", test_fraction=0)


@pytest.mark.parametrize(
    ("pixels", "needed"),
    [
        (np.zeros((6, 9), np.uint8), {0: 9 / 6}),
        (np.eye(7, dtype=np.uint8), {0: 7 / 6, 1: 7}),
        (np.repeat(np.eye(4, dtype=np.uint8), 3, axis=0), {0: 12 / 3, 1: 12}),
        (np.array([[1, 1, 2, 2], [2, 2, 1, 1]], np.uint8), {1: 4, 2: 4}),
    ],
)
def test_a_class_is_as_wide_as_its_longest_runs(pixels: np.ndarray, needed: dict[int, float]) -> None:
    found = needed_of_mask(pixels)
    assert {value: float(found[value]) for value in np.flatnonzero(found).tolist()} == pytest.approx(needed)


def test_validation_and_test_images_follow_data_settings(tmp_path: Path) -> None:
    plain, own = coco_folder(tmp_path / "plain", {"train": 10}), coco_folder(tmp_path / "own", COUNTS)

    def sizes(root: Path, **settings: Any) -> dict[str, int]:
        return {split: len(names) for split, names in prepared(root, **settings).split_names.items()}

    assert sizes(plain) == {"train": 7, "val": 1, "test": 2}
    assert sizes(plain, test_on="none") == {"train": 9, "val": 1}
    for settings in ({"test_on": "val"}, {"train_on": "train+val"}):
        refused("has none; leave it out", prepared, plain, **settings)
    assert sizes(own, test_on="none") == {"train": 4, "val": 2}
    assert sizes(own, test_on="val", val_fraction=0.25) == {"train": 3, "val": 1, "test": 2}
    assert sizes(own, train_on="train+val", val_fraction=0) == {"train": 6, "test": 2}


@pytest.mark.parametrize("line", ["a photo {}", "a photo {}.png", "a photo {}  1", "JPEGImages/a photo {}.png\r"])
def test_vocs_lists_may_have_spaces_and_endings(tmp_path: Path, line: str) -> None:
    root = voc(tmp_path / "set")
    for seed, split in enumerate(SPLITS):
        file = root / "Annotations" / f"{seed:03}.xml"
        file.write_text(file.read_text().replace(f"{seed:03}.png", f"a photo {seed}.png"))
        file.rename(file.with_name(f"a photo {seed}.xml"))
        (root / "JPEGImages" / f"{seed:03}.png").rename(root / "JPEGImages" / f"a photo {seed}.png")
        (root / "ImageSets" / "Main" / f"{split}.txt").unlink(missing_ok=True)
    for seed, split in enumerate(SPLITS):
        with (root / "ImageSets" / "Main" / f"{split}.txt").open("a") as opened:
            opened.write(line.format(seed) + "\n")
    source = open_source(root, "objects")
    assert {split: len(rows) for split, rows in source.splits.items()} == COUNTS
    assert source.warnings == ()


def test_what_vocs_lists_do_not_name_is_reported(tmp_path: Path) -> None:
    root = voc(tmp_path / "set")
    lists = root / "ImageSets" / "Main"
    (lists / "test.txt").write_text("006\nO07\n")
    assert open_source(root, "objects").warnings == (
        "test.txt of ImageSets/Main names 1 image without an annotation: O07",
        "1 image for training that no list of ImageSets/Main names (train.txt, val.txt, test.txt): 007",
    )
    (lists / "test.txt").write_text("006\n005\n")
    with pytest.raises(UserError, match=r"test.txt names 1 image that val.txt names, too: 005; an image is in one"):
        open_source(root, "objects")
    (lists / "test.txt").write_text("O06\nO07\n")
    refused(r"test.txt names no image of .*: O06, O07$", open_source, root, "objects")
    for name in ("O06", "O07"):  # as VOC gives the images of its test, whose annotations it keeps
        shutil.copy(root / "JPEGImages" / "000.png", root / "JPEGImages" / f"{name}.png")
    source = open_source(root, "objects")
    assert len(source.splits["train"]) == 6
    assert "not read: 2 images without an annotation: O06, O07" in source.warnings, "images are lost in silence"


def test_pixels_may_count_from_0_in_voc(tmp_path: Path) -> None:
    root = voc(tmp_path / "set")
    file = root / "Annotations" / "000.xml"
    box = "<bndbox><xmin>0</xmin><ymin>0</ymin><xmax>79</xmax><ymax>63</ymax></bndbox>"
    entry = f"<object><name>disk</name>{box}</object></annotation>"
    file.write_text(file.read_text().replace("</annotation>", entry))
    dataset = prepared(root)
    held = boxed(dataset, "train")
    assert held.objects[0].boxes[-1].tolist() == [0, 0, 80, 64]
    assert any("count from 0" in warning for warning in dataset.warnings)


@pytest.mark.parametrize("word", ["1", " 1\n", "true", "True", "0", "false", ""])
def test_vocs_difficult_objects_are_not_trained_on(tmp_path: Path, word: str) -> None:
    root = voc(tmp_path / "set")
    for file in (root / "Annotations").iterdir():
        file.write_text(file.read_text().replace("<difficult>0<", f"<difficult>{word}<"))
    difficult = torch.cat([objects.crowd for objects in open_source(root, "objects").objects])
    assert difficult.unique().tolist() == [word.strip().lower() in ("1", "true")]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: Image.new("L", (70, 64)).save(root / "train/masks/000.png"), "they must agree"),
        (
            lambda root: Image.new("L", (80, 64), 5).save(root / "train/masks/000.png"),
            "the value 5, which no class has",
        ),
        (lambda root: Image.new("RGB", (80, 64)).save(root / "train/masks/000.png"), "holds colors"),
        (lambda root: (root / "train/masks/000.png").write_bytes(b""), "cannot read mask .*000.png"),
        (
            lambda root: Image.new("1", (20_000, 10_000)).save(root / "train/masks/000.png"),
            "more than 178,956,970 pixels",
        ),
        (lambda root: (root / "train/masks/000.png").unlink(), "1 image without a mask"),
        (lambda root: (root / "train/images/000.png").unlink(), "1 mask without an image"),
        (
            lambda root: shutil.copy(root / "train/images/000.png", root / "train/images/000.jpg"),
            "several images of one mask: train/masks/000.png",
        ),
        (lambda root: (root / "classes.json").write_text('{"0": "ground"}'), "1 class of pixels only"),
        (lambda root: (root / "classes.json").write_text("[1"), "must name the classes"),
        (lambda root: (root / "classes.json").unlink(), "needs a classes.json"),
        (
            lambda root: [Image.new("L", (80, 64), 9).save(p) for p in (root / "train/masks").glob("*")],
            "there is nothing to train on",
        ),
        (
            lambda root: [
                Image.fromarray(np.where(np.asarray(Image.open(p)) % 9, 255, 0).astype(np.uint8)).save(p)
                for p in (root / "train/masks").glob("*")
            ],
            "all labeled pixels of the training images are ground, .* 255 means no class",
        ),
    ],
)
def test_invalid_masks_are_refused_in_one_line(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    root = mask_folder(tmp_path / "set", {"train": 3, "val": 2})
    spoil(root)
    refused(words, prepared, root, "pixels", test_fraction=0)


def test_a_mask_is_decoded_as_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of 3 MB, which is sound; a pipe; PostScript."""
    pixels = np.arange(9 * 7, dtype=np.uint8).reshape(9, 7)
    values = np.arange(256, dtype=np.uint8)
    path = tmp_path / "mask.png"
    Image.fromarray(pixels).save(path, icc_profile=bytes(3_000_000))
    np.testing.assert_array_equal(read_mask(path, values, (9, 7)), pixels)
    path.unlink()
    os.mkfifo(path)
    refused(r"cannot read mask .*mask.png: broken: no regular file", read_mask, path, values, (9, 7))
    path.unlink()
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 9\n%%EndComments\nshowpage\n%%EOF\n")
    monkeypatch.setattr(subprocess, "check_call", lambda *words, **options: pytest.fail("a program was started"))
    refused(r"cannot read mask .*mask.png: not an image", read_mask, path, values, (9, 7))


@pytest.mark.parametrize("name", ["x.json", "a/x.json", "annotations/instances_val.json", "classes.json"])
def test_a_pipe_named_as_a_list_is_ignored(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    picture(0)[0].save(tmp_path / "a" / "1.png")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    assert annotation_format(tmp_path)[0] is None


def low_png(pixels: np.ndarray, bits: int) -> bytes:
    """Encode a gray PNG [H, W] of 1, 2 or 4 bits a pixel, which Pillow cannot write."""
    height, width = pixels.shape
    planes = (pixels[..., None] >> np.arange(bits)[::-1] & 1).astype(np.uint8).reshape(height, -1)
    rows = b"".join(b"\0" + row.tobytes() for row in np.packbits(planes, axis=1))

    def chunk(name: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + name + content + zlib.crc32(name + content).to_bytes(4)

    header = width.to_bytes(4) + height.to_bytes(4) + bytes([bits, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_gray_masks_of_few_bits_hold_classes(tmp_path: Path, bits: int) -> None:
    pixels = np.arange(9 * 7).reshape(9, 7) % 2**bits
    (tmp_path / "mask.png").write_bytes(low_png(pixels, bits))
    values = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(read_mask(tmp_path / "mask.png", values, (9, 7)), pixels)


PALETTE = [side * factor % 256 for side in range(256) for factor in (1, 3, 7)]


def paint(root: Path, colors: list[int], name: str = "*") -> None:
    """Write the masks of `mask_folder` as PNGs with a palette, and 255 in place of 9."""
    (root / "classes.json").unlink(missing_ok=True)
    for path in root.glob(f"*/masks/{name}"):
        pixels = np.asarray(Image.open(path))
        image = Image.fromarray(np.where(pixels == 9, 255, pixels).astype(np.uint8), mode="P")
        image.putpalette(colors)
        image.save(path)


def test_palettes_name_the_values_that_occur(tmp_path: Path) -> None:
    root = mask_folder(tmp_path / "set", {"train": 6, "val": 2})
    paint(root, PALETTE)
    dataset = prepared(root, "pixels", test_fraction=0)
    assert dataset.classes == ("color #000000 (0)", "color #010307 (1)", "color #02060e (2)")
    held = masked(dataset, "train")
    assert (held.original(0)[:2, :2] == 255).all()
    paint(root, PALETTE[:3] + PALETTE[6:], "003.png")
    with pytest.raises(UserError, match=r"the value \d is #.{6} in .*000.png and #.{6} in .*003.png; name the values"):
        open_source(root, "pixels")
    paint(root, PALETTE)
    every = np.arange(64 * 80, dtype=np.uint8).reshape(64, 80)
    Image.fromarray(every).save(root / "train" / "masks" / "003.png")
    paint(root, PALETTE)
    refused("masks of 254 values; at most 250 classes", open_source, root, "pixels")


@pytest.mark.parametrize(
    ("made", "wanted", "words"),
    [(coco_folder, "pixels", "detection/photos"), (mask_folder, "objects", "segmentation/photos")],
)
def test_the_recipe_of_the_other_task_is_named(
    tmp_path: Path, made: Callable[[Path, dict[str, int]], Path], wanted: str, words: str
) -> None:
    refused(words, lambda: open_source(made(tmp_path / "set", {"train": 2}), wanted))


def test_areas_of_a_list_are_used_where_each_object_has_one(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "set", COUNTS)

    def areas() -> list[list[float] | None]:
        held = boxed(prepared(root), "train")
        return [None if each.areas is None else each.areas.tolist() for each in held.objects]

    change(root, "train", lambda content: [each.update(area=i + 0.5) for i, each in enumerate(content["annotations"])])
    listed = [area for each in areas() for area in each or []]
    assert listed == [i + 0.5 for i in range(len(listed))]
    change(root, "train", lambda content: content["annotations"][0].update(area=0))
    assert areas()[0] is None
    assert areas()[1] is not None


def test_a_fingerprint_depends_on_boxes_and_pixels(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "boxes", COUNTS)
    before, contents = prepared(root).fingerprint, prepared(root).contents
    assert prepared(root).fingerprint == before
    change(root, "val", first_box([1, 1, 12, 12]))
    assert prepared(root).fingerprint != before
    assert prepared(root).contents != contents
    masks = mask_folder(tmp_path / "masks", {"train": 3, "val": 2})
    before = prepared(masks, "pixels").fingerprint
    Image.new("L", (80, 64), 1).save(masks / "val" / "masks" / "003.png")
    assert prepared(masks, "pixels").fingerprint != before


def test_near_duplicate_scenes_are_held_out_together(tmp_path: Path) -> None:
    root = mask_folder(tmp_path / "set", {"train": 12}, size=(64, 80))
    scenes = {seed: coarse(seed) for seed in range(12)}
    for seed, pixels in scenes.items():
        for name, change in ((f"{seed:03}.png", 0), (f"{seed:03}b.png", 2)):
            Image.fromarray(pixels + np.uint8(change)).save(root / "train" / "images" / name)
            if change:
                mask = root / "train" / "masks" / name
                shutil.copy(mask.with_name(f"{seed:03}.png"), mask)
    names = prepared(root, "pixels").split_names
    parts = [{Path(name).stem[:3] for name in names[split]} for split in ("train", "val", "test")]
    assert all(parts)
    assert sum(map(len, parts)) == 12
    given = mask_folder(tmp_path / "given", {"train": 4, "test": 2}, size=(64, 80))
    for place in ("train/images/001.png", "test/images/004.png"):
        Image.fromarray(scenes[0]).save(given / place)
    dataset = prepared(given, "pixels")
    assert [Path(name).name for name in dataset.near_duplicates["test"]] == ["004.png"]
    viticulture.inspect(str(given), out=str(tmp_path / "pairs.csv"))
    pairs = (tmp_path / "pairs.csv").read_text("utf-8").splitlines()[1:]
    assert [pair.count("train") + pair.count("test") for pair in pairs] == [4]


def coarse(seed: int) -> np.ndarray:
    """Draw [64, 80, 3] smooth shapes of levels 60 to 187."""
    few = Image.fromarray(np.random.default_rng(seed).integers(0, 128, (5, 6, 3), dtype=np.uint8))
    return np.asarray(few.resize((80, 64), Image.Resampling.BICUBIC)).clip(0, 127) + np.uint8(60)
