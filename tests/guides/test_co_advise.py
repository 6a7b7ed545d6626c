# SPDX-License-Identifier: Apache-2.0
"""Co-advise as a guide: the authors' total, a teacher per token, and teachers that are not trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cit_students import aligned
from conftest import Golden
from networks import Constant, error, random_images, randomized
from plain_loop import check_plain_loop
from viticulture.config.load import parse
from viticulture.config.resolve import resolve
from viticulture.errors import UserError
from viticulture.guides.co_advise import CoAdvise
from viticulture.guides.logits import Logits
from viticulture.losses import soft_distillation
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.cit.cit import checkpoint_filter_fn
from viticulture.models.data_spec import DataSpec
from viticulture.models.heads import every_head
from viticulture.models.students import create_student
from viticulture.models.taps import Readings, Taps
from viticulture.models.teachers.frozen import Frozen
from viticulture.models.weights.files import save
from viticulture.optim import Optim
from viticulture.training.run import fit
from viticulture.training.session import begin

Load = Callable[[str], Golden]
TASK = DataSpec(tuple("abcdef"), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TINY = {"embed_dim": 8, "depth": 1, "num_heads": 2}
RESNET = {"channels": (4, 4, 4, 4), "small_images": True}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Create a convolution and an involution teacher with random weights."""
    folder = tmp_path_factory.mktemp("teachers")
    torch.manual_seed(1)
    kinds = {"conv": ("resnet10", RESNET), "inv": ("rednet26", {**RESNET, "channels": (16,) * 4, "stem_width": 16})}
    for name, (architecture, options) in kinds.items():
        save(randomized(create_student(architecture, TASK, None, options)), folder / name, TASK)
    return {name: str(folder / name) for name in kinds}


