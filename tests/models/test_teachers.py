# SPDX-License-Identifier: Apache-2.0
"""A teacher is hidden and frozen, and gets images as in its own training."""

import copy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models._registry import _model_pretrained_cfgs
from torch import Tensor, nn

from refusals import refused
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.teachers.frozen import Adapted, Frozen
from viticulture.models.teachers.outputs import load_teacher
from viticulture.models.weights.files import save

NAMES = ("a", "b", "c")


def data_spec(names: tuple[str, ...] = NAMES, side: int = 16, mean: float = 0.5, std: float = 0.25) -> DataSpec:
    return DataSpec(names, (side, side), (mean, mean / 2, mean / 4), (std, std / 2, std / 4))


def run_folder(folder: Path, of: DataSpec, name: str = "vit_nano") -> tuple[str, nn.Module]:
    torch.manual_seed(1)
    net = create_student(name, of, 4, {"embed_dim": 16, "depth": 1, "num_heads": 2}).eval()
    save(net, folder / "weights/best", of)
    return str(folder), net


def brightness(side: int = 16) -> Tensor:
    """Images in [0, 1], before any normalization."""
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(3))


def shown(images: Tensor, to: DataSpec) -> Tensor:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (to.mean, to.std))
    return (images - mean) / std


def test_a_frozen_network_is_hidden_and_moves_along() -> None:
    host = nn.Module()
    host.student, host.teacher = nn.Linear(3, 2), Frozen(nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)))
    for hidden in (host.teacher, host):
        assert not any("teacher" in name or name.startswith("net") for name, _ in hidden.named_parameters())
        assert not any(name.startswith(("teacher.", "net")) for name, _ in hidden.named_modules())
    assert set(host.state_dict()) == {"student.weight", "student.bias"}
    host.load_state_dict(host.state_dict(), strict=True)

    before = copy.deepcopy(host.teacher.net.state_dict())
    host.train()
    host.requires_grad_(True)
    images = torch.randn(4, 3, 2, 2, requires_grad=True)
    assert not host.teacher(images).requires_grad
    torch.testing.assert_close(dict(host.teacher.net.state_dict()), dict(before), rtol=0, atol=0)

    twin = copy.deepcopy(host)
    twin.double()
    assert twin.teacher.net[0].weight.dtype == twin.teacher.net[1].running_mean.dtype == torch.float64
    assert host.teacher.net[0].weight.dtype == torch.float32
    assert host.to("meta").teacher.net[0].weight.device.type == "meta"


def test_a_teacher_gets_images_in_its_normalization(tmp_path: Path) -> None:
    ours, theirs = data_spec(), data_spec(mean=0.4, std=0.2)
    source, net = run_folder(tmp_path, theirs)
    picture = brightness()
    torch.testing.assert_close(load_teacher(source, ours)(shown(picture, ours)), net(shown(picture, theirs)))
    assert torch.equal(load_teacher(source, theirs)(shown(picture, theirs)), net(shown(picture, theirs)))


def test_a_teacher_gets_images_of_its_size(tmp_path: Path) -> None:
    theirs = data_spec(side=32)
    source, net = run_folder(tmp_path, theirs)
    images = shown(brightness(), theirs)
    larger = F.interpolate(images, (32, 32), mode="bicubic", antialias=True)
    torch.testing.assert_close(load_teacher(source, data_spec())(images), net(larger))
    refused("cannot read images of 24x24 pixels", lambda: load_teacher(source, data_spec(), 24))


def test_a_distilled_teacher_predicts_by_the_mean_of_its_heads(tmp_path: Path) -> None:
    source, net = run_folder(tmp_path, data_spec(), "deit_tiny_distilled_patch16_224")
    teacher = load_teacher(source, data_spec()).train()
    images = shown(brightness(), data_spec())
    torch.testing.assert_close(teacher(images), torch.stack(net.train()(images)).mean(0))


