# SPDX-License-Identifier: Apache-2.0
"""CiT with aligned tokens is the authors' student, with learned ones a DeiT with more tokens."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from cit_students import Load, aligned
from conftest import GOLDEN
from formula_fill import fill, image
from networks import error, random_images, randomized
from refusals import refused
from viticulture.deploy.onnx.graph import to_onnx
from viticulture.losses import cross_entropy, soft_distillation
from viticulture.models.cit.cit import CiT, checkpoint_filter_fn
from viticulture.models.data_spec import DataSpec
from viticulture.models.heads import token_logits
from viticulture.models.students import count, create_student
from viticulture.models.taps import Taps
from viticulture.models.weights.files import load, save
from viticulture.models.weights.sources import initialize
from viticulture.optim import Optim

NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())["co_advise"]
TASK = DataSpec(tuple("abcde"), (16, 24), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
SMALL = {"embed_dim": 16, "depth": 2, "num_heads": 2}


def test_aligned_tokens_are_the_official_code(golden: Load) -> None:
    """Stems, all heads in training, their mean in evaluation, the losses of Eq. (1), and every gradient or its norm."""
    model, data = aligned(golden)
    with torch.no_grad():
        for name in ("conv", "inv"):
            assert error(model.eval().patch_embed.stems[name](data["in/x"]), data[f"out/eval_{name}_tokens"]) < 1e-5
        assert error(model(data["in/x"]), data["out/eval"]) < 1e-4
    model.set_distilled_training()
    heads = model.train()(data["in/x"])
    for logits, name in zip(heads, ("cls", "conv", "inv"), strict=True):
        assert error(logits, data[f"out/train_{name}"]) < 1e-4
    terms = {
        "ce": cross_entropy(heads[0], data["in/soft_target"]),
        "conv_kd": soft_distillation(heads[1], data["in/teacher_conv"]),
        "inv_kd": soft_distillation(heads[2], data["in/teacher_inv"]),
    }
    expected = data.about["config"]["loss"]
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {name: expected[name] for name in terms}, rel=1e-4
    )
    torch.stack(list(terms.values())).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for key, theirs in checkpoint_filter_fn(data.part("grad/"), model).items():
        ours = gradients[key]
        assert ours is not None
        assert error(ours, theirs) < 1e-3, key
    norms = checkpoint_filter_fn(data.about["config"]["grad_l2_norms"], model)
    assert norms.keys() == gradients.keys()
    assert {key: float(gradients[key].norm()) for key in norms} == pytest.approx(norms, rel=1e-3)  # type: ignore[union-attr]


def test_the_full_size_model_is_the_official_one(golden: Load) -> None:
    data = golden("full_cit_tiny")
    model = timm.create_model("cit_tiny_aligned", inference="mean").eval()
    model.load_state_dict(checkpoint_filter_fn(fill(data.about["config"]["state"]), model))
    with torch.no_grad():
        features = model.forward_features(image((2, 3, 224, 224)))
        heads = [head(features[:, k]) for k, head in enumerate(model.get_classifier())]
        for logits, name in zip(heads, ("cls", "conv", "inv"), strict=True):
            assert error(logits, data[f"out/{name}"]) < 1e-3
        assert error(model.forward_head(features), data["out/avg_logits"]) < 1e-3


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("cit_tiny", "CiT-tiny unaligned (derived: DeiT + 2 tokens + 2 heads)"),
        pytest.param("cit_small", "CiT-small unaligned (derived: DeiT + 2 tokens + 2 heads)", marks=pytest.mark.slow),
        ("cit_tiny_aligned", "CiT-tiny aligned (official code)"),
        ("cit_small_aligned", "CiT-small aligned (official code)"),
    ],
)
def test_parameters_and_macs_are_the_official_ones(name: str, entry: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    parameters, macs = count(model, (224, 224))
    assert model.blocks[0].attn.num_heads == model.embed_dim // 64
    assert parameters / 1e6 == pytest.approx(NUMBERS[entry]["params"], abs=5.1e-5)
    if "gmacs_224_conv_linear" in NUMBERS[entry]:
        assert macs / 1e9 == pytest.approx(NUMBERS[entry]["gmacs_224_conv_linear"], abs=5.1e-5)


def test_learned_tokens_are_deits_with_more_of_them() -> None:
    deit = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, num_classes=4, **SMALL)
    ours = CiT(tokens=1, img_size=32, num_classes=4, inference="mean", **SMALL)
    names = {"dist_token": "reg_token", "head_dist.weight": "heads.0.weight", "head_dist.bias": "heads.0.bias"}
    randomized(deit)
    ours.load_state_dict({names.get(key, key): weight for key, weight in deit.state_dict().items()})
    x = random_images(2, 3, 32, 32)
    torch.testing.assert_close(ours.train()(x), deit.train()(x))  # one answer, unless all are asked for
    for model in (deit, ours):
        model.set_distilled_training(True)
    for training in (True, False):
        theirs, found = (token_logits(model.train(training)(x)) for model in (deit, ours))
        torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize("inference", ["class", "mean"])
@pytest.mark.parametrize("options", [{"tokens": 3}, {"stems": ("inv",)}, {"stems": ("inv", "conv"), "stem_width": 32}])
def test_the_recipe_chooses_the_inference_rule(options: dict[str, Any], inference: str) -> None:
    """All heads in training; in evaluation the class token's logits (Sec. 4.1) or the mean of all (code)."""
    torch.manual_seed(0)
    student = create_student("cit_tiny", TASK, 8, {**SMALL, **options, "inference": inference})
    x = random_images(2, 3, 16, 24)
    heads = token_logits(student.train()(x))
    assert [logits.shape for logits in heads] == [(2, 5)] * (1 + len(options.get("stems", range(3))))
    assert not torch.allclose(heads[0], heads[1], rtol=1e-2)
    features = student.eval().forward_features(x)
    heads = tuple(head(features[:, k]) for k, head in enumerate(student.get_classifier()))
    expected = heads[0] if inference == "class" else torch.stack(heads).mean(0)
    torch.testing.assert_close(student(x), expected)


