# SPDX-License-Identifier: Apache-2.0
"""Runs without labels: data without classes, saved files, resuming, and starts of later runs; runs with labels that
learn from unlabeled images as well."""

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import viticulture
import viticulture.training.run
from label_free import SMALL, start
from plain_loop import check_plain_loop
from refusals import refused
from resumed import check_same_weights, whole_and_resumed
from trained import weights
from viticulture.config.start import load_started
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import prepare
from viticulture.data.open import open_source, open_unlabeled
from viticulture.data.transforms.crop import PaddedCrop
from viticulture.data.transforms.erase import Erase
from viticulture.data.transforms.view import Augment
from viticulture.losses import partial_cross_entropy
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import load, save
from viticulture.training.run_inputs import config_of, dataset_of
from viticulture.training.session import Session, begin


def test_unlabeled_images_pretrain_a_student_for_fine_tuning(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (24, 12, 16, 3), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / f"{number}.png")
    sizes = {"images.image_size": 8, "train.batch_size": 8}
    options = {**SMALL, **sizes, "data.per_class": None, "train.validate": "none"}
    run = viticulture.train(str(folder), "default/digits", out=str(tmp_path / "run"), overrides=options)
    assert run.results == {}
    assert "labels unused" in run.folder.path.joinpath("report.html").read_text()
    assert re.search(r"Loss</dt>", (run.path / "report.html").read_text())
    saved = weights(run.path)
    assert not [name for name in saved if "decoder" in name or name.startswith("head")]
    beside = partial(viticulture.report, run, compare_with=run)
    for verb in (run.evaluate, lambda: run.predict([str(folder)]), lambda: run.accuracy, beside):
        refused("was trained without labels", verb)

    bare = timm.create_model(f"local-dir:{run.folder.weights('last')}", pretrained=True, num_classes=3)
    assert torch.equal(bare.blocks[1].attn.qkv.weight, saved["blocks.1.attn.qkv.weight"])
    assert bare.head.weight.shape == (3, 16)
    overrides = {**SMALL, "method.name": "supervised", "student.init": str(run.path), "train.epochs": 1}
    session = begin("digits", "default/digits", 0, str(tmp_path / "tuned"), False, overrides, "test")
    assert torch.equal(session.method.student.state_dict()["patch_embed.proj.weight"], saved["patch_embed.proj.weight"])
    assert any("the head is new" in line for line in session.method.loaded)
    assert session.method.student.pos_embed.requires_grad


def test_labels_are_ignored(tmp_path: Path) -> None:
    session = start(tmp_path / "session")
    assert session.dataset.classes == session.method.data_spec.classes == ()
    assert session.method.batch_spec.noise == 16
    run = viticulture.train("digits", "default/digits", out=str(tmp_path / "run"), overrides=SMALL)
    assert run.results == {}
    student, data_spec, config = load(run.folder.weights("last"))
    assert data_spec.classes == ()
    assert config["num_classes"] == 0
    assert student(torch.zeros(2, 3, 8, 8)).shape == (2, 16)


def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    whole, again = whole_and_resumed(start, tmp_path)
    check_same_weights(whole, again, ("last",))


def test_the_trainer_is_a_plain_loop(tmp_path: Path) -> None:
    options = {"student.options": {"depth": 2}}
    check_plain_loop(start(tmp_path / "run", **options), start(tmp_path / "other", **options))


def test_noise_is_one_table_for_all_processes(tmp_path: Path) -> None:
    """Two processes get the rows of what one gets; augmentation is the same with and without noise."""
    images = prepare("digits").train

    def loader(noise: int, rank: int = 0, world: int = 1) -> Loader:
        augment = Augment([Erase(1.0), PaddedCrop(2)], (8, 8), (0.5,) * 3, (0.5,) * 3, 0, noise)
        return Loader(images, [augment], 8, 3, shard=Shard(rank, world))

    one = loader(16).batch(1, 2)
    for rank in range(2):
        part = loader(16, rank, 2).batch(1, 2)
        assert torch.equal(part["noise"], one["noise"][rank::2])
        assert torch.equal(part["image"], one["image"][rank::2])
    assert one["noise"].shape == (8, 16)
    assert not torch.equal(one["noise"], loader(16).batch(0, 2)["noise"])
    assert "noise" not in loader(0).batch(1, 2)
    with_noise, without = loader(16), loader(0)
    draw = with_noise.draw(1, 2)
    first = without.augments[0].columns
    assert torch.equal(one["noise"], draw.u[0][:, first:].float())
    same = replace(draw, u=[draw.u[0][:, :first]])
    assert torch.equal(one["image"], next(without._finished([same], without._staged(same, [], slice(None))))["image"])


