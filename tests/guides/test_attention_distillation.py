# SPDX-License-Identifier: Apache-2.0
"""Distilled MAE equals the authors'; the teacher gets visible patches and stops at the last layer needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from conftest import Golden
from mae_students import ours
from networks import error
from refusals import refused
from viticulture.guides.attention_distillation import AttentionDistillation
from viticulture.methods.mae import MAE, Decoder, encode
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import Taps
from viticulture.models.weights.files import save

Load = Callable[[str], Golden]
HALF = (0.5, 0.5, 0.5)
TASK = DataSpec((), (32, 32), HALF, HALF)
SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
LARGE = {"embed_dim": 36, "depth": 2, "num_heads": 6, "mlp_ratio": 2}


def vit(patch: int = 8, data_spec: DataSpec = TASK, **options: Any) -> VisionTransformer:
    torch.manual_seed(len(options))
    student = create_student("mae_tiny", data_spec, patch, {**SMALL, **options})
    assert isinstance(student, VisionTransformer)
    return student


def saved(net: nn.Module, folder: Path, data_spec: DataSpec = TASK) -> str:
    save(net, folder, data_spec)
    return str(folder)


def method(student: nn.Module, guide: AttentionDistillation, **options: Any) -> MAE:
    return MAE(Setup(student, TASK, {"attention_distillation": guide}), **options)


def test_it_is_the_official_code(golden: Load, tmp_path: Path) -> None:
    """Attention term, hidden term, their sum with the reconstruction, and the gradients that the file holds."""
    data = golden("mae_attn_distill")
    config, teacher, student = data.about["config"], vit(**LARGE), vit()
    teacher.load_state_dict(data.part("w/teacher."))
    guide = AttentionDistillation(student, TASK, teacher=saved(teacher, tmp_path), hidden_weight=1.0)
    mae = method(student, guide, patch_norm=False)
    mae.auxiliary["decoder"] = Decoder(24, (4, 4), 192, 16, depth=1, heads=2, mlp_ratio=2)
    encoder, decoder = ours(data.part("w/student."))
    student.load_state_dict(encoder)
    mae.auxiliary["decoder"].load_state_dict(decoder)
    guide.heads[0].load_state_dict({"weight": data["w/attn_adapter"]})
    guide.widen.load_state_dict({"weight": data["w/hidden_adapter"]})

    terms = mae.losses({"image": data["in/img"], "noise": data["in/noise"]})
    assert terms["attention_distillation_attention"].item() == pytest.approx(config["attn_loss"], rel=1e-5)
    assert terms["attention_distillation_hidden"].item() == pytest.approx(config["hidden_loss"], rel=1e-5)
    assert terms["reconstruction"].item() == pytest.approx(config["mae_loss"], rel=1e-5)
    torch.stack(list(terms.values())).sum().backward()
    assert guide.heads[0].weight.grad is not None
    for ours_, name in (
        (guide.heads[0].weight, "attn_adapter"),
        (guide.widen.weight, "hidden_adapter"),
        (student.blocks[1].attn.qkv.weight, "blocks.1.attn.qkv.weight"),
    ):
        assert error(ours_.grad, data[f"grad/{name}"]) < 1e-4, name


def test_the_teachers_scores_are_those_of_a_full_pass(tmp_path: Path) -> None:
    teacher, student = vit(**{**LARGE, "qk_norm": True, "depth": 3}), vit(depth=3)
    kept = torch.rand(2, 16).argsort(1)[:, :5]
    images = torch.randn(2, 3, 32, 32)
    taps = Taps(teacher, frozenset({"attention", "blocks"}), lambda x, numbers: encode(teacher, x, numbers))
    readings = taps(images, kept)
    folder = saved(teacher, tmp_path)
    for blocks in ([0], [0, 2], [1]):
        guide = AttentionDistillation(student, TASK, teacher=folder, blocks=blocks, hidden_weight=0.5)
        looked = guide.teacher(images, kept)
        for k, block in enumerate(blocks):
            torch.testing.assert_close(looked.scores[k], readings.attention[block].scores(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(looked.output, readings.outputs[0], rtol=1e-4, atol=1e-5)
    assert not looked.scores[0].requires_grad


def test_the_teacher_costs_the_visible_patches_and_needed_layers(tmp_path: Path) -> None:
    """MACs by hand: K patches' embedding, whole blocks before the last layer; there queries, keys, scores."""
    guide = AttentionDistillation(vit(depth=4), TASK, teacher=saved(vit(**{**LARGE, "depth": 4}), tmp_path), blocks=[2])
    # torch 2.11 to 2.14 do not count the products of a CPU's fused attention
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        guide.teacher(torch.randn(1, 3, 32, 32), torch.arange(4)[None])
    T, D = 5, 36
    block = T * (3 + 1 + 2 * 2) * D * D + 2 * T * T * D
    expected = 4 * 192 * D + 2 * block + T * 2 * D * D + T * T * D
    assert counter.get_total_flops() / 2 == expected


