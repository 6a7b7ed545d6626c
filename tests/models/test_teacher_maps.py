# SPDX-License-Identifier: Apache-2.0
"""Activation maps of a CNN are its stages' outputs, resized to the student's patches (AAL, arXiv:2211.13852)."""

import copy
import weakref
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refusals import refused
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.teachers.feature_maps import Stages, load_maps, resized, stage_names
from viticulture.models.weights.files import save

TASK = DataSpec(("a", "b"), (64, 64), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
THEIRS = DataSpec(("x", "y", "z"), (32, 32), (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
GRIDS = [(8, 8), (3, 5)]


def teacher_file(folder: Path) -> tuple[str, nn.Module]:
    """Save timm's smallest EfficientNet with random weights and batch statistics."""
    torch.manual_seed(0)
    net = timm.create_model("test_efficientnet", num_classes=3)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    safetensors.torch.save_file(net.state_dict(), folder / "w.safetensors")
    return f"test_efficientnet={folder / 'w.safetensors'}", net.eval()


SLOW = pytest.mark.slow


def images() -> Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "stages", "channels"),
    [
        ("efficientnet_b3", [f"blocks.{i}" for i in range(7)], [24, 32, 48, 96, 136, 232, 384]),
        ("resnet34", [f"layer{i}" for i in range(1, 5)], [64, 128, 256, 512]),
        pytest.param("resnetv2_50", [f"stages.{i}" for i in range(4)], [256, 512, 1024, 2048], marks=SLOW),
        ("regnety_006", ["s1", "s2", "s3", "s4"], [48, 112, 256, 608]),
        pytest.param(
            "densenet121",
            [f"features.denseblock{i}" for i in range(1, 5)],
            [256, 512, 1024, 1024],
            marks=pytest.mark.slow,
        ),
        ("convnext_atto", [f"stages.{i}" for i in range(4)], [40, 80, 160, 320]),
    ],
)
def test_stages_are_those_of_the_architecture(name: str, stages: list[str], channels: list[int]) -> None:
    """952 and 960 maps."""
    with torch.device("meta"):
        net = timm.create_model(name).eval()
    assert stage_names(net) == stages
    with torch.no_grad():
        maps = Stages(net, stages, [(14, 14)])(torch.zeros(1, 3, 64, 64, device="meta"))
    assert [tuple(found.shape) for found in maps[14, 14]] == [(1, count, 14, 14) for count in channels]


def test_maps_are_the_stages_outputs(tmp_path: Path) -> None:
    """Stage by stage by hand, in the teacher's normalization, then torch's bicubic resize, up and down."""
    source, net = teacher_file(tmp_path)
    teacher = load_maps(source, TASK, GRIDS)
    host = nn.ModuleDict({"teacher": teacher.frozen}).train()
    assert not host.state_dict()
    assert not list(host.parameters())
    mean, std = (torch.tensor(net.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    x = net.bn1(net.conv_stem((images() * 0.5 + 0.5 - mean) / std))
    for _ in range(2):
        found = teacher.frozen(images().requires_grad_())
    for number, stage in enumerate(net.blocks):
        x = stage(x)
        assert teacher.channels[f"blocks.{number}"] == x.shape[1]
        for grid in GRIDS:
            expected = F.interpolate(x, size=grid, mode="bicubic", align_corners=False, antialias=False)
            torch.testing.assert_close(found[grid][number], expected, rtol=1e-4, atol=1e-5)
            assert not found[grid][number].requires_grad
    assert len(teacher.channels) == len(net.blocks)


def test_a_batch_in_chunks_has_the_maps_of_the_whole(tmp_path: Path) -> None:
    source, _ = teacher_file(tmp_path)
    teacher = load_maps(source, TASK, [(4, 4)])
    many = torch.randn(11, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    found = teacher.frozen(many)[4, 4]
    for number in (0, 5, 10):
        alone = teacher.frozen(many[number : number + 1])[4, 4]
        torch.testing.assert_close([maps[number : number + 1] for maps in found], alone, rtol=1e-4, atol=1e-5)


def test_any_module_may_be_named_and_a_run_may_be_a_teacher(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = create_student("resnet10t", THEIRS).eval()
    save(net, tmp_path / "weights/best", THEIRS)
    teacher = load_maps(str(tmp_path), TASK, [(4, 4), (8, 8)], stages=["layer2.0.bn2"])
    caught: list[Tensor] = []
    net.layer2[0].bn2.register_forward_hook(
        lambda _m, _i, output: caught.append(output.clone())
    )  # it is added to in place
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (THEIRS.mean, THEIRS.std))
    net((images() * 0.5 + 0.5 - mean) / std)
    found = teacher.frozen(images())
    torch.testing.assert_close(found[4, 4], [resized(caught[0], (4, 4))], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[8, 8], caught, rtol=1e-4, atol=1e-5)  # its own size, but no view of it


def test_the_teacher_gets_the_students_images_or_those_of_a_given_size(tmp_path: Path) -> None:
    source, _ = teacher_file(tmp_path)
    seen: list[tuple[int, ...]] = []
    for size in (None, 32, 96):
        teacher = load_maps(source, TASK, [(4, 4)], size)
        teacher.frozen.net.net.net.conv_stem.register_forward_pre_hook(lambda _m, given: seen.append(given[0].shape))
        teacher.frozen(images())
    assert list(dict.fromkeys(shape[-1] for shape in seen)) == [64, 32, 96]


def test_only_resized_maps_outlive_the_pass(tmp_path: Path) -> None:
    source, _ = teacher_file(tmp_path)
    teacher = load_maps(source, TASK, GRIDS)
    outputs: list[weakref.ref[Tensor]] = []
    net = teacher.frozen.net.net.net
    for stage in net.blocks:
        stage.register_forward_hook(lambda _m, _i, output: outputs.append(weakref.ref(output)))
    found = teacher.frozen(images())
    assert len(outputs) >= len(net.blocks)
    assert not [output for output in outputs if output() is not None]
    for (rows, columns), maps in found.items():
        for one in maps:
            assert one.untyped_storage().nbytes() == 4 * one.shape[0] * one.shape[1] * rows * columns
    assert all(not module._forward_hooks or module in net.blocks for module in net.modules())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_teacher_on_a_gpu_runs_in_half_precision(tmp_path: Path) -> None:
    source, _ = teacher_file(tmp_path)
    teacher = load_maps(source, TASK, [(4, 4)])
    expected = teacher.frozen(images())[4, 4]
    kinds = []
    moved = copy.deepcopy(teacher.frozen).cuda()
    moved.net.net.net.blocks[1].register_forward_hook(lambda _m, _i, output: kinds.append(output.dtype))
    found = moved(images().cuda())[4, 4]
    assert kinds == [torch.bfloat16]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0.1, atol=0.05 * theirs.abs().max().item())


def test_teachers_without_maps_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vit = create_student("vit_nano", THEIRS, 4, {"depth": 1})
    save(vit, tmp_path / "vit/weights/best", THEIRS)
    refused(r"maps \[B, C, H, W\], but blocks.0 does not", load_maps, str(tmp_path / "vit"), TASK, GRIDS, 32)
    source, _ = teacher_file(tmp_path)
    refused(r"unknown module .* 'blocks.11'; did you mean", load_maps, source, TASK, GRIDS, stages=["blocks.11"])
    refused("does not name its stages", stage_names, nn.Linear(1, 1))
