# SPDX-License-Identifier: Apache-2.0
"""Runs of detectors and segmenters: resumed as uninterrupted, judged, asked, drawn; and what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image
from safetensors.torch import load_file

import viticulture
from dense_scenes import coco_folder, mask_folder
from viticulture.errors import UserError
from viticulture.evaluation.dense.predict import DensePrediction
from viticulture.evaluation.dense.results import read_dense
from viticulture.training.recipe import read, resolve
from viticulture.training.run import fit, training_loader
from viticulture.training.rundir import RunDir
from viticulture.training.session import Session, begin, reopen

SMALL: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {"depth": 2, "drop_path_rate": 0.2},
    "images.image_size": 32,
    "images.store_size": 48,
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


class Stop(Callback):
    """Ends a training in the middle of its second epoch, as a kill would."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["detection", pytest.param("segmentation", marks=pytest.mark.slow)])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path, kind: str) -> None:
    """Bit for bit, stopped in the middle of an epoch with a checkpoint after every step: last, best and averaged
    weights. Fails if the sampler of proposals, drop-path or the loader of objects goes on from another place."""
    patience = {"engine.checkpoint_minutes": 1e-9}
    fit(session(kind, tmp_path, "whole", **patience))
    broken = session(kind, tmp_path, "broken", **patience)
    with pytest.raises(KeyboardInterrupt):
        fit(broken, Stop())
    broken.run.unlock()
    fit(reopen(str(tmp_path / "broken")))
    for which in ("last", "best", "ema"):
        ours, theirs = (
            load_file(RunDir(tmp_path / name).weights(which) / "model.safetensors") for name in ("whole", "broken")
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), which