def test_it_teaches_supervised_students_too_and_is_no_part_of_them(tmp_path: Path) -> None:
    data_spec = DataSpec(("a", "b"), (32, 32), HALF, HALF)
    student = create_student("mae_tiny", data_spec, 8, SMALL)
    guide = AttentionDistillation(student, data_spec, teacher=saved(student, tmp_path / "same", data_spec))
    nn.init.eye_(guide.heads[0].weight.data[:, :, 0, 0])
    supervised = Supervised(Setup(student, data_spec, {"attention_distillation": guide}))
    batch = {"image": torch.randn(2, 3, 32, 32), "label": torch.tensor([0, 1])}
    terms = supervised.losses(batch)
    assert terms["attention_distillation_attention"].item() == pytest.approx(0, abs=1e-10)
    assert [name for name in supervised.state_dict() if "teacher" in name] == []
    assert [name for name in supervised.state_dict() if name.startswith("guides")] == [
        "guides.attention_distillation.heads.0.weight"
    ]
    groups = supervised.optim.groups(student, nn.ModuleDict({**supervised.guides}))
    decayed = {name: group["weight_decay"] for group in groups for name, _ in group["params"]}
    assert decayed["guides.attention_distillation.heads.0.weight"] > 0

    wide = DataSpec((), (64, 64), (0.2, 0.3, 0.4), (0.1, 0.2, 0.3))
    net = vit(16, wide, **LARGE)
    other = AttentionDistillation(student, data_spec, teacher=saved(net, tmp_path / "wide", wide))
    images = batch["image"]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (wide.mean, wide.std))
    large = nn.functional.interpolate((images * 0.5 + 0.5 - mean) / std, (64, 64), mode="bicubic", antialias=True)
    expected = Taps(net.eval(), frozenset({"attention"}))(large).attention[-1].scores()
    torch.testing.assert_close(other.teacher(images).scores[0], expected, rtol=1e-3, atol=1e-4)


def test_teachers_of_other_depth_and_grid(tmp_path: Path) -> None:
    deep = saved(vit(**{**LARGE, "depth": 8}), tmp_path / "deep")
    guide = AttentionDistillation(vit(depth=4), TASK, teacher=deep, blocks=[0, 1, 3])
    assert guide.teacher.net.net.layers == (1, 3, 7)
    early = AttentionDistillation(vit(depth=4), TASK, teacher=deep, blocks=[0])
    assert len(early.teacher.net.net.vit.blocks) == 2
    shallow = saved(vit(**{**LARGE, "depth": 2}), tmp_path / "shallow")
    guide = AttentionDistillation(vit(depth=4), TASK, teacher=shallow, blocks=[0, 3])
    assert guide.teacher.net.net.layers == (0, 1)
    coarse = DataSpec((), (32, 32), HALF, HALF)
    other = saved(vit(16, coarse, **LARGE), tmp_path / "coarse", coarse)  # 2 x 2 patches; the student has 4 x 4
    guide = AttentionDistillation(vit(), TASK, teacher=other)
    last = torch.full((2, 3), 15)
    assert guide.teacher(torch.randn(2, 3, 32, 32), last).scores[0].shape == (2, 6, 4, 4)


def test_a_shallower_teacher_serves_several_layers(tmp_path: Path) -> None:
    student = vit(depth=4)
    shallow = saved(vit(**{**LARGE, "depth": 2}), tmp_path)
    guide = AttentionDistillation(student, TASK, teacher=shallow, blocks=[0, 1, 2, 3])
    one, two, three, four = guide.teacher(torch.randn(2, 3, 32, 32)).scores
    assert torch.equal(one, two)
    assert torch.equal(three, four)
    assert not torch.equal(one, four)
    terms = method(student, guide).losses({"image": torch.randn(2, 3, 32, 32), "noise": torch.rand(2, 16)})
    assert terms["attention_distillation_attention"].isfinite()


@pytest.mark.parametrize("name", ["vit_nano", "vit_small", "mae_tiny"])
def test_every_plain_vit_of_the_package_can_be_a_teacher(name: str, tmp_path: Path) -> None:
    net = create_student(name, TASK, 8, {"embed_dim": 36, "depth": 2, "num_heads": 6})
    guide = AttentionDistillation(vit(), TASK, teacher=saved(net, tmp_path))
    images = torch.randn(2, 3, 32, 32)
    expected = Taps(net.eval(), frozenset({"attention"}))(images).attention[-1].scores()
    torch.testing.assert_close(guide.teacher(images).scores[0], expected, rtol=1e-4, atol=1e-5)


def test_several_layers_add_up(tmp_path: Path) -> None:
    student, folder = vit(), saved(vit(**LARGE), tmp_path)
    batch = {"image": torch.randn(2, 3, 32, 32), "noise": torch.rand(2, 16)}

    def term(blocks: list[int], weight: float = 1.0) -> Tensor:
        torch.manual_seed(0)
        guide = AttentionDistillation(student, TASK, teacher=folder, blocks=blocks, weight=weight)
        for head in guide.heads:
            nn.init.constant_(head.weight, 0.1)
        return method(student, guide).losses(batch)["attention_distillation_attention"]

    torch.testing.assert_close(3 * (term([0]) + term([1])), term([0, 1], weight=3.0))


@pytest.mark.parametrize(
    ("options", "teacher", "message"),
    [
        ({"weight": 0.0}, {}, "weight must be positive.*got 0.0"),
        ({"hidden_weight": -1.0}, {}, "hidden_weight not negative.*-1.0"),
        ({"blocks": [2]}, {}, "lie in 0 to 1, got \\[2\\]"),
        ({"blocks": [-1]}, {}, "lie in 0 to 1"),
        ({"blocks": []}, {}, "lie in 0 to 1"),
        ({}, {"reg_tokens": 2}, "as many tokens.*has 3, the student 1"),
        ({}, {"dynamic_img_size": True}, "cannot be run on single patches"),
    ],
)
def test_invalid_settings_are_refused(
    options: dict[str, Any], teacher: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = saved(vit(**LARGE, **teacher), tmp_path)
    refused(message, lambda: AttentionDistillation(vit(), TASK, teacher=folder, **options))
