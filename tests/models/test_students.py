# SPDX-License-Identifier: Apache-2.0
"""Students are built to fit the data, or refused in one line before anything is built; `viticulture models` lists every
student with its costs and purpose.
"""

import json
from typing import Any

import pytest
import timm
import torch

import viticulture
from networks import data_spec
from refusals import refused
from viticulture.models.catalog import COSTS, counted_or_none, entries, measured
from viticulture.models.data_spec import DataSpec
from viticulture.models.heads import token_logits
from viticulture.models.students import blueprint, count, create_student, fitting_patch, matching, takes_patch_size
from viticulture.models.vit import plain_vit

ATTENTION_IS_COUNTED = 4.624  # GMACs of DeiT-S distilled at 224 px, attention's two matrix products included


@pytest.mark.parametrize(
    ("name", "image", "patch"),
    [
        ("vit_nano", (8, 8), 2),
        ("vit_micro", (16, 24), 8),
        ("deit_tiny_distilled_patch16_224", (32, 32), 16),
        ("resnet10t", (32, 48), None),
        ("levit_128s", (64, 64), None),
    ],
)
def test_a_student_fits_its_task(name: str, image: tuple[int, int], patch: int | None) -> None:
    """One [B, C] per token head; heads apart in training, one mean for inference (DeiT, Sec. 4)."""
    student = create_student(name, data_spec(5, *image), patch)
    pixels = torch.randn(2, 3, *image)
    heads = token_logits(student.train()(pixels))
    assert [logits.shape for logits in heads] == [(2, 5)] * (2 if hasattr(student, "head_dist") else 1)
    assert [logits.shape for logits in token_logits(student.eval()(pixels))] == [(2, 5)]
    assert blueprint(student).name == name


def test_building_consumes_random_numbers_for_weights_alone() -> None:
    torch.manual_seed(7)
    ours = create_student("vit_tiny_patch16_224", data_spec(), 8, {"embed_dim": 16, "depth": 1, "num_heads": 2})
    torch.manual_seed(7)
    sizes: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes)
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), rtol=0, atol=0)


def test_plain_vits_are_timms_with_another_initialization() -> None:
    student = create_student("vit_nano", data_spec(), 2, {"position_std": 0.3, "drop_path_rate": 0.1})
    made = blueprint(student)
    assert json.loads(json.dumps(made.arguments)).keys() == made.arguments.keys()
    assert "position_std" not in made.arguments
    bare = timm.create_model(made.architecture, **made.arguments)
    bare.load_state_dict(student.state_dict())
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(student.eval()(pixels), bare.eval()(pixels))

    assert student.pos_embed.std().item() == pytest.approx(0.3, rel=0.02)
    attn = student.blocks[0].attn
    assert attn.qkv.weight.abs().max() <= (6 / (64 + 64)) ** 0.5 < attn.qkv.weight.abs().max() * 1.01
    assert attn.qkv.bias.abs().max() == student.blocks[0].mlp.fc1.bias.abs().max() == 0
    assert set(plain_vit.SIZES) <= set(matching())
    assert takes_patch_size("vit_nano")
    assert not takes_patch_size("vit_tiny_patch16_224")


