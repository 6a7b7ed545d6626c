# SPDX-License-Identifier: Apache-2.0
"""The guide of AAL, arXiv:2211.13852: loss, gradients, schedule, and its runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from conftest import Golden
from plain_loop import check_plain_loop
from refusals import refused
from resumed import check_same_bits, check_same_weights, whole_and_resumed
from trained import weights
from viticulture.guides.attention_link import AttentionLink, Decay, TeacherView, link_loss
from viticulture.guides.logits import Logits
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.data_spec import DataSpec
from viticulture.models.links import Links
from viticulture.models.students import create_student
from viticulture.models.taps import AttentionReading, Taps
from viticulture.models.teachers.feature_maps import resized
from viticulture.optim import Optim
from viticulture.training.metrics import read_curves
from viticulture.training.session import Session, begin

TASK = DataSpec(("a", "b", "c"), (32, 32), (0.5,) * 3, (0.5,) * 3)
VIT = {"embed_dim": 12, "depth": 2, "num_heads": 3}
PIT = {"stride": 4, "base_dims": [4, 4, 4], "depth": [1, 2, 1], "heads": [2, 4, 8]}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create timm's smallest EfficientNet with random weights and batch statistics, for ten classes."""
    torch.manual_seed(0)
    net = timm.create_model("test_efficientnet", num_classes=10)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
    path = tmp_path_factory.mktemp("teacher") / "w.safetensors"
    safetensors.torch.save_file(net.state_dict(), path)
    return f"test_efficientnet={path}"


def grow(name: str = "vit_nano", options: dict[str, Any] | None = None, data_spec: DataSpec = TASK) -> nn.Module:
    torch.manual_seed(0)
    return create_student(name, data_spec, None if name.startswith("dhvt") else 8, VIT if options is None else options)


def batch(data_spec: DataSpec = TASK) -> dict[str, Tensor]:
    images = torch.randn(2, 3, *data_spec.image_size, generator=torch.Generator().manual_seed(1))
    return {"image": images, "label": torch.tensor([0, 2])}