def student(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return create_student("cit_tiny", TASK, 4, {**TINY, **options}).train()


def answering(guide: CoAdvise, **logits: Tensor) -> CoAdvise:
    guide.teachers = nn.ModuleDict({name: Frozen(Constant(value)) for name, value in logits.items()})
    return guide


@pytest.mark.parametrize("temperature", [1, 3])
def test_a_term_is_the_official_divergence(golden: Load, teachers: dict[str, str], temperature: int) -> None:
    """T^2 KL(teacher || token) / B and its gradient."""
    data = golden("cit_kd_loss")
    head, theirs = (data[f"in/{who}_T{temperature}"] for who in ("student", "teacher"))
    one = {"conv": teachers["conv"]}
    guide = answering(CoAdvise(student(tokens=1), TASK, teachers=one, temperature=temperature), conv=theirs)
    head = head.clone().requires_grad_()
    term = guide.losses({"image": torch.zeros(4, 3, 8, 8)}, Readings((torch.zeros_like(head), head)))["conv"]
    assert term.item() == pytest.approx(data[f"out/kl_T{temperature}"].item(), rel=1e-6)
    term.backward()
    assert head.grad is not None
    assert error(head.grad, data[f"gin/student_T{temperature}"]) < 1e-5
    assert guide.after_backward()["conv_kl"].item() == pytest.approx(soft_distillation(head, theirs).item())


def test_label_term_and_guide_are_the_official_total(golden: Load, teachers: dict[str, str]) -> None:
    """Eq. (1) on the authors' network: the sum, and every gradient's norm."""
    net, data = aligned(golden)
    net.set_distilled_training()
    data_spec = DataSpec(TASK.classes, (64, 64), TASK.mean, TASK.std)
    guide = CoAdvise(net, data_spec, teachers=teachers)
    answering(guide, conv=data["in/teacher_conv"], inv=data["in/teacher_inv"])
    method = Supervised(Setup(net, data_spec, {"co_advise": guide})).train()
    terms = method.losses({"image": data["in/x"], "label": data["in/soft_target"]})
    assert terms.keys() == {"label", "co_advise_conv", "co_advise_inv"}
    total = torch.stack(list(terms.values())).sum()
    assert total.item() == pytest.approx(data.about["config"]["loss"]["total"], rel=1e-4)
    total.backward()
    norms = checkpoint_filter_fn(data.about["config"]["grad_l2_norms"], net)
    assert {name: float(p.grad.norm()) for name, p in net.named_parameters()} == pytest.approx(norms, rel=1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["cit_tiny", "resnet10"])
def test_every_head_is_trained_in_evaluation_mode(teachers: dict[str, str], name: str) -> None:
    options = TINY if name == "cit_tiny" else {**RESNET, "heads": 3}
    net = create_student(name, TASK, 4 if name == "cit_tiny" else None, options)
    guide = CoAdvise(net, TASK, teachers=teachers)
    method = Supervised(Setup(net, TASK, {"co_advise": guide}), eval_mode=True).train()
    before = [buffer.clone() for buffer in net.buffers()]
    terms = method.losses({"image": random_images(4, 3, 8, 8), "label": torch.arange(4)})
    assert terms.keys() == {"label", "co_advise_conv", "co_advise_inv"}
    torch.stack(list(terms.values())).sum().backward()
    heads = [head for module in net.modules() for head in module.children() if getattr(head, "out_features", 0) == 6]
    assert len(heads) == 3
    assert all(head.weight.grad is not None for head in heads)
    assert all(torch.equal(buffer, old) for buffer, old in zip(net.buffers(), before, strict=True))


def test_a_warning_names_a_mean_with_untrained_heads(teachers: dict[str, str]) -> None:
    tokens, heads = {**TINY, "inference": "mean"}, {**RESNET, "heads": 3, "inference": "mean"}
    small = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    for name, patch, options in (
        ("cit_tiny", 4, tokens),
        ("resnet10", None, heads),
        ("deit_tiny_distilled_patch16_224", 4, small),
    ):
        net = create_student(name, TASK, patch, options)
        (said,) = Supervised(Setup(net, TASK, {})).warnings(4)
        assert "mean of " in said
        assert not Supervised(Setup(net, TASK, {}), every_head=True).warnings(4)
    assert not Supervised(Setup(student(), TASK, {})).warnings(4)  # the class token answers
    assert not Supervised(Setup(create_student("vit_nano", TASK, 4, TINY), TASK, {})).warnings(4)
    net = create_student("resnet10", TASK, None, heads)
    assert not Supervised(Setup(net, TASK, {"co_advise": CoAdvise(net, TASK, teachers=teachers)})).warnings(4)
    assert Supervised(Setup(net, TASK, {"logits": Logits(net, TASK, teacher=teachers["conv"])})).warnings(4)


def test_each_token_follows_its_teacher_alone(teachers: dict[str, str]) -> None:
    for order in (("conv", "inv"), ("inv", "conv")):
        net = student()
        guide = CoAdvise(net, TASK, teachers={name: teachers[name] for name in order})
        x = random_images(4, 3, 8, 8)
        guide.losses({"image": x}, Taps(net)(x))["conv"].backward()
        heads = net.get_classifier()
        assert [head.weight.grad is not None for head in heads] == [False, order[0] == "conv", order[1] == "conv"]


def test_all_teachers_may_teach_one_head(teachers: dict[str, str]) -> None:
    """Table 7, one token: both divergences are of the only head; several heads are refused."""
    net = create_student("vit_nano", TASK, 4, TINY).train()
    guide = CoAdvise(net, TASK, teachers=teachers, token="class", weight={"inv": 0.5}, temperature={"conv": 2})
    x = random_images(4, 3, 8, 8)
    terms = guide.losses({"image": x}, Taps(net)(x))
    conv, inv = (guide.teachers[name](x) for name in ("conv", "inv"))
    assert terms["conv"].item() == pytest.approx(soft_distillation(net(x), conv, 2.0).item(), rel=1e-5)
    assert terms["inv"].item() == pytest.approx(0.5 * soft_distillation(net(x), inv).item(), rel=1e-5)
    assert guide.metrics({"image": x, "label": torch.zeros(4, dtype=torch.long)}) == {}


def test_terms_are_means_over_images(teachers: dict[str, str]) -> None:
    net = student().eval()
    guide, x = CoAdvise(net, TASK, teachers=teachers), random_images(6, 3, 8, 8)
    whole, *halves = (guide.losses({"image": part}, Readings(every_head(net, part))) for part in (x, x[:3], x[3:]))
    for name, term in whole.items():
        torch.testing.assert_close(term, (halves[0][name] + halves[1][name]) / 2)


def test_teachers_are_not_trained_saved_or_stepped(teachers: dict[str, str]) -> None:
    net = student()
    guide = CoAdvise(net, TASK, teachers=teachers).train()
    before = {k: v.clone() for k, v in guide.teachers["inv"].net.state_dict().items()}
    x = random_images(4, 3, 8, 8)
    guide.losses({"image": x}, Taps(net)(x))
    assert not guide.state_dict()
    assert not list(guide.parameters())
    assert all(torch.equal(before[k], v) for k, v in guide.teachers["inv"].net.state_dict().items())
    groups = Optim().groups(net, nn.ModuleDict({"co_advise": guide}))
    assert sum(len(group["params"]) for group in groups) == len(list(net.parameters()))


@pytest.mark.parametrize("inference", ["class", "mean"])
def test_accuracy_is_reported_per_token(teachers: dict[str, str], inference: str) -> None:
    net = randomized(student(inference=inference, stems=("conv", "inv"), proj_drop_rate=0.5)).eval()
    guide = CoAdvise(net, TASK, teachers=teachers)
    batch = {"image": random_images(32, 3, 8, 8), "label": torch.arange(32) % 6}
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    found = guide.metrics(batch)
    assert not any(module.training for module in net.modules())
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())
    features = net.forward_features(batch["image"])
    for name, k in (("class", 0), ("conv", 1), ("inv", 2)):
        logits = net.get_classifier()[k](features[:, k])
        assert found[f"{name}_accuracy"] == (logits.argmax(-1) == batch["label"]).float().mean()