def test_a_token_of_a_stem_is_the_mean_of_its_patches() -> None:
    """Sec. 3.2; and patches are the sum of the stems'."""
    student = CiT(stems=("conv", "inv"), img_size=(16, 24), patch_size=4, num_classes=3, **SMALL).eval()
    x = random_images(2, 3, 16, 24)
    embed = student.patch_embed
    conv, inv = (embed.stems[name](x) for name in ("conv", "inv"))
    tokens = embed(x)
    assert tokens.shape == (2, 2 + 24, 16)
    torch.testing.assert_close(tokens[:, 0], conv.mean(1))
    torch.testing.assert_close(tokens[:, 1], inv.mean(1))
    torch.testing.assert_close(tokens[:, 2:], conv + inv)
    refused(r"made for 16x24 pixels, got \(24, 16\)", student, x.mT)


def test_patches_of_the_stems_lie_where_the_image_has_them() -> None:
    for stem in ("conv", "inv"):
        embed = CiT(stems=(stem,), img_size=(32, 64), patch_size=16, num_classes=3, **SMALL).eval().patch_embed
        x = torch.zeros(1, 3, 32, 64)
        stained = x.clone()
        stained[:, :, 20:28, 36:44] = 1  # row 1, column 2 of 2 x 4 patches
        moved = (embed(stained) - embed(x)).norm(dim=-1)[0, 1:]
        assert int(moved.argmax()) == 1 * 4 + 2


@pytest.mark.parametrize("options", [{"tokens": 2}, {"stems": ("conv", "inv")}])
def test_taps_read_blocks_and_attention(options: dict[str, Any]) -> None:
    student = create_student("cit_small", TASK, 8, {**SMALL, **options}).train(False)
    x = random_images(2, 3, 16, 24)
    readings = Taps(student, frozenset({"blocks", "attention"}))(x)
    assert torch.equal(readings.outputs[0], student(x))
    assert [block.shape for block in readings.blocks] == [(2, 3 + 6, 16)] * 2
    reading = readings.attention[-1]
    torch.testing.assert_close(reading.class_scores(), reading.scores()[:, :, 0, 3:])


def test_initialization_is_the_papers() -> None:
    """Tokens, positions and heads normal of 0.02, positions wider on request; stems Kaiming-normal by fan-in."""
    torch.manual_seed(0)
    model = timm.create_model("cit_tiny", depth=1, num_classes=100).requires_grad_(False)
    for name in ("cls_token", "reg_token", "pos_embed", "head.weight", "heads.1.weight"):
        assert model.get_parameter(name).std() == pytest.approx(0.02, rel=0.15), name
    wide = timm.create_model("cit_tiny_aligned", depth=1, position_std=0.5).requires_grad_(False)
    assert wide.pos_embed.std() == pytest.approx(0.5, rel=0.05)
    for name, module in wide.patch_embed.named_modules():
        if isinstance(module, nn.Conv2d):
            assert module.weight.std() == pytest.approx((2 / module.weight[0].numel()) ** 0.5, rel=0.15), name


def test_weight_decay_excludes_what_the_authors_exclude() -> None:
    model = create_student("cit_tiny", TASK, 8, {**SMALL, "tokens": 2})
    free = {name for group in Optim().groups(model) if not group["weight_decay"] for name, _ in group["params"]}
    assert {"cls_token", "reg_token", "pos_embed", "heads.0.bias", "norm.weight"} <= free
    assert not free & {"heads.1.weight", "head.weight", "patch_embed.proj.weight"}


