# SPDX-License-Identifier: Apache-2.0
"""Runs of detectors and segmenters: resumed, evaluated, predicted, drawn; and their errors."""

import dataclasses
import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image

import viticulture
from dense_scenes import coco_folder, mask_folder
from plain_loop import check_plain_loop
from refusals import refused
from resumed import check_same_weights, whole_and_resumed
from trained import weights
from viticulture.api.lists import resolved
from viticulture.budget.prepare import opened
from viticulture.config.load import load_config
from viticulture.data.targets.objects import UNLABELED
from viticulture.errors import UserError
from viticulture.methods.method import Setup
from viticulture.methods.segmentation import Segmentation
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.tasks.detection import DetectionPrediction
from viticulture.tasks.detection_metrics import DetectionResult
from viticulture.tasks.results import Results
from viticulture.tasks.segmentation import SegmentationPrediction
from viticulture.tasks.task import task_of
from viticulture.training.module import TrainingModule
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import Session, begin
from viticulture.training.watching import BestCheckpoint

SMALL: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {"depth": 2, "drop_path_rate": 0.2},
    "images.image_size": 32,
    "images.cache_size": 48,
    "train.epochs": 2,
    "train.batch_size": 3,
    "train.ema_decay": 0.9,
    "train.clip_norm": 1.0,
}
OBJECTS = {**SMALL, "student.patch_size": 8, "method.width": 8, "method.samples": 8}
SPLITS = {"train": 6, "val": 2, "test": 2}


def session(kind: str, root: Path, out: str, **more: Any) -> Session:
    if kind == "detection":
        data, settings = root / "boxes", OBJECTS
    else:
        data, settings = root / "masks", {**SMALL, "student.patch_size": 8}
    if not data.exists():
        (coco_folder if kind == "detection" else mask_folder)(data, SPLITS)
    return begin(str(data), f"{kind}/photos", 0, str(root / out), False, {**settings, **more}, "test")


@pytest.mark.parametrize("kind", ["detection", pytest.param("segmentation", marks=pytest.mark.slow)])
def test_an_interrupted_run_resumes_exactly(tmp_path: Path, kind: str) -> None:
    """In the middle of an epoch with a checkpoint after every step: last, best and EMA weights."""

    def in_folder(out: Path, **more: Any) -> Session:
        return session(kind, out.parent, out.name, **more)

    whole, again = whole_and_resumed(in_folder, tmp_path, steps=3)
    check_same_weights(whole, again, ("last", "best", "ema"))


@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_the_trainer_is_a_plain_loop(tmp_path: Path, kind: str) -> None:
    plain = {"train.validate": "none", "train.ema_decay": None, "train.epochs": 1}
    check_plain_loop(*(session(kind, tmp_path, name, **plain) for name in ("trainer", "plain")))