def test_costs_are_the_papers() -> None:
    """ResNet-50 and ViT-S of Bootstrapping ViTs (100 classes, 224 px), DeiT-S distilled."""
    for name, classes, options, millions, giga in (
        ("resnet50", 100, {}, 23.713, 4.087),
        ("vit_small_patch16_224", 100, {"embed_dim": 288, "depth": 6, "num_heads": 9}, 6.302, 1.354),
        ("deit_small_distilled_patch16_224", 1000, {}, 22.436, ATTENTION_IS_COUNTED),
    ):
        with torch.device("meta"):
            student = timm.create_model(name, num_classes=classes, **options).train()
        parameters, macs = count(student, (224, 224))
        assert (parameters / 1e6, macs / 1e9) == (pytest.approx(millions, abs=5e-4), pytest.approx(giga, abs=5e-4))
        assert student.training


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("vit_nanno", data_spec()), r"unknown student 'vit_nanno'; did you mean vit_nano"),
        (("vit_tiny_patch16_224.augreg_in21k", data_spec()), "has no tag.*set the student to 'vit_tiny_patch16_224'"),
        (
            ("vit_nano", data_spec(height=30), 4),
            "multiple of the patch size, got 30 and 4 pixels; take images of 28 or 32",
        ),
        (("vit_nano", data_spec(height=2, width=2), 4), "take images of 4, or"),
        (
            ("mixer_tiny", data_spec(height=30), 4),
            "multiple of the patch size, got 30 and 4 pixels; take images of 28 or 32",
        ),
        (
            ("dhvt_nano", data_spec(), 5, {"patch_embed": "linear"}),
            "multiple of the patch size, got 32x32 and 5 pixels",
        ),
        (("agent_small", data_spec(), None, {"dropout": 1.0}), r"dropout must lie in \[0, 1\), got 1.0"),
        (("resnet10t", data_spec(), 4), "resnet10t has no patches"),
        (
            ("vit_nano", data_spec(), 4, {"droppath_rate": 0.1}),
            "unknown option of vit_nano 'droppath_rate'; .*drop_path_rate",
        ),
        (("resnet10t", data_spec(), None, {"depth": 3}), "unknown option of resnet10t 'depth'"),
        (("deit_tiny_distilled_patch16_224", data_spec(), 8, {"dept": 3}), "did you mean depth"),
        (
            ("vit_nano", data_spec(), 4, {"num_heads": 7}),
            "vit_nano does not work on 32x32 images.*divisible by num_heads",
        ),
        (("vit_nano", data_spec(), 4, {"position_std": -1.0}), "position_std must not be negative"),
        (("vit_nano", data_spec(), 4, {"num_classes": 7}), "leave num_classes alone, got 7"),
        (("vit_nano", data_spec(), 4, {"checkpoint_path": "x.pth"}), "leave checkpoint_path alone"),
        (("vit_nano", data_spec(), 4, {"global_pool": ""}), r"one score a class, vit_nano gives \(1, 65, 3\)"),
        (("inception_v3", data_spec()), "inception_v3 does not work on 32x32 images"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments: tuple[Any, ...], words: str) -> None:
    refused(words, create_student, *arguments)


def test_students_are_found_by_pattern() -> None:
    assert "vit_tiny_patch16_224" not in matching()
    assert "vit_tiny_patch16_224" in matching("*tiny_patch16*")
    refused("unknown student 'vit_nanno'; did you mean vit_nano", matching, "vit_nanno")


def test_a_network_made_elsewhere_has_no_blueprint() -> None:
    refused("make students with create_student", lambda: blueprint(timm.create_model("resnet10t", num_classes=3)))


def test_every_student_of_the_package_has_costs_and_a_purpose() -> None:
    """A new student needs `python docs/reference.py` and a family."""
    listed = entries(matching(), most=0)
    assert {one.name for one in listed} == set(json.loads(COSTS.read_text(encoding="utf-8")))
    assert all(one.parameters and one.macs and one.side and one.purpose for one in listed)


def test_costs_are_those_of_the_built_network() -> None:
    side, parameters, macs = measured("dhvt_nano")
    data_spec = DataSpec(tuple("0123456789"), (side, side), (0.5,) * 3, (0.5,) * 3)  # type: ignore[arg-type]
    student = create_student("dhvt_nano", data_spec, fitting_patch("dhvt_nano", data_spec.image_size))
    assert parameters == sum(weight.numel() for weight in student.parameters())
    (kept,) = entries(["dhvt_nano"], most=0)
    assert (kept.side, kept.parameters, kept.macs) == (side, parameters, macs)


@pytest.mark.slow
def test_shipped_costs_are_current() -> None:
    """After changing a student: python docs/reference.py."""
    assert {name: list(measured(name)) for name in matching()} == json.loads(COSTS.read_text(encoding="utf-8"))


def test_costs_of_timms_students_are_computed_for_short_lists() -> None:
    table = viticulture.models("vit_tiny_patch16_224")
    name, side, parameters, macs, _ = table.rows[0]
    known = sum(weight.numel() for weight in timm.create_model(str(name), num_classes=10).parameters())
    assert (side, parameters) == (224, known / 1e6)
    assert isinstance(macs, float)
    assert macs == pytest.approx(1257, rel=0.01), "DeiT: 1.3 G multiply-adds with the head of 1,000 classes"
    many = viticulture.models("*tiny*")
    assert len(many.rows) > 20
    assert "narrower" in many.note
    assert all(row[2] is None for row in many.rows if str(row[0]).startswith("convnext"))
    with torch.device("meta"):
        assert counted_or_none("no such student") is None