def test_the_loss_follows_the_paper(golden: Callable[[str], Golden]) -> None:
    """Eq. (3) to (5), number by number, against numbers computed apart from this code."""
    data = golden("aal_reading_NOT_OFFICIAL")
    maps = []
    for q, k in zip(data["in/q"], data["in/k"], strict=True):  # [B, h, T, d] a layer
        qkv = torch.stack([q, k, torch.zeros_like(k)], 1).permute(0, 3, 1, 2, 4).flatten(2)  # [B, T, 3 h d]
        layer = SimpleNamespace(num_heads=3, scale=8**-0.5)
        maps.append(AttentionReading(qkv, layer, prefix=2, patches=16, grid=(4, 4), class_token=True).class_maps())
    torch.testing.assert_close(torch.cat(maps, 1), data["out/attention_maps"], rtol=1e-5, atol=1e-6)
    targets = torch.cat([resized(data[f"in/feat{stage}"], (4, 4)) for stage in (1, 2)], 1)
    torch.testing.assert_close(targets, data["out/resized_activations"], rtol=1e-5, atol=1e-6)
    links = Links({"1": 4, "2": 5}, [3, 3], [(4, 4)] * 2, [[0, 1], [0, 1]])
    state = {"weight": data["w/links"][:, :, None, None], "bias": data["w/bias"]}
    links.load_state_dict({f"convolutions.0.{name}": value for name, value in state.items()})
    (augmented,) = links(maps)
    torch.testing.assert_close(augmented, data["out/augmented"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(link_loss([(augmented, targets)]), data["out/loss"], rtol=1e-5, atol=1e-7)


def test_the_loss_is_scale_invariant_and_weighs_all_pairs_alike() -> None:
    """Equal maps give 0, opposite ones 4 / P; a map that is zero everywhere a constant 2 / P."""
    torch.manual_seed(0)
    ours, theirs = torch.randn(2, 2, 6, 3, 4, dtype=torch.float64)
    loss = link_loss([(ours, theirs)])
    cosine = nn.functional.cosine_similarity(ours.flatten(2), theirs.flatten(2), dim=-1)
    torch.testing.assert_close(loss, (2 - 2 * cosine).mean() / 12)
    torch.testing.assert_close(link_loss([(5 * ours, 0.1 * theirs)]), loss)
    torch.testing.assert_close(link_loss([(ours[:, :2], theirs[:, :2]), (ours[:, 2:], theirs[:, 2:])]), loss)
    assert link_loss([(ours, 3 * ours)]).item() == pytest.approx(0, abs=1e-12)
    assert link_loss([(ours, -ours)]).item() == pytest.approx(4 / 12)
    assert link_loss([(ours, torch.zeros_like(ours))]).item() == pytest.approx(2 / 12)


def test_the_gradient_of_an_augmented_map_turns_it_towards_its_target() -> None:
    """dL/dA+ = 2 / (n ||A+||) * (cos a - b), with a and b the unit maps and n the positions in all maps."""
    torch.manual_seed(0)
    ours, theirs = torch.randn(2, 2, 3, 2, 2, dtype=torch.float64).requires_grad_().unbind(0)
    (gradient,) = torch.autograd.grad(link_loss([(ours, theirs.detach())]), ours)
    a, b = (nn.functional.normalize(side.detach().flatten(2), dim=-1) for side in (ours, theirs))
    length = ours.detach().flatten(2).norm(dim=-1, keepdim=True)
    expected = 2 / (ours.numel() * length) * ((a * b).sum(-1, keepdim=True) * a - b)
    torch.testing.assert_close(gradient.flatten(2), expected)


def test_random_links_start_near_twenty(teacher: str) -> None:
    """lambda L_att = 2000 * 2 / 196 = 20.4 where A+ and B are unrelated, at 14 x 14 patches as in the paper."""
    data_spec = DataSpec(TASK.classes, (112, 112), TASK.mean, TASK.std)
    student = grow(data_spec=data_spec)
    guide = AttentionLink(student, data_spec, teacher=teacher)
    guide.start_epoch(0, 300)
    loss = guide.losses(batch(data_spec), Taps(student, guide.needs)(batch(data_spec)["image"]))["attention_link"]
    assert loss.item() == pytest.approx(20.4, rel=0.1)


def test_the_weight_decays_by_epoch() -> None:
    """2000, then 0.99 an epoch for 200 epochs, then 0.98; constant within an epoch."""
    decay = Decay()
    assert [2000 * decay.scale(epoch) for epoch in (0, 1, 200, 201)] == pytest.approx(
        [2000, 1980, 2000 * 0.99**200, 2000 * 0.99**200 * 0.98]
    )
    assert 2000 * decay.scale(300) == pytest.approx(35.5, abs=0.05)
    assert Decay(rate=1, late_rate=1).scale(1000) == 1


@pytest.mark.parametrize(
    ("name", "options", "maps"),
    [
        ("vit_nano", VIT, 6),
        ("deit_tiny_distilled_patch16_224", VIT, 6),
        ("dhvt_tiny_cifar_patch4", {"embed_dim": 16, "depth": 2, "num_heads": 2}, 4),
        ("pit_ti_distilled_224", PIT, 2 + 4 + 4 + 8),
        ("convit_tiny", {"embed_dim": 6, "depth": 3, "num_heads": 2, "local_up_to_layer": 1}, 4),
    ],
)
def test_every_kind_of_student_is_linked(teacher: str, name: str, options: dict[str, Any], maps: int) -> None:
    student = grow(name, options).train()
    guide = AttentionLink(student, TASK, teacher=teacher)
    loss = guide.losses(batch(), Taps(student, guide.needs)(batch()["image"]))["attention_link"]
    assert loss.isfinite()
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in guide.parameters())
    assert student.cls_token.grad.abs().sum() > 0
    assert sum(weights[0].numel() for (block, _), weights in guide.links.weights().items() if block == 0) == maps


def test_links_are_trained_with_the_student_and_their_bias_does_not_decay(teacher: str) -> None:
    student = grow()
    guide = AttentionLink(student, TASK, teacher=teacher)
    groups = Optim(weight_decay=0.05).groups(student, nn.ModuleDict({"attention_link": guide}))
    decays = {name: group["weight_decay"] for group in groups for name, _ in group["params"] if "guides" in name}
    stem = "guides.attention_link.links.convolutions.0"
    assert decays == {f"{stem}.weight": 0.05, f"{stem}.bias": 0.0}
    keys = {"links.convolutions.0.weight", "links.convolutions.0.bias", "_extra_state"}
    assert set(guide.state_dict()) == keys


def test_terms_add_up_with_labels_and_distillation(teacher: str, tmp_path: Path) -> None:
    """Table 5, "CE + AAL + Hard": the sum of three terms; `every_head` where no teacher has the second head."""
    data_spec = DataSpec(tuple("abcdefghij"), (32, 32), TASK.mean, TASK.std)
    student = grow("deit_tiny_distilled_patch16_224", data_spec=data_spec).train()
    guides = {
        "attention_link": AttentionLink(student, data_spec, teacher=teacher),
        "logits": Logits(student, data_spec, teacher=teacher),
    }
    method = Supervised(Setup(student, data_spec, guides), label_weight=0.5)
    terms = method.losses(batch(data_spec))
    assert set(terms) == {"label", "logits", "attention_link"}
    readings = Taps(student, guides["attention_link"].needs)(batch(data_spec)["image"])
    label = nn.functional.cross_entropy(readings.outputs[0], batch(data_spec)["label"])
    torch.testing.assert_close(terms["label"], 0.5 * label)
    for name, guide in guides.items():
        torch.testing.assert_close(terms[name], guide.losses(batch(data_spec), readings)[name])

    alone = Supervised(Setup(student, data_spec, {"attention_link": guides["attention_link"]}), every_head=True)
    other = nn.functional.cross_entropy(readings.outputs[1], batch(data_spec)["label"])
    torch.testing.assert_close(alone.losses(batch(data_spec))["label"], (label + other) / 2)


def test_the_guide_computes_in_float32_under_autocast(teacher: str) -> None:
    student = grow().train()
    guide = AttentionLink(student, TASK, teacher=teacher)
    kinds = []
    guide.links.convolutions[0].register_forward_hook(lambda _m, given, out: kinds.append((given[0].dtype, out.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        readings = Taps(student, guide.needs)(batch()["image"])
        loss = guide.losses(batch(), readings)["attention_link"]
    assert kinds == [(torch.float32, torch.float32)]
    assert loss.dtype == torch.float32


def start(out: Path, teacher: str, **overrides: Any) -> Session:
    """Start two epochs on digits at 16 px with a guide and every other feature of a run."""
    given = {
        "student.name": "vit_nano",
        "student.patch_size": 4,
        "student.options": {**VIT, "proj_drop_rate": 0.1},
        "guides.attention_link.teacher": teacher,
        "guides.attention_link.decay": {"rate": 0.5, "late_rate": 0.5, "late_from": 1},
        "guides.attention_link.teacher_view": {"image_size": 32},
        "data.per_class": 8,
        "data.val_fraction": 0,
        "images.image_size": 16,
        "train.epochs": 2,
        "train.batch_size": 16,
        "train.ema_decay": 0.9,
        "schedule.warmup_epochs": 0,
        "engine.device": "cpu",
    }
    return begin("digits", "default/digits", 0, str(out), False, {**given, **overrides}, "test")


def test_a_run_with_links_resumes_exactly(tmp_path: Path, teacher: str) -> None:
    whole, again = whole_and_resumed(partial(start, teacher=teacher), tmp_path)
    ours, theirs = (session.method.state_dict() for session in (whole, again))
    state, other = (keys.pop("guides.attention_link._extra_state") for keys in (ours, theirs))
    check_same_bits(ours, theirs)
    torch.testing.assert_close(state["magnitudes"], other["magnitudes"], rtol=0, atol=0)
    assert len(state["magnitudes"]) == 2
    check_same_weights(whole, again, ("last", "ema"))


def test_the_trainer_is_a_plain_loop_with_links(tmp_path: Path, teacher: str) -> None:
    """Bit for bit, links included; the saved student is a plain ViT."""
    overrides = {"student.options": VIT, "train.ema_decay": None}
    session, other = (start(tmp_path / name, teacher, **overrides) for name in ("run", "other"))
    check_plain_loop(session, other)
    saved = weights(session.run.path)
    assert saved.keys() == create_student("vit_nano", session.method.data_spec, 4, VIT).state_dict().keys()
    curves = read_curves(session.run.metrics)
    assert [value for _, value in curves["train/attention_link_weight"]] == [2000, 1000]


def test_two_halves_of_a_batch_average_to_the_whole(teacher: str) -> None:
    student = grow().eval()
    guide = AttentionLink(student, TASK, teacher=teacher, weight=1.0)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    trained = [*guide.parameters(), student.blocks[1].attn.qkv.weight]
    found = []
    for part in (images, images[:2], images[2:]):
        loss = guide.losses({"image": part}, Taps(student, guide.needs)(part))["attention_link"]
        found.append(torch.autograd.grad(loss, trained))
    for whole, one, other in zip(*found, strict=True):
        torch.testing.assert_close((one + other) / 2, whole, rtol=1e-4, atol=1e-8)


def test_settings_without_meaning_are_refused(teacher: str) -> None:
    student = grow()
    for make, words in (
        (lambda: AttentionLink(student, TASK, teacher=teacher, weight=0), "weight must be positive"),
        (lambda: Decay(rate=1.1), r"rates in \(0, 1\]"),
        (lambda: AttentionLink(student, TASK, teacher=teacher, links="alpha"), "the alpha links are between"),
        (
            lambda: AttentionLink(student, TASK, teacher=teacher, teacher_view=TeacherView(stages=["head"])),
            "unknown module",
        ),
        (lambda: AttentionLink(timm.create_model("resnet10t"), TASK, teacher=teacher), "ResNet lacks"),
        (
            lambda: AttentionLink(
                grow(options={**VIT, "class_token": False, "global_pool": "avg"}), TASK, teacher=teacher
            ),
            "class token's attention, which this VisionTransformer lacks",
        ),
    ):
        refused(words, make)