def test_heads_on_shared_features_are_all_used() -> None:
    x = random_images(2, 3, 8, 8)
    three = create_student("resnet10", TASK, None, {**RESNET, "heads": 3, "drop_rate": 0.5}).eval()
    assert len(every_head(three, x)) == 3
    assert all(map(torch.equal, every_head(three, x), every_head(three, x)))
    assert torch.equal(every_head(three, x)[0], three(x))
    single = create_student("resnet10", TASK, None, RESNET).eval()
    assert torch.equal(every_head(single, x)[0], single(x))


def test_invalid_settings_are_refused(teachers: dict[str, str], tmp_path: Path) -> None:
    other = DataSpec(tuple("abcdeg"), TASK.image_size, TASK.mean, TASK.std)
    save(create_student("resnet10", other, None, RESNET), tmp_path / "other", other)
    fewer = DataSpec(tuple("abc"), TASK.image_size, TASK.mean, TASK.std)
    save(create_student("resnet10", fewer, None, RESNET), tmp_path / "fewer", fewer)
    for keywords, words in (
        ({"teachers": {}}, "at least one teacher"),
        ({"teachers": {"conv": teachers["conv"]}}, "1 teachers with token=own need a student of 2 heads, .* has 3"),
        ({"token": "class"}, "need a student of 1 heads"),
        ({"token": "each"}, "own or class"),
        ({"weight": 0.0}, "weight must be positive"),
        ({"temperature": {"involution": 2.0}}, "unknown teacher .*temperature 'involution'"),
        ({"teachers": {"a.b": teachers["conv"], "inv": teachers["inv"]}}, "plain word, got 'a.b'"),
        ({"teachers": {**teachers, "inv": str(tmp_path / "other")}}, "class 5 is 'g'"),
        ({"teachers": {**teachers, "inv": str(tmp_path / "fewer")}}, "has 3; viticulture probe .* trains a classifier"),
    ):
        with pytest.raises(UserError, match=words):
            CoAdvise(student(), TASK, **{"teachers": teachers, **keywords})


def test_a_recipe_holds_teachers_by_name() -> None:
    text = "student: cit_tiny\nguides: {co_advise: {teachers: {conv: a, inv: b}, temperature: {inv: 2}}}\n"
    config = resolve("x", parse(text, "x"), {"guides.co_advise.teachers.third": "c", "guides.co_advise.weight": 0.5})
    again = resolve("x", parse(config.to_yaml(), "x"))
    for values in (config.values, again.values):
        guide = values["guides"]["co_advise"]
        assert list(guide["teachers"].items()) == [("conv", "a"), ("inv", "b"), ("third", "c")]
        assert guide["temperature"] == {"inv": 2}
        assert guide["weight"] == 0.5


def test_the_trainer_is_a_plain_loop(tmp_path: Path) -> None:
    """Two epochs on digits with two teachers, mixed images and metrics per token."""
    overrides: dict[str, Any] = {
        "student.name": "cit_tiny",
        "student.options": {**TINY, "tokens": 2},
        "data.per_class": 5,
        "data.val_fraction": 0.2,
        "augment.mix.mixup": 0.8,
        "train.validate": "val",
        "train.epochs": 2,
        "train.batch_size": 20,
        "schedule.warmup_epochs": 1,
    }
    session = begin("digits", "default/digits", 0, str(tmp_path / "teacher"), False, overrides, "test")
    fit(session)
    source = str(tmp_path / "teacher")
    overrides["guides.co_advise"] = {"teachers": {"one": source, "other": source}}
    session = begin("digits", "default/digits", 0, str(tmp_path / "run"), False, overrides, "test")
    plain = begin("digits", "default/digits", 0, str(tmp_path / "plain"), False, overrides, "test")
    check_plain_loop(session, plain)
    header = (tmp_path / "run" / "metrics.csv").read_text()
    for name in ("train/co_advise_one", "train/co_advise_other_kl", "val/co_advise_other_accuracy"):
        assert name in header