def test_mixing_labels_needs_labels(tmp_path: Path) -> None:
    refused("mix mixes labels, and method mae uses none", start, tmp_path / "run", **{"augment.mix.mixup": 0.8})
    refused(r"mae takes one view.*augment2", start, tmp_path / "run", **{"augment2.padded_crop.padding": 1})
    assert not (tmp_path / "run").exists()


TINY = {
    "student.name": "vit_nano",
    "student.options": SMALL["student.options"],
    "student.patch_size": 8,
    "images.image_size": 16,
    "images.eval_views": "one",
    "train.epochs": 2,
}


def _pictures(folder: Path, count: int, seed: int) -> None:
    folder.mkdir(parents=True)
    for i, pixels in enumerate(np.random.default_rng(seed).integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{i:02}.png")


def _with_more(root: Path) -> tuple[str, str]:
    """Write two classes of 20 images and a folder of 30 others; return both folders."""
    _pictures(root / "photos" / "a", 20, 0)
    _pictures(root / "photos" / "b", 20, 1)
    _pictures(root / "more" / "inner", 30, 2)
    return str(root / "photos"), str(root / "more")


def test_unlabeled_images_are_a_split_without_copies_of_held_out_images(tmp_path: Path) -> None:
    photos, more = _with_more(tmp_path)
    alone = prepare(photos)
    for name in [*alone.split_names["test"][:2], alone.split_names["train"][0]]:
        shutil.copy(Path(photos, name), Path(more, Path(name).parent.name + Path(name).name))
    both = open_source(photos).with_unlabeled(open_unlabeled(more))
    dataset = prepare(both)
    assert {split: names for split, names in dataset.split_names.items() if split != "unlabeled"} == alone.split_names
    assert len(dataset.split_names["unlabeled"]) == 31
    assert any("left out 2 unlabeled images for being near-duplicates" in line for line in dataset.warnings)
    assert dataset.trained_on.records.labels.tolist() == [*dataset.train.records.labels.tolist(), *[-1] * 31]
    first = dataset.trained_on.original(len(dataset.train))
    assert np.array_equal(first, np.asarray(Image.open(Path(more, dataset.split_names["unlabeled"][0][10:]))))
    assert prepare(both, remembered=dataset.split_names).split_names == dataset.split_names
    assert prepare(photos, remembered=dataset.split_names).split_names == alone.split_names
    streamed = prepare(
        both, image_settings=replace(dataset.image_settings, stream=True), remembered=dataset.split_names
    )
    assert np.array_equal(streamed.trained_on.original(len(dataset.train)), first)

    for settings in (DataSettings(near_duplicates="ignore"), DataSettings()):
        others = prepare(both, settings, replace(dataset.image_settings, stream=settings.near_duplicates != "ignore"))
        assert len(others.split_names["unlabeled"]) == 31
        assert any("left out 2 unlabeled images for being the files" in line for line in others.warnings)
        assert any("near-duplicates are not searched" in line for line in others.warnings)

    test = tmp_path / "test"
    test.mkdir()
    for number, name in enumerate(alone.split_names["test"]):
        shutil.copy(Path(photos, name), test / f"{number}.png")
    refused(
        "are, or resemble, validation or test", prepare, open_source(photos).with_unlabeled(open_unlabeled(str(test)))
    )
    _pictures(Path(photos, "unlabeled"), 2, 3)
    refused("unlabeled/00.png of photos", open_source(photos).with_unlabeled, open_unlabeled(more))


def test_partly_labeled_batches_add_up_to_the_mean_over_labels() -> None:
    logits, label = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, -1, -1, 3] * 3)
    whole = torch.nn.functional.cross_entropy(logits[label >= 0], label[label >= 0], label_smoothing=0.1)
    parts = [
        partial_cross_entropy(*part, 0.5, 0.1)
        for part in zip(logits.split([5, 3, 4]), label.split([5, 3, 4]), strict=True)
    ]
    weighted = sum(part * size / 12 for part, size in zip(parts, (5, 3, 4), strict=True))
    torch.testing.assert_close(weighted, whole)
    assert partial_cross_entropy(logits, torch.full((12,), -1), 0.5) == 0