@pytest.mark.parametrize("name", ["cit_tiny", "cit_tiny_aligned"])
def test_saved_weights_load_and_start_other_students(tmp_path: Path, name: str) -> None:
    square = DataSpec(TASK.classes, (16, 16), TASK.mean, TASK.std)
    student = randomized(create_student(name, square, 8, SMALL)).eval()
    save(student, tmp_path / "w", square)
    again, data_spec, _ = load(tmp_path / "w")
    x = random_images(2, 3, 16, 16)
    assert data_spec == square
    assert torch.equal(again(x), student(x))
    bare = timm.create_model(f"local-dir:{tmp_path / 'w'}", pretrained=True).eval()
    assert torch.equal(bare(x), student(x))
    other = create_student(name, DataSpec(("a", "b"), (32, 32), TASK.mean, TASK.std), 8, SMALL)
    warnings = " ".join(initialize(other, str(tmp_path / "w")))
    assert "positions resampled from 2x2 to 4x4" in warnings
    assert "head is new: head.weight, head.bias, heads.0.weight" in warnings


@pytest.mark.slow
@pytest.mark.skipif(find_spec("onnxscript") is None or find_spec("onnxruntime") is None, reason="needs the extra onnx")
def test_the_aligned_student_exports_to_onnx(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = {"embed_dim": 16, "depth": 1, "num_heads": 2, "stem_width": 32}
    assert to_onnx(create_student("cit_tiny_aligned", TASK, 8, options), tmp_path / "cit.onnx", TASK).is_file()


def test_the_classifier_can_be_replaced_or_removed() -> None:
    student = CiT(tokens=2, img_size=16, patch_size=8, num_classes=3, **SMALL).eval()
    student.reset_classifier(7)
    assert [head.out_features for head in student.get_classifier()] == [7, 7, 7]
    x = random_images(2, 3, 16, 16)
    features = student.forward_features(x)
    assert torch.equal(student.forward_head(features, pre_logits=True), features[:, 0])
    student.reset_classifier(0)
    assert torch.equal(student(x), features[:, 0])
    maps = timm.create_model(
        "cit_tiny_aligned", features_only=True, img_size=32, patch_size=8, out_indices=[1], **SMALL
    )
    assert maps(random_images(1, 3, 32, 32))[0].shape == (1, 16, 4, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "at least 1"),
        ({"tokens": 2, "stems": ["conv"]}, "left out where stems give one each"),
        ({"stems": ["conv", "dense"]}, "unknown stem 'dense'"),
        ({"inference": "best"}, "class or mean, got 'best'"),
        ({"reg_tokens": 1}, "decides reg_tokens itself"),
        ({"token": 2}, "did you mean tokens"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    refused(message, create_student, "cit_tiny", TASK, 8, {**SMALL, **options})


@pytest.mark.parametrize(
    ("patch", "message"), [(3, "must be even.*got 3"), (12, "multiple of the patch size, got 16x24")]
)
def test_a_patch_that_stems_cannot_give_is_refused(patch: int, message: str) -> None:
    refused(message, create_student, "cit_tiny_aligned", TASK, patch, SMALL)


def used(tensor: Tensor) -> bool:
    return bool(tensor.abs().sum() > 0)


@pytest.mark.parametrize("name", ["resnet10", "mixer_tiny"])
def test_students_without_tokens_have_a_head_per_teacher(name: str) -> None:
    """Table 4: heads on the same features; only the head of a loss is trained by it; the label's head predicts."""
    options = (
        {"channels": (8, 8, 8, 8), "small_images": True} if name == "resnet10" else {"embed_dim": 8, "num_blocks": 1}
    )
    patch = None if name == "resnet10" else 8
    student = create_student(name, TASK, patch, {**options, "heads": 3})
    x = random_images(4, 3, 16, 24)
    heads = token_logits(student.train()(x))
    assert [logits.shape for logits in heads] == [(4, 5)] * 3
    heads[1].square().sum().backward()
    layers = list(student.get_classifier())
    assert layers[0].weight.grad is None
    assert used(layers[1].weight.grad)
    mean = create_student(name, TASK, patch, {**options, "heads": 3, "inference": "mean"}).eval()
    mean.load_state_dict(student.eval().state_dict())
    features = student.forward_head(student.forward_features(x), pre_logits=True)
    torch.testing.assert_close(student(x), layers[0](features))
    torch.testing.assert_close(mean(x), torch.stack([layer(features) for layer in layers]).mean(0))
    single = create_student(name, TASK, patch, options)
    assert isinstance(single.train()(x), Tensor)
    refused("heads must be at least 1", create_student, name, TASK, patch, {**options, "heads": 0})


def test_a_small_resnet_keeps_resolution() -> None:
    student = create_student("resnet10", TASK, None, {"small_images": True})
    _, maps = student.forward_intermediates(random_images(2, 3, 16, 24))
    assert [16 // found.shape[2] for found in maps] == [1, 1, 2, 4, 8]
    assert student.conv1.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.1)