@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_the_trainer_is_a_plain_loop(tmp_path: Path, kind: str) -> None:
    """Ten lines of torch end with the Trainer's weights. Fails if a term is left out, counted twice or scaled."""
    ours = session(kind, tmp_path, "trainer", **{"train.watch": "none", "train.ema_decay": None, "train.epochs": 1})
    theirs = session(kind, tmp_path, "plain", **{"train.watch": "none", "train.ema_decay": None, "train.epochs": 1})
    method, loader = theirs.method.train(), training_loader(theirs)
    state = torch.get_rng_state()
    fit(ours)
    torch.set_rng_state(state)
    optimizer = method.optim.build(method.optim.groups(method.student))
    schedule = method.schedule.attach(optimizer, len(loader), 1, method.optim.lr)
    for batch in loader:
        optimizer.zero_grad()
        torch.stack(list(method.losses(batch).values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(method.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    for name, value in ours.method.student.state_dict().items():
        torch.testing.assert_close(value, method.student.state_dict()[name], rtol=0, atol=0)


def test_a_detectors_run_from_training_to_pictures(tmp_path: Path) -> None:
    """train, then what it keeps, evaluate, predict into COCO's results and pictures, in Python as in the shell. Fails
    if boxes come out in pixels of the canvas, an unreadable file stops the rest, or results differ the second time."""
    data = coco_folder(tmp_path / "boxes", SPLITS)
    settings = {**OBJECTS, "train.epochs": 1}
    run = viticulture.train(str(data), "detection/photos", out=str(tmp_path / "run"), overrides=settings)
    judged = read_dense(run.folder)
    assert judged is not None
    assert judged.counts == "best/test"
    assert {"best/val", "last/test", "ema/val"} < judged.results.keys()
    assert viticulture.evaluate(str(run.path)) == judged
    (tmp_path / "broken.png").write_bytes(b"none")
    shown = [str(data / "images" / "000.png"), str(tmp_path / "broken.png")]
    found = viticulture.predict(str(run.path), shown, out=str(tmp_path / "boxes.json"))
    assert isinstance(found[0], DensePrediction)
    assert found[1].error
    assert found[0].objects is not None
    rows = json.loads((tmp_path / "boxes.json").read_text())
    assert len(rows) == len(found[0].objects.labels) > 0
    assert {row["category_id"] for row in rows} <= {1, 2}
    boxes = np.array([row["bbox"] for row in rows])
    assert (boxes[:, 0] + boxes[:, 2]).max() > 48  # the canvas ends at 32, the image at 80
    assert (boxes[:, 1] + boxes[:, 3]).max() <= 64.01
    viticulture.predict(str(run.path), shown[:1], out=str(tmp_path / "pictures"))
    with Image.open(tmp_path / "pictures" / "0001-000.png") as picture:
        assert picture.size == (80, 64)
    assert (run.path / "report.html").exists()


def test_a_segmenters_run_from_training_to_pictures(tmp_path: Path) -> None:
    """The same for classes of pixels: the indexed picture holds the classes that were told, in the image's size."""
    data = mask_folder(tmp_path / "masks", SPLITS)
    settings = {**SMALL, "student.patch_size": 8, "train.epochs": 1}
    run = viticulture.train(str(data), "segmentation/photos", out=str(tmp_path / "run"), overrides=settings)
    assert viticulture.evaluate(str(run.path)) == read_dense(run.folder)
    (found,) = viticulture.predict(str(run.path), [str(data / "test/images/009.png")], out=str(tmp_path / "pictures"))
    assert isinstance(found, DensePrediction)
    assert found.pixels is not None
    with Image.open(tmp_path / "pictures" / "0001-009-classes.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), found.pixels)
    assert found.pixels.shape == (64, 80)
    with pytest.raises(UserError, match="name a folder"):
        viticulture.predict(str(run.path), [str(data / "test/images")], out=str(tmp_path / "boxes.json"))
    with pytest.raises(UserError, match="only classifiers are exported"):
        viticulture.export(str(run.path), str(tmp_path / "a.onnx"))


@pytest.mark.parametrize(
    ("recipe", "more", "words"),
    [
        ("default/photos", {}, "holds boxes of objects and no classes of images; learn by --recipe detection/photos"),
        ("segmentation/photos", {}, "learn by --recipe detection/photos"),
        ("detection/photos", {"augment.mix.mixup": 0.8}, "cannot follow augment.mix"),
        ("detection/photos", {"augment.scale_jitter": None}, "the recipe has none"),
        ("detection/photos", {"guides.logits.teacher": "vit_tiny_patch16_224"}, "take guides.logits out"),
        ("detection/photos", {"data.per_class": 3}, "give data.fraction"),
        ("detection/photos", {"student.patch_size": 2}, "patches of 4, 8, 16 or 32"),
        ("detection/photos", {"method.window": 2}, "need a plain ViT"),
        ("detection/photos", {"method.width": 2}, "method.width must be at least 8"),
        ("detection/photos", {"optim.layer_decay": 0.9}, "optim.layer_decay needs a classifier"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    tmp_path: Path, recipe: str, more: dict[str, Any], words: str
) -> None:
    """In a line, with the way out."""
    data = coco_folder(tmp_path / "boxes", SPLITS)
    with pytest.raises(UserError, match=words) as told:
        begin(str(data), recipe, 0, str(tmp_path / "run"), False, {"images.image_size": 32, **more}, "test")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["detection/photos", "segmentation/photos"])
def test_the_shipped_recipes_resolve(name: str) -> None:
    assert resolve(name, read(name)).section("train").epochs > 0


@pytest.mark.slow
def test_eight_images_are_learnt_by_heart(tmp_path: Path) -> None:
    """A detector learns eight drawn images until it finds their objects again (AP50 over 0.9). Fails if boxes, classes
    or scores are off anywhere between the list and the result."""
    data = coco_folder(tmp_path / "boxes", {"train": 8, "val": 1}, size=(64, 64))
    settings = {**OBJECTS, "student.options": {}, "student.name": "dhvt_nano", "images.image_size": 64}
    settings |= {"images.store_size": 64, "method.width": 32, "method.samples": 32, "train.epochs": 150}
    settings |= {"train.batch_size": 4, "train.watch": "none", "train.ema_decay": None, "data.test_fraction": 0.0}
    settings |= {"augment.scale_jitter.scale": [1.0, 1.0], "optim.lr": 2e-3}
    whole = begin(str(data), "detection/photos", 0, str(tmp_path / "run"), False, settings, "test")
    fit(whole)
    from viticulture.evaluation.dense.asked import find, looker_of
    from viticulture.evaluation.dense.judge import image_sizes
    from viticulture.evaluation.dense.objects import evaluate_objects

    true = whole.dataset.annotations["train"]
    found = list(find(looker_of(whole.run), whole.dataset.train))
    result = evaluate_objects(found, true, whole.dataset.classes, image_sizes(whole.dataset.train))  # type: ignore[arg-type]
    assert (result.boxes.ap50 or 0) > 0.9
