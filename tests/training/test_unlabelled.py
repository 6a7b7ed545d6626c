# SPDX-License-Identifier: Apache-2.0
"""Runs without labels: data without classes, saved files, resuming, and starts of later runs."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image

import viticulture
from label_free import SMALL, start
from plain_loop import check_plain_loop
from refusals import refused
from resumed import check_same_weights, whole_and_resumed
from trained import weights
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.dataset import prepare
from viticulture.data.transforms.crop import PaddedCrop
from viticulture.data.transforms.erase import Erase
from viticulture.data.transforms.view import Augment
from viticulture.models.weights.files import load
from viticulture.training.session import begin


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
    assert any("the head starts anew" in warning for warning in session.warnings)
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
