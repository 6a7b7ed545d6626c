# SPDX-License-Identifier: Apache-2.0
"""Detectors and segmenters on five bands of 16 bits and on gray pictures: from training to the page."""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import viticulture
from dense_scenes import coco_folder, mask_folder
from refusals import refused
from resumed import check_same_weights, whole_and_resumed
from viticulture.data.annotated import prepare_annotated
from viticulture.data.data_settings import DataSettings
from viticulture.data.image_set import CachedImages
from viticulture.data.image_settings import ImageSettings
from viticulture.data.inspect import inspect
from viticulture.data.open import open_source
from viticulture.data.targets.objects import Masked
from viticulture.deploy.hub.push import contents
from viticulture.deploy.serve.predictor import Predictor
from viticulture.tasks.annotated_task import model_of
from viticulture.tasks.segmentation import SegmentationPrediction
from viticulture.tasks.segmentation_metrics import SegmentationResult
from viticulture.tasks.task import task_of
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of, dataset_of
from viticulture.training.session import Session, begin

TOP = 4000
SPLITS = {"train": 12, "val": 2, "test": 4}
BANDS = {"images.channels": 5, "images.normalize": "dataset", "images.range": [0, TOP]}
GRAY = {"images.channels": 1, "images.normalize": "dataset"}
LITTLE: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {"depth": 2},
    "student.patch_size": 4,
    "images.image_size": 32,
    "images.cache_size": 40,
    "train.batch_size": 4,
    "train.epochs": 1,
}
KINDS = {"bands": BANDS, "gray": GRAY}
OBJECTS = {**LITTLE, "student.patch_size": 8, "method.width": 8, "method.samples": 8}


def fields(root: Path) -> Path:
    """Write masks of ground, disk and square with .npy of five bands, of which only the last has them."""
    mask_folder(root, SPLITS)
    for path in root.glob("*/images/*.png"):
        mask = np.asarray(Image.open(path.parents[1] / "masks" / path.name))
        noise = np.random.default_rng(int(path.stem)).random((*mask.shape, 4))
        shown = np.choose(np.where(mask == 9, 0, mask), [0.1, 0.5, 0.9])
        np.save(path.with_suffix(".npy"), (TOP * np.dstack([noise, shown])).astype(np.uint16))
        path.unlink()
    return root


def cells(root: Path, kind: str) -> Path:
    """Write COCO's lists of gray pictures, or of .npy of five equal bands."""
    coco_folder(root, SPLITS)
    for path in root.glob("images/*.png"):
        gray = np.asarray(Image.open(path).convert("L"))
        if kind == "gray":
            Image.fromarray(gray).save(path)
        else:
            np.save(path.with_suffix(".npy"), np.repeat(gray[..., None].astype(np.uint16) * 15, 5, 2))
            path.unlink()
    for path in root.glob("annotations/*.json"):
        if kind == "bands":
            path.write_text(path.read_text("utf-8").replace(".png", ".npy"), "utf-8")
    return root


def session(data: Path, recipe: str, out: Path, **keys: Any) -> Session:
    return begin(str(data), recipe, 0, str(out), False, keys, "test")


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> viticulture.Run:
    """Train a segmenter of five bands."""
    root = tmp_path_factory.mktemp("bands")
    keys = {**LITTLE, **BANDS, "train.epochs": 40, "optim.lr": 5e-3, "augment.scale_jitter.scale": [1.0, 1.0]}
    keys["augment.color_jitter"] = None  # shades are the classes
    data = fields(root / "fields")
    return viticulture.train(str(data), "segmentation/photos", out=str(root / "run"), overrides=keys, progress=False)


@pytest.fixture(scope="module", params=list(KINDS))
def trained_detector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> viticulture.Run:
    """Train a detector of either kind for an epoch."""
    root = tmp_path_factory.mktemp(request.param)
    keys = {**OBJECTS, **KINDS[request.param]}
    data = cells(root / "cells", request.param)
    return viticulture.train(str(data), "detection/photos", out=str(root / "run"), overrides=keys, progress=False)