def test_a_detectors_run_from_training_to_pictures(tmp_path: Path) -> None:
    data = coco_folder(tmp_path / "boxes", SPLITS)
    settings = {**OBJECTS, "train.epochs": 1}
    run = viticulture.train(str(data), "detection/photos", out=str(tmp_path / "run"), overrides=settings)
    judged = task_of(run.folder).read_results()
    assert judged is not None
    assert judged.counting is not None
    assert judged.counts == "best/test"
    assert {"best/test", "best/val", "last/val", "ema/val"} == judged.results.keys()
    assert viticulture.evaluate(str(run.path)) == judged
    assert run.results == judged
    counting = run.metrics[run.metrics.counts].iloc[0]
    assert (counting.split, counting.ap) == ("test", judged.counting.score)
    assert "AP " in run._repr_html_()
    (row,) = viticulture.runs(str(tmp_path)).rows
    assert str(row[5]).startswith("AP ")
    with pytest.raises(UserError, match=r"so it has no accuracy"):
        _ = run.accuracy
    refused("got int first; give a folder's path", viticulture.evaluate, str(run.path), [1, 2])
    refused("finds objects, and --compare-with shows top-1", viticulture.report, run, compare_with=run)
    (tmp_path / "broken.png").write_bytes(b"none")
    shown = [str(data / "images" / "000.png"), str(tmp_path / "broken.png")]
    found = viticulture.predict(str(run.path), shown, out=str(tmp_path / "boxes.json"))
    assert isinstance(found[0], DetectionPrediction)
    assert found[1].error
    assert found[0].objects is not None
    rows = json.loads((tmp_path / "boxes.json").read_text())
    assert len(rows) == len(found[0].objects.labels) > 0
    assert {row["category_id"] for row in rows} <= {1, 2}
    boxes = np.array([row["bbox"] for row in rows])
    assert (boxes[:, 0] + boxes[:, 2]).max() > 48  # the canvas ends at 32, the image at 80
    assert (boxes[:, 1] + boxes[:, 3]).max() <= 64.01
    listed = data / "annotations" / "instances_test.json"
    content = json.loads(listed.read_text())
    found = viticulture.predict(str(run.path), str(listed), out=str(tmp_path / "listed.json"))
    rows = json.loads((tmp_path / "listed.json").read_text())
    assert [Path(each.name).name for each in found] == [image["file_name"] for image in content["images"]]
    assert {row["image_id"] for row in rows} == {image["id"] for image in content["images"]}
    assert {(row["category_id"], row["category"]) for row in rows} <= {(3, "disk"), (7, "square")}
    with Image.open(data / "images" / content["images"][0]["file_name"]) as lying:
        lying.rotate(90, expand=True).save(tmp_path / "lying.png")
    lying_list = {**content, "images": [{**content["images"][0], "file_name": "lying.png"}], "annotations": []}
    (tmp_path / "lying.json").write_text(json.dumps(lying_list))
    with pytest.raises(UserError, match=r"lying\.png is 64x80 pixels upright, and its list says 80x64"):
        viticulture.predict(str(run.path), str(tmp_path / "lying.json"), out=str(tmp_path / "listed.json"))
    del content["annotations"]  # as of images that a server judges
    listed.write_text(json.dumps(content))
    assert len(viticulture.predict(str(run.path), str(listed))) == len(found)
    del content["categories"][0]
    listed.write_text(json.dumps(content))
    refused("no number for disk", viticulture.predict, str(run.path), str(listed))
    viticulture.predict(str(run.path), shown[:1], out=str(tmp_path / "pictures"))
    with Image.open(tmp_path / "pictures" / "0001-000.png") as picture:
        assert picture.size == (80, 64)
    assert (run.path / "report.html").exists()


