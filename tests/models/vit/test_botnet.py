# SPDX-License-Identifier: Apache-2.0
"""A bottleneck transformer: halvings down to the patch, then attention; residual branches start at zero."""

import re

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers.bottleneck_attn import BottleneckAttn
from torch import Tensor, nn

from networks import train
from refusals import refused
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student, fitting_patch, is_hybrid_student, takes_patch_size
from viticulture.optim import Optim

NAME = "botnet14t"
SMALL = {"embed_dim": 64, "num_heads": 2}


def data_spec(pixels: int, height: int | None = None) -> DataSpec:
    return DataSpec(("a", "b"), (height or pixels, pixels), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.mark.parametrize(
    ("patch", "widths", "pooled"),
    [(2, [32], 0), (4, [32], 0), (8, [16, 32], 0), (16, [8, 16, 32], 1), (32, [8, 16, 32, 64], 1)],
)
def test_stages_halve_the_image_until_a_pixel_is_a_patch(patch: int, widths: list[int], pooled: int) -> None:
    student = create_student(NAME, data_spec(4 * patch), patch, {**SMALL, "embed_dim": 2 * widths[-1]}).eval()
    assert student.forward_features(torch.zeros(2, 3, 4 * patch, 4 * patch)).shape == (2, 2 * widths[-1], 4, 4)
    assert [stage[0].conv2_kxk.conv.out_channels for stage in student.stages[:-1]] == widths
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in student.modules()) == pooled


def test_with_patches_of_16_it_is_resnet_10_up_to_its_last_stage() -> None:
    ours, theirs = create_student(NAME, data_spec(64), 16).eval(), timm.create_model("resnet10t").eval()
    for value in ours.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5) if value.ndim == 1 else value.normal_(std=0.05)
    state = {_in_resnet(name): v for name, v in ours.state_dict().items() if not name.startswith(("stages.3", "head"))}
    assert theirs.load_state_dict(state, strict=False).unexpected_keys == []
    maps = images = torch.randn(2, 3, 64, 64)
    for part in ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3"):
        maps = theirs.get_submodule(part)(maps)
    torch.testing.assert_close(ours.stages[:3](ours.stem(images)), maps)


def _in_resnet(name: str) -> str:
    """Name a weight of the network as in timm's ResNet-10."""
    for pattern, theirs in (
        (r"stem\.conv1\.conv", "conv1.0"), (r"stem\.conv1\.bn", "conv1.1"),
        (r"stem\.conv2\.conv", "conv1.3"), (r"stem\.conv2\.bn", "conv1.4"),
        (r"stem\.conv3\.conv", "conv1.6"), (r"stem\.conv3\.bn", "bn1"),
        (r"stages\.0", "layer1"), (r"stages\.1", "layer2"), (r"stages\.2", "layer3"),
        (r"shortcut\.conv\.conv", "downsample.1"), (r"shortcut\.conv\.bn", "downsample.2"),
        (r"conv(\d)_kxk\.conv", r"conv\1"), (r"conv(\d)_kxk\.bn", r"bn\1"),
    ):  # fmt: skip
        name = re.sub(pattern, theirs, name)
    return name


def test_branches_start_at_zero_and_then_train() -> None:
    torch.manual_seed(0)
    student = create_student(NAME, data_spec(32), 8, SMALL).train()
    last = student.stages[-1][-1]
    x = torch.randn(2, 64, 4, 4)
    assert torch.equal(last(x), x.relu())
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 0, 1])
    train(optimizer, lambda: F.cross_entropy(student(images), labels), steps=3)
    assert [name for name, p in student.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_every_bottleneck_attends_between_all_patches() -> None:
    student = create_student(NAME, data_spec(64), 8, {**SMALL, "depth": 3}).eval()
    assert sum(isinstance(layer, BottleneckAttn) for layer in student.modules()) == 3
    for block in student.stages[-1]:
        nn.init.ones_(block.conv3_1x1.bn.weight)
        x = torch.rand(1, block.conv1_1x1.conv.in_channels, 8, 8, requires_grad=True)
        slope: Tensor = torch.autograd.grad(block(x)[0, :, 0, 0].square().sum(), x)[0]
        assert (slope[0].abs().sum(0) > 0).all()


def test_it_takes_its_patch_from_the_data_and_oblong_images() -> None:
    assert is_hybrid_student(NAME)
    assert takes_patch_size(NAME)
    assert [fitting_patch(NAME, (side, side)) for side in (32, 64, 224)] == [8, 16, 32]
    student = create_student(NAME, data_spec(32, height=64), 8, SMALL)
    assert student.forward_features(torch.zeros(2, 3, 64, 32)).shape == (2, 64, 8, 4)


def test_muon_excludes_stem_head_and_positions() -> None:
    student = create_student(NAME, data_spec(64), 16)
    groups = Optim("muon", 1e-3, 0.05).groups(student)
    names = [name for group in groups if group["use_muon"] for name, _ in group["params"]]
    left = {name for name, p in student.named_parameters() if p.ndim > 1} - set(names)
    positions = {name for name, _ in student.named_parameters() if name.endswith("_rel")}
    assert left - positions == {"stem.conv1.conv.weight", "head.fc.weight"}
    assert positions <= left
    assert len(names) == 17


@pytest.mark.parametrize(
    ("pixels", "patch", "options", "words"),
    [
        (30, 6, {}, "patch_size must be a power of two of at least 2, got 6"),
        (36, 8, {}, "image size must be a multiple of the patch size, got 36x36 and 8"),
        (64, 16, {"embed_dim": 36}, "embed_dim must be a multiple of patch_size / 2, got 36 and 16"),
    ],
)
def test_invalid_settings_are_refused(pixels: int, patch: int, options: dict[str, object], words: str) -> None:
    refused(words, lambda: create_student(NAME, data_spec(pixels), patch, options))


def test_an_exported_one_takes_any_number_of_images() -> None:
    student = create_student(NAME, data_spec(32), 8, SMALL).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(student, (torch.randn(2, 3, 32, 32),), dynamic_shapes=(batch,), strict=False)
    images = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(program.module()(images), student(images))