def test_a_student_learns_from_unlabeled_images_under_a_teacher(tmp_path: Path) -> None:
    photos, more = _with_more(tmp_path)
    torch.manual_seed(0)
    spec = DataSpec(("a", "b"), (16, 16), (0.5,) * 3, (0.25,) * 3)
    save(create_student("resnet10t", spec), tmp_path / "teacher", spec)
    keys = {
        **TINY,
        "train.batch_size": 20,
        "data.unlabeled": more,
        "augment.mix": None,
    }
    taught: dict[str, Any] = {
        "guides.logits.teacher": str(tmp_path / "teacher"),
        "guides.logits.kind": "soft",
        "engine.replay_gb": 1,
        "train.fixed_views": 1,
    }

    def begun(out: Path, **more_keys: Any) -> Session:
        return begin(photos, "default/photos", 0, str(out), False, {**keys, **taught, **more_keys}, "test")

    refused("needs a teacher", begin, photos, "default/photos", 0, str(tmp_path / "no"), False, keys, "test")
    refused("augment.mix needs a label", begun, tmp_path / "no", **{"augment.mix": {"cutmix": 1.0}})
    refused("data.class_weights needs a label", begun, tmp_path / "no", **{"data.class_weights": "balanced"})
    refused("method mae|for method", begun, tmp_path / "no", **{"method.name": "sgd_probe", "guides.logits": None})
    assert not (tmp_path / "no").exists()

    whole, again = whole_and_resumed(begun, tmp_path / "runs", steps=3)
    assert whole.plan.steps_per_epoch == 2, "of 29 images with labels and 30 without"
    check_same_weights(whole, again, ("last",))
    run = viticulture.train(photos, "default/photos", out=str(tmp_path / "run"), overrides={**keys, **taught})
    assert run.folder.read("run.json")["data"]["images"] == {"train": 29, "test": 8, "val": 3, "unlabeled": 30}
    assert repr(run.evaluate()) == repr(run.results), "which may hold NaN"
    shutil.rmtree(more)
    assert run.predict([f"{photos}/a/00.png"])
    assert repr(run.evaluate()) == repr(run.results)
    run.evaluate(photos)
    refused(f"data.unlabeled: there is no {more}", dataset_of, run.folder, config_of(run.folder), unlabeled=True)
    (Path(photos) / "a/00.png").write_bytes((Path(photos) / "b/00.png").read_bytes())
    refused("are not those", run.evaluate)


def test_a_teacher_of_other_classes_gets_a_classifier_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, more = _with_more(tmp_path)
    spec = DataSpec(("x", "y", "z"), (16, 16), (0.5,) * 3, (0.25,) * 3)
    torch.manual_seed(0)
    save(create_student("resnet10t", spec), tmp_path / "net", spec)
    keys = {
        **TINY,
        "train.fixed_views": 1,
        "data.unlabeled": more,
    }
    net, out = str(tmp_path / "net"), tmp_path / "run"
    run = viticulture.train(photos, out=str(out), overrides=keys, teacher=net)
    teacher = viticulture.Run(tmp_path / "run-teacher")
    assert teacher.folder.read("run.json")["student"]["name"] == "resnet10t"
    assert [*teacher.classes] == ["a", "b"]
    assert teacher.folder.image_names == run.folder.image_names
    settings = run.folder.read("run.json")["settings"]
    assert settings["guides"] == {"logits": {**settings["guides"]["logits"], "teacher": str(teacher.path)}}
    assert run.folder.read("run.json")["teacher_logits"]["computed"] == 3, "steps of the first epoch"
    again = viticulture.train(photos, out=str(tmp_path / "again"), overrides=keys, teacher=str(teacher.path))
    refused("again", viticulture.train, photos, out=str(tmp_path / "again"), overrides=keys, teacher=net)
    assert not (tmp_path / "again-teacher").exists()
    assert repr(again.results) == repr(run.results)
    refused("start from that network: --init", load_started, "detection/photos", {"teacher": net})
    refused("separated by commas, got 'x,'", load_started, "default/photos", {"teacher": "x,"})
    refused("name one", load_started, "distill/photos", {"teacher": f"{net},{net}"})
    two = viticulture.train(photos, out=str(tmp_path / "both"), overrides=keys, teacher=f"{teacher.path},{net}")
    guides = two.folder.read("run.json")["settings"]["guides"]
    assert [entry["teacher"] for entry in guides.values()] == [str(teacher.path), str(tmp_path / "both-teacher2")]
    assert sum(two.folder.read("run.json")["teacher_logits"].values()) == 12, "of two teachers in 6 steps"
    several = {**keys, "engine.devices": 2}
    refused(
        "in several processes", viticulture.train, photos, out=str(tmp_path / "two"), overrides=several, teacher=net
    )

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(viticulture.training.run, "fit", stop)
    with pytest.raises(KeyboardInterrupt, match=r"resume (.*)` and then the same command with `--teacher \1"):
        viticulture.train(photos, out=str(tmp_path / "stopped"), overrides=keys, teacher=net)
    refused("add --teacher .*stopped-teacher", viticulture.train, photos, out=f"{tmp_path}/stopped", teacher=net)
