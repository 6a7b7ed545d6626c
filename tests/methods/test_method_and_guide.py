# SPDX-License-Identifier: Apache-2.0
"""Every method with every guide: it trains, or is refused in one line before anything is written."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pairs import GUIDES, METHODS, REFUSED, TASK, Data, optimizer_of, pair, recipe, step
from refusals import refused
from viticulture.config.schema import GUIDES as GUIDE_NAMES
from viticulture.config.schema import METHODS as METHOD_NAMES
from viticulture.config.schema import find_method
from viticulture.guides.guide import Batch, Capability, Guide
from viticulture.methods.mae import MAE
from viticulture.methods.method import Method, Setup, TrainingLength
from viticulture.methods.supervised import Supervised
from viticulture.models.students import create_student
from viticulture.models.taps import Readings
from viticulture.models.weights.files import note
from viticulture.optim import Optim, Schedule
from viticulture.training.assemble import assemble
from viticulture.training.feed import training_loader
from viticulture.training.module import TrainingModule
from viticulture.training.session import begin


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("method", METHODS)
def test_a_pair_trains_or_is_refused_in_one_line(method: str, guide: str, data: Data, teachers: Path) -> None:
    if words := REFUSED.get((method, guide)):
        refused(words, pair, method, guide, "vit", data, teachers)
        return
    session = pair(method, guide, "vit", data, teachers)
    student, batch = session.method.student, training_loader(session).batch(0, 0)
    before = {name: weight.clone() for name, weight in student.named_parameters()}
    assert step(session, batch, optimizer_of(session)).isfinite()
    assert any(not torch.equal(weight, before[name]) for name, weight in student.named_parameters())
    assert all(value.isfinite() for value in session.method.eval().all_metrics(batch).values())


def test_the_table_covers_every_method_and_guide() -> None:
    dense = {name for name in METHOD_NAMES if find_method(name).batch_spec.dense}
    assert dense == {"detection", "segmentation"}
    assert not any(find_method(name).provides for name in dense)
    assert find_method("multilabel").provides == frozenset(Capability) - {Capability.LABELS}
    assert find_method("regression").provides == frozenset({Capability.FEATURES, Capability.PATCHES})
    assert not find_method("linear_probe").provides
    assert set(METHODS) == set(METHOD_NAMES) - dense - {"multilabel", "regression", "linear_probe", "sgd_probe"}
    assert {name for name, _ in GUIDES.values() if name} == set(GUIDE_NAMES)
    for name in METHODS:
        method = find_method(name)
        assert issubclass(method, Method)
        assert (Capability.LABELS in method.provides) == method.batch_spec.labels


def test_a_pair_is_refused_before_data_is_opened(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    overrides = {"method.name": "mae", "guides.logits.teacher": "nowhere"}
    refused(
        "guide logits requires scores of the classes, which method mae does not provide",
        begin,
        "digits",
        "default/digits",
        0,
        str(tmp_path / "run"),
        False,
        overrides,
        "test",
    )
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()


class Watching(Guide):
    """Counts its input images and has no loss."""

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        return {}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        return {"images": torch.tensor(float(len(batch["image"])))}


def test_guides_report_validation_metrics_under_every_method() -> None:
    data_spec = replace(TASK, classes=())
    student = create_student("vit_nano", data_spec, 4, {"embed_dim": 16, "depth": 1, "num_heads": 2})
    method = MAE(Setup(student, data_spec, {"watching": Watching()}), decoder_width=32)
    found = method.all_metrics({"image": torch.randn(3, 3, 16, 16)})
    assert found.keys() == {"loss", "watching_images"}
    assert found["watching_images"] == 3


@pytest.mark.parametrize("positions", ["fixed", "learned"])
def test_a_warning_names_positions_that_are_not_loaded(positions: str, data: Data, teachers: Path) -> None:
    values = recipe("mae", "none", teachers).values
    student = {
        **values["student"],
        "init": str(teachers / "vit"),
        "options": {"embed_dim": 16, "depth": 2, "num_heads": 2},
    }
    changed = {**values, "student": student, "method": {**values["method"], "positions": positions}}
    method, warnings = assemble(replace(recipe("mae", "none", teachers), values=changed), data.bare, seed=0)
    told = [warning for warning in warnings if "not loaded: pos_embed, which method mae sets itself" in warning]
    assert len(told) == (positions == "fixed")
    assert method.student.pos_embed.requires_grad == (positions == "learned")


@pytest.mark.parametrize(("method", "guide"), [("supervised", "one head"), ("distillation", "feature_distillation")])
def test_a_warning_names_a_teacher_of_another_value_range(
    method: str, guide: str, data: Data, teachers: Path, tmp_path: Path
) -> None:
    shutil.copytree(teachers, tmp_path / "there")
    for folder in (tmp_path / "there").iterdir():
        note(folder, {"range": [0, 4095]})
    words = "was trained with images.range [0, 4095] and gets images of null"
    for place, told in ((teachers, 0), (tmp_path / "there", 1)):
        assert sum(words in warning for warning in pair(method, guide, "vit", data, place).warnings) == told


@pytest.mark.parametrize(("name", "last"), [("resnet10t", True), ("vit_nano", False)])
def test_images_of_a_cnn_are_channels_last(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    student = create_student(name, TASK, 4 if name == "vit_nano" else None)
    module = TrainingModule(Supervised(Setup(student, TASK, {})))
    shown: list[Tensor] = []
    student.register_forward_pre_hook(lambda _, arguments: shown.append(arguments[0]))
    rates = SimpleNamespace(param_groups=[{"lr": 0.1, "initial_lr": 0.1}])
    trainer = SimpleNamespace(accumulate_grad_batches=1, current_epoch=0, optimizers=[rates])
    monkeypatch.setattr(TrainingModule, "trainer", trainer)
    for logger in ("log", "log_dict"):
        monkeypatch.setattr(module, logger, lambda *_, **__: None)
    images = torch.randn(4, 3, *TASK.image_size)
    for number in range(2):
        batch = {"image": images.clone(), "label": torch.tensor([0, 1, 0, 1])}
        module.training_step(batch, number)
        module.validation_step({**batch, "image": images.clone()}, number)
    assert [image.is_contiguous(memory_format=torch.channels_last) for image in shown] == 4 * [last]
    assert all(torch.equal(image, images) for image in shown)


@pytest.mark.parametrize(
    ("student", "optim"),
    [
        ("botnet14n", Optim("muon", lr=1e-3, kernel_lr=1e-2)),
        ("hybrid_nano", Optim("muon", lr=1e-3, kernel_lr=1e-2)),
        ("vit_nano", Optim(lr=1e-3, layer_decay=0.5)),
    ],
    ids=["kernels last", "kernels in the middle", "layers"],
)
def test_the_logged_rate_is_the_recipes(student: str, optim: Optim, monkeypatch: pytest.MonkeyPatch) -> None:
    method = Supervised(Setup(create_student(student, TASK, 4), TASK, {}, optim, Schedule("constant", warmup_epochs=1)))
    method.length = TrainingLength(steps_per_epoch=4, epochs=2)
    module = TrainingModule(method)
    made: Any = module.configure_optimizers()
    rates: list[float] = []
    trainer = SimpleNamespace(accumulate_grad_batches=1, current_epoch=0, optimizers=[made["optimizer"]])
    monkeypatch.setattr(TrainingModule, "trainer", trainer)
    monkeypatch.setattr(module, "log_dict", lambda *_, **__: None)
    batch = {"image": torch.randn(4, 3, *TASK.image_size), "label": torch.tensor([0, 1, 0, 1])}
    for number in range(6):
        module.on_train_batch_start(batch, number)
        rates.append(module.rate)
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    assert rates == pytest.approx([0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])