def test_a_segmenters_run_from_training_to_pictures(tmp_path: Path) -> None:
    data = mask_folder(tmp_path / "masks", SPLITS)
    settings = {**SMALL, "student.patch_size": 8, "train.epochs": 1}
    run = viticulture.train(str(data), "segmentation/photos", out=str(tmp_path / "run"), overrides=settings)
    assert viticulture.evaluate(str(run.path)) == task_of(run.folder).read_results()
    (row,) = viticulture.runs(str(tmp_path)).rows
    assert str(row[5]).startswith("mIoU ")
    assert run.student()(torch.zeros(1, 3, 32, 32)).shape == (1, 3, 32, 32)
    (found,) = viticulture.predict(str(run.path), [str(data / "test/images/009.png")], out=str(tmp_path / "pictures"))
    assert isinstance(found, SegmentationPrediction)
    assert found.pixels is not None
    with Image.open(tmp_path / "pictures" / "0001-009-classes.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), found.pixels)
    assert found.pixels.shape == (64, 80)
    with pytest.raises(UserError, match="name a folder"):
        viticulture.predict(str(run.path), [str(data / "test/images")], out=str(tmp_path / "boxes.json"))
    refused(
        "--int8 measures its cost in top-1 accuracy",
        viticulture.export,
        str(run.path),
        str(tmp_path / "a.onnx"),
        int8=True,
    )


@pytest.fixture(scope="module")
def trained_pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train a detector and a segmenter for an epoch, on boxes/ and masks/."""
    root = tmp_path_factory.mktemp("trained_pair")
    for kind in ("detection", "segmentation"):
        begun = session(kind, root, kind, **{"train.epochs": 1})
        fit(begun)
        begun.run.update(status="finished")
    return {kind: root / kind for kind in ("detection", "segmentation")}


@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_other_data_are_evaluated_as_the_runs_data(
    trained_pair: dict[str, Path], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(trained_pair[kind])
    other = tmp_path / "other"
    if kind == "detection":
        coco_folder(other, {"test": 2}, first=8)
        file = other / "annotations" / "instances_test.json"
        content = json.loads(file.read_text())
        for each in content["annotations"]:
            each["category_id"] = {3: 9, 7: 5}[each["category_id"]]
        content["categories"] = [{"id": 5, "name": "square"}, {"id": 9, "name": "disk"}]
        file.write_text(json.dumps(content))
    else:
        mask_folder(other, {"test": 2}, first=8)
        for file in (other / "test" / "masks").iterdir():
            mask = np.asarray(Image.open(file))
            Image.fromarray(np.array([7, 5, 2, 0, 0, 0, 0, 0, 0, 9], np.uint8)[mask]).save(file)
        (other / "classes.json").write_text('{"2": "square", "5": "disk", "7": "ground", "9": "void"}')
    own = viticulture.evaluate(str(run.path))
    before = {file.name: file.stat().st_mtime_ns for file in run.path.iterdir()}
    judged = viticulture.evaluate(str(run.path), str(other))
    assert before == {file.name: file.stat().st_mtime_ns for file in run.path.iterdir()}
    assert judged.counts == f"best/{other}"
    expected, found = dataclasses.asdict(own.results["best/test"]), dataclasses.asdict(judged.results[judged.counts])
    baselines = found.pop("baselines")
    assert expected.pop("baselines") != baselines
    assert found == expected
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("mae/photos", {"student.options": {"embed_dim": 96, "depth": 2, "num_heads": 3}}),
        ("mae/moco-cifar100", {"student.name": "vit_nano", "student.options": {"depth": 2}, "train.clip_norm": None}),
    ],
)
def test_a_detector_starts_from_self_supervised_weights(
    tmp_path: Path, recipe: str, more: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    data = coco_folder(tmp_path / "boxes", SPLITS)
    settings = {"images.image_size": 32, "images.cache_size": 48, "student.patch_size": 8, "train.epochs": 1}
    settings |= {"train.batch_size": 3, "schedule.warmup_epochs": 0, **more}
    first = begin(str(data), recipe, 0, str(tmp_path / "first"), False, settings, "test")
    fit(first)
    first.run.unlock()
    assert not first.dataset.annotations
    assert not first.dataset.classes
    same = {key: value for key, value in more.items() if key.startswith("student.")}
    if recipe == "mae/photos":
        same |= {"student.name": "mae_tiny"}
        same["student.options"] = {**same["student.options"], "class_token": False, "global_pool": "avg"}
    started = session("detection", tmp_path, "second", **same, **{"student.init": str(tmp_path / "first")})
    assert started.dataset.split_names == first.dataset.split_names
    assert {len(names) for names in first.dataset.split_names.values()} == {6, 2}
    assert any("tensors loaded" in line for line in started.method.loaded), started.method.loaded
    trained_pair = weights(first.run.path)
    ours = started.method.student.state_dict()
    blocks = [name for name in trained_pair if name.startswith("blocks.")]
    assert len(blocks) >= 20
    for name in [*blocks, "patch_embed.proj.weight"]:
        assert torch.equal(ours[f"backbone.student.{name}"], trained_pair[name]), name
    fit(started)
    started.run.unlock()
    third = session("segmentation", tmp_path, "third", **same, **{"student.init": str(tmp_path / "second")})
    best = weights(started.run.path, "best")
    for name in [f"backbone.student.{name}" for name in blocks]:
        assert torch.equal(third.method.student.state_dict()[name], best[name]), name
    assert any("there but not used: " in line for line in third.method.loaded), third.method.loaded


@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_training_images_in_other_data_are_reported(
    trained_pair: dict[str, Path], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make = coco_folder if kind == "detection" else mask_folder
    viticulture.evaluate(str(trained_pair[kind]), str(make(tmp_path / "other", {"train": 4, "test": 4}, first=0)))
    assert "this run was trained on" in capsys.readouterr().err


def test_other_data_that_do_not_fit_are_reported(
    trained_pair: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = str(trained_pair["detection"]), coco_folder(tmp_path / "other", {"test": 2})
    refused("holds boxes of objects", viticulture.evaluate, str(trained_pair["segmentation"]), str(other))
    file = other / "annotations" / "instances_test.json"
    known = json.loads(file.read_text())
    stranger = {**known, "categories": [{"id": 3, "name": "disk"}, {"id": 7, "name": "ring"}]}
    file.write_text(json.dumps(stranger))
    refused(
        r"1 class that this network was not trained on: ring; it was trained on disk, square$",
        viticulture.evaluate,
        run,
        str(other),
    )
    file.write_text(json.dumps({**known, "annotations": []}))
    refused("no object in any of its 2 images", viticulture.evaluate, run, str(other))
    disks = [each for each in known["annotations"] if each["category_id"] == 3]
    assert disks
    file.write_text(json.dumps({**known, "annotations": disks, "categories": known["categories"][:1]}))
    judged = viticulture.evaluate(run, str(other))
    assert isinstance(judged, Results)
    result = judged.counting
    assert isinstance(result, DetectionResult)
    assert [each.objects for each in result.boxes.per_class] == [len(disks), 0]
    assert result.boxes.per_class[1].ap is None
    assert result.boxes.ap == result.boxes.per_class[0].ap
    assert "none of its 2 images shows square, which this network was trained on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "more", "words"),
    [
        (
            "default/photos",
            {},
            "holds boxes of objects and no classes of images; train on it with --recipe detection/photos",
        ),
        ("segmentation/photos", {}, "train on it with --recipe detection/photos"),
        ("detection/photos", {"augment.mix.mixup": 0.8}, "cannot follow augment.mix"),
        ("detection/photos", {"augment.scale_jitter": None}, "the recipe has none"),
        ("detection/photos", {"guides.logits.teacher": "vit_tiny_patch16_224"}, "take guides.logits out"),
        ("detection/photos", {"data.per_class": 3}, "set data.fraction"),
        ("detection/photos", {"student.patch_size": 2}, "patches of 4, 8, 16 or 32"),
        ("detection/photos", {"method.window": 2}, "need a plain ViT"),
        ("detection/photos", {"method.width": 2}, "method.width must be at least 8"),
        ("detection/photos", {"optim.layer_decay": 0.9}, "optim.layer_decay needs a classifier"),
        ("detection/photos", {"images.eval_crop": 0.9}, "images.eval_crop 0.9 cuts edges off"),
    ],
)
def test_invalid_settings_are_refused_before_a_folder_is_made(
    tmp_path: Path, recipe: str, more: dict[str, Any], words: str
) -> None:
    data = coco_folder(tmp_path / "boxes", SPLITS)
    refused(words, begin, str(data), recipe, 0, str(tmp_path / "run"), False, {"images.image_size": 32, **more}, "test")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["folder", "list", "masks"])
def test_the_recipe_follows_the_data_and_is_reported(tmp_path: Path, kind: str) -> None:
    data = mask_folder(tmp_path / "data", SPLITS) if kind == "masks" else coco_folder(tmp_path / "data", SPLITS)
    (data / "tools").mkdir()
    (data / "tools" / "convert.py").write_text("")
    if kind == "list":
        images = [path.relative_to(data) for path in data.rglob("*.png")]
        data = data / "boxes.csv"
        rows = "".join(f"{image},disk,0,0,{side},3\n" for image in images for side in (3, 5))
        data.write_text(f"path,label,x0,y0,x1,y1\n{rows}")
    recipe = "segmentation/photos" if kind == "masks" else "detection/photos"
    overrides = {"images.image_size": 32, "student.name": "vit_nano", "student.patch_size": 4, "train.batch_size": 2}
    session = begin(str(data), "default", 0, str(tmp_path / "run"), False, overrides, "test")
    session.run.unlock()
    assert session.config.name == recipe
    assert session.warnings[0].endswith(f"in place of classes, so {recipe} is the recipe")
    _, base, default = opened(str(data), "default", overrides)
    assert (base.name, default, base.warnings[0]) == (recipe, recipe, session.warnings[0])
    assert f"name: {recipe.partition('/')[0]}" in resolved(str(data))
    with pytest.raises(UserError, match=f"train on it with --recipe {recipe}"):
        begin(str(data), "default/photos", 0, str(tmp_path / "other"), False, {}, "test")


class Batches:
    """A loader of images with classes of their pixels, with these batch sizes."""

    def __init__(self, images: torch.Tensor, classes: torch.Tensor, sizes: list[int]) -> None:
        self.parts = list(zip(images.split(sizes), classes.split(sizes), strict=True))

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter([{"image": image, "classes": classes} for image, classes in self.parts])

    def __len__(self) -> int:
        return len(self.parts)


def test_images_without_labeled_pixels_do_not_count_in_validation(tmp_path: Path) -> None:
    """Of seven images three have labels; the logged mIoU is their mean."""
    data_spec = DataSpec(("ground", "disk"), (16, 16), (0.5,) * 3, (0.25,) * 3)
    torch.manual_seed(0)
    student = create_student("vit_nano", dataclasses.replace(data_spec, classes=()), 8, {"depth": 1})
    method = Segmentation(Setup(student, data_spec, {})).eval()
    torch.nn.init.normal_(method.student.predict.weight)
    images, classes = torch.randn(7, 3, 16, 16), torch.randint(0, 2, (7, 16, 16))
    classes[1:5] = UNLABELED
    module = TrainingModule(method)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", enable_checkpointing=False, default_root_dir=tmp_path, **quiet)
    (told,) = trainer.validate(module, Batches(images, classes, [2, 3, 2]), verbose=False)
    labeled = torch.tensor([0, 5, 6])
    expected = method.metrics({"image": images[labeled], "classes": classes[labeled]})
    assert told["val/iou"] == pytest.approx(float(expected["iou"]))
    assert told["val/accuracy"] == pytest.approx(float(expected["accuracy"]))
    (nothing,) = trainer.validate(module, Batches(images[1:5], classes[1:5], [2, 2]), verbose=False)
    assert all(map(isnan, nothing.values()))
    run: Any = SimpleNamespace(check_there=lambda: None, weights=lambda name: tmp_path / name)
    watch = BestCheckpoint(run, {}, 4)
    watch.on_validation_epoch_end(trainer, module)
    assert (watch.best, (tmp_path / "best").is_dir()) == (0.0, True)


@pytest.mark.parametrize("name", ["detection/photos", "segmentation/photos"])
def test_the_shipped_recipes_resolve(name: str) -> None:
    assert load_config(name).train.epochs > 0


@pytest.mark.slow
def test_eight_images_are_memorized(tmp_path: Path) -> None:
    """AP50 over 0.9 on eight drawn images."""
    data = coco_folder(tmp_path / "boxes", {"train": 8, "val": 1}, size=(64, 64))
    settings = {**OBJECTS, "student.options": {}, "student.name": "dhvt_nano", "images.image_size": 64}
    settings |= {"images.cache_size": 64, "method.width": 32, "method.samples": 32, "train.epochs": 150}
    settings |= {"train.batch_size": 4, "train.validate": "none", "train.ema_decay": None, "data.test_fraction": 0.0}
    settings |= {"augment.scale_jitter.scale": [1.0, 1.0], "optim.lr": 2e-3}
    whole = begin(str(data), "detection/photos", 0, str(tmp_path / "run"), False, settings, "test")
    fit(whole)
    from viticulture.tasks.annotated_task import image_sizes, model_of
    from viticulture.tasks.detection import find
    from viticulture.tasks.detection_metrics import evaluate_detections

    true = whole.dataset.annotations["train"]
    found = list(find(model_of(whole.run), whole.dataset.train))
    result = evaluate_detections(found, true, whole.dataset.classes, image_sizes(whole.dataset.train))  # type: ignore[arg-type]
    assert (result.boxes.ap50 or 0) > 0.9