def test_a_teacher_comes_from_timm_or_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = timm.create_model("resnet10t", num_classes=3).eval()
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file(net.state_dict(), file)
    described: Any = _model_pretrained_cfgs["resnet10t.c3_in1k"]
    monkeypatch.setattr(described, "file", str(file))
    monkeypatch.setattr(described, "num_classes", 3)
    picture = brightness(176)
    imagenet = DataSpec(NAMES, (176, 176), tuple(described.mean), tuple(described.std))
    for source in ("resnet10t.c3_in1k", f"resnet10t={file}"):
        teacher = load_teacher(source, data_spec(side=176))
        torch.testing.assert_close(
            teacher(shown(picture, data_spec())), net(shown(picture, imagenet)), rtol=1e-4, atol=1e-4
        )
    small = load_teacher(f"resnet10t={file}", data_spec(side=32), 48)
    assert small(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("vit_tiny_patch16_224", "as of vit_tiny_patch16_224: mean 0.5, deviation 0.5\n"),
        ("vit_tiny_patch16_224.dino", ": mean 0.485, 0.456, 0.406, deviation 0.229, 0.224, 0.225\n"),
        ("vit_nano", "as of vit_nano: mean 0.485, 0.456, 0.406, deviation 0.229, 0.224, 0.225\n"),
    ],
)
def test_the_assumed_normalization_of_a_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, taken: str
) -> None:
    named = name.replace("tiny", "small") if name.endswith("dino") else name
    small = timm.create_model(named.partition(".")[0], num_classes=3, embed_dim=16, depth=1, num_heads=2)
    small.pretrained_cfg = vars(timm.get_pretrained_cfg(named)) if named != "vit_nano" else small.pretrained_cfg
    safetensors.torch.save_file(small.state_dict(), tmp_path / "w.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr("timm.create_model", lambda *_, **__: small)
        load_teacher(f"{named}={tmp_path / 'w.safetensors'}", data_spec(side=32 if name == "vit_nano" else 224))
    told = capsys.readouterr().err
    assert "w.safetensors does not say how images are normalized; as of" in told
    assert taken in told
    load_teacher(run_folder(tmp_path / "run", data_spec())[0], data_spec())
    assert not capsys.readouterr().err


def test_a_file_may_hold_a_student_of_the_package(tmp_path: Path) -> None:
    net = timm.create_model("vit_nano", num_classes=3).eval()
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file(net.state_dict(), file)
    imagenet = DataSpec(NAMES, (32, 32), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    teacher = load_teacher(f"vit_nano={file}", data_spec(side=32))
    picture = brightness(32)
    torch.testing.assert_close(
        teacher(shown(picture, data_spec())), net(shown(picture, imagenet)), rtol=1e-4, atol=1e-4
    )


def test_a_teacher_of_other_classes_is_refused(tmp_path: Path) -> None:
    source, _ = run_folder(tmp_path, data_spec())
    for names, words in (
        (("a", "b"), "the student's 2 classes, .* has 3"),
        (("a", "c", "b"), "in their order, but class 1 is 'b' in .* and 'c' here"),
        (("x", "y", "z"), "class 0 is 'a'"),
    ):
        with pytest.raises(UserError, match=words):
            load_teacher(source, data_spec(names))
    with pytest.raises(UserError, match=r"unknown architecture 'resnet10x'"):
        load_teacher(f"resnet10x={tmp_path}/w.pth", data_spec())
    refused("there is no weights file", lambda: load_teacher(f"resnet10t={tmp_path}/w.pth", data_spec()))
    safetensors.torch.save_file({"fc.weight": torch.zeros(3, 2)}, tmp_path / "w.safetensors")
    with pytest.raises(
        UserError, match=r"does not fit resnet10t: the file lacks conv1.0.weight, .*; of other shapes are fc"
    ):
        load_teacher(f"resnet10t={tmp_path / 'w.safetensors'}", data_spec())
    with pytest.raises(UserError, match="does not contain the name of its network; add it: ARCHITECTURE="):
        load_teacher(str(tmp_path / "w.safetensors"), data_spec())


def test_normalization_is_one_affine_map_and_keeps_the_dtype() -> None:
    adapted = Frozen(Adapted(nn.Flatten(), data_spec(), data_spec(mean=0.1))).to(torch.bfloat16)
    assert adapted(torch.zeros(1, 3, 16, 16, dtype=torch.bfloat16)).dtype == torch.bfloat16