def test_lists_of_every_format_name_arrays_and_bands(tmp_path: Path) -> None:
    yolo, voc, table, masks = (tmp_path / name for name in ("yolo", "voc", "table", "masks"))
    bands = np.zeros((40, 60, 5), np.uint16)
    for folder in (yolo / "images", yolo / "labels", voc / "JPEGImages", voc / "Annotations", table):
        folder.mkdir(parents=True)
    for folder in (masks / "images", masks / "masks"):
        folder.mkdir(parents=True)
    for folder in (yolo / "images", voc / "JPEGImages", table):
        np.save(folder / "a.npy", bands)
    (yolo / "classes.txt").write_text("disk\nsquare\n")
    (yolo / "labels" / "a.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    box = "<bndbox><xmin>16</xmin><ymin>11</ymin><xmax>45</xmax><ymax>30</ymax></bndbox>"
    said = f"<annotation><filename>a.npy</filename><object><name>square</name>{box}</object></annotation>"
    (voc / "Annotations" / "a.xml").write_text(said)
    (table / "boxes.csv").write_text("path,label,x0,y0,x1,y1\na.npy,square,15,10,45,30\n")
    (voc / "depth").mkdir()
    np.save(voc / "depth" / "b.npy", bands[:9])
    for data in (yolo, voc, table / "boxes.csv"):
        source = open_source(data, "objects")
        assert source.objects[0].boxes.tolist() == [[15, 10, 45, 30]]
        assert source.size_of(0) == (40, 60)
        assert inspect(source).annotations.outside == 0
    Image.new("RGB", (60, 40)).save(yolo / "images" / "b.png")
    assert open_source(yolo, "objects").warnings == ("passed over 1 array next to pictures: images/a.npy",)
    Image.new("RGB", (60, 40)).save(voc / "JPEGImages" / "b.jpg")
    (voc / "Annotations" / "a.xml").unlink()
    (voc / "Annotations" / "b.xml").write_text(said.replace("a.npy", "b"))
    assert open_source(voc, "objects").names == ["JPEGImages/b.jpg"]
    if find_spec("tifffile") is None:
        return
    import_module("tifffile").imwrite(
        masks / "images" / "a.tif", bands, photometric="minisblack", planarconfig="contig"
    )
    Image.fromarray(np.eye(40, 60, dtype=np.uint8)).save(masks / "masks" / "a.png")
    (masks / "classes.json").write_text('["ground", "line"]')
    assert inspect(open_source(masks, "pixels")).counts["train"] == (1, 1)


def test_masks_follow_the_orientation_of_their_images(tmp_path: Path) -> None:
    pytest.importorskip("tifffile", reason="needs the extra tiff")
    mark = np.zeros((40, 40), np.uint8)
    mark[:12, :12] = 1
    for name in ("a", "b"):
        for folder in ("images", "masks"):
            (tmp_path / folder).mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        Image.fromarray(np.dstack([200 * mark] * 3 + [255 + 0 * mark])).save(tmp_path / f"images/{name}.tif", exif=exif)
        Image.fromarray(mark).save(tmp_path / f"masks/{name}.png")
    (tmp_path / "classes.json").write_text('["ground", "mark"]')
    for channels in (3, 4):
        settings = ImageSettings(image_size=40, cache_size=40, normalize="half", channels=channels)
        whole = DataSettings(val_fraction=0, test_fraction=0)
        dataset = prepare_annotated(open_source(tmp_path, "pixels"), whole, settings)
        masks = dataset.annotations["train"]
        assert isinstance(masks, Masked)
        assert isinstance(dataset.train, CachedImages)
        images = dataset.train.take(torch.arange(2))
        assert torch.equal(images[:, 0] > 100, masks.pixels[masks.rows] == 1)


def test_a_segmenter_is_trained_on_every_band(street: viticulture.Run) -> None:
    judged = task_of(RunFolder(street.path)).read_results()
    assert judged is not None
    assert judged.counting is not None
    assert model_of(RunFolder(street.path)).data_spec.channels == 5
    assert isinstance(judged.counting, SegmentationResult)
    (nothing_learnt,) = judged.counting.baselines.values()
    assert judged.counting.score > 1.3 * nothing_learnt  # which it cannot be by noise alone


def test_predictions_of_files_and_numbers_are_the_evaluations(street: viticulture.Run, tmp_path: Path) -> None:
    run = RunFolder(street.path)
    dataset = dataset_of(run, config_of(run))
    true = dataset.annotations["test"]
    assert isinstance(true, Masked)
    names = dataset.split_names["test"]
    paths = [street.path.parent / "fields" / name for name in names]
    told = viticulture.predict(street, paths, out=str(tmp_path / "pictures"))
    arrays = [np.load(path) for path in paths]
    again = street.predict([arrays[0], torch.from_numpy(arrays[1]).permute(2, 0, 1)])
    right = asked = 0
    for i, each in enumerate(told):
        assert isinstance(each, SegmentationPrediction)
        assert each.pixels is not None
        known = true.original(i)
        right, asked = right + int((each.pixels == known)[known < 3].sum()), asked + int((known < 3).sum())
        if i < 2:
            other = again[i]
            assert isinstance(other, SegmentationPrediction)
            assert other.pixels is not None
            np.testing.assert_array_equal(other.pixels, each.pixels)
    judged = task_of(run).read_results()
    assert judged is not None
    assert isinstance(judged.counting, SegmentationResult)
    assert right / asked == pytest.approx(judged.counting.accuracy, abs=1e-3)
    drawn = np.asarray(Image.open(sorted((tmp_path / "pictures").glob("*-classes.png"))[0]))
    np.testing.assert_array_equal(drawn, told[0].pixels)


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_interrupted_detector_resumes_exactly(kind: str, tmp_path: Path) -> None:
    data = cells(tmp_path / "cells", kind)

    def in_folder(out: Path, **more: Any) -> Session:
        return session(data, "detection/photos", out, **{**OBJECTS, **KINDS[kind], **more})

    whole, again = whole_and_resumed(in_folder, tmp_path, steps=2)
    check_same_weights(whole, again, ("last",))


def test_a_detector_reports_and_draws_images_of_these_channels(trained_detector: viticulture.Run) -> None:
    data = trained_detector.path.parent / "cells"
    images = sorted((data / "images").iterdir())[:2]
    answers = Predictor(task_of(RunFolder(trained_detector.path))).rows(
        [(path.name, path) for path in images], draw=True
    )
    assert all(row["picture"].startswith("data:image/") and not row["error"] for row in answers)
    assert viticulture.evaluate(trained_detector, str(data)) is not None
    page = (trained_detector.path / "report.html").read_text("utf-8")
    bands = model_of(RunFolder(trained_detector.path)).data_spec.channels == 5
    assert ("Images have 5 channels, the first three are displayed" in page) == bands


def test_the_card_names_channels_and_range(street: viticulture.Run) -> None:
    card = contents(RunFolder(street.path), "somebody/fields", "best")["README.md"]
    assert isinstance(card, bytes)
    assert b"| channels of an image | 5 |" in card
    assert b"| values of black and white | 0 to 4000 |" in card
    assert b"jpg" not in card


def test_pictures_of_other_channels_are_refused_in_one_line(trained_detector: viticulture.Run, tmp_path: Path) -> None:
    np.save(tmp_path / "four.npy", np.zeros((40, 50, 4), np.uint8))
    refused(r"four.npy: holds 4 channels, and images.channels is [15]", trained_detector.predict, tmp_path / "four.npy")


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="needs the extra onnx"
)
def test_the_exported_file_takes_these_channels(
    street: viticulture.Run, trained_detector: viticulture.Run, tmp_path: Path
) -> None:
    viticulture.export(street, tmp_path / "street.onnx")
    file: Any = import_module("onnxruntime").InferenceSession(str(tmp_path / "street.onnx"))
    about = file.get_modelmeta().custom_metadata_map
    assert (json.loads(about["input"])[:9], json.loads(about["range"])) == ("[H, W, 5]", [0, TOP])
    path = sorted((street.path.parent / "fields" / "test" / "images").iterdir())[0]
    levels = np.rint(np.load(path).clip(0, TOP) * (255 / TOP)).astype(np.uint8)
    (classes,) = file.run(None, {"image": levels})
    (told,) = street.predict(path)
    assert isinstance(told, SegmentationPrediction)
    assert told.pixels is not None
    assert (classes == told.pixels).mean() > 0.98  # levels that are rounded otherwise
    viticulture.export(trained_detector, tmp_path / "cells.onnx")
