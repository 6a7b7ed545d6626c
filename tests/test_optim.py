# SPDX-License-Identifier: Apache-2.0
"""Parameter groups and learning rates against the official code, timm and torch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.optim._param_groups import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from conftest import Golden
from refusals import refused
from viticulture.errors import UserError
from viticulture.optim import Optim, Schedule
from viticulture.optim.muon import COEFFICIENTS, ITERATIONS, orthogonalize


def small_vit(depth: int = 3, name: str = "vit_tiny_patch16_224", **options: Any) -> nn.Module:
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": depth, "num_heads": 2, "num_classes": 3}
    return timm.create_model(name, **sizes, **options)


def settings(groups: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return parameter name -> learning rate and weight decay."""
    return {name: (group["lr"], group["weight_decay"]) for group in groups for name, _ in group["params"]}


@pytest.mark.parametrize("script", ["cifar", "domain", "imagenet", "finetune"])
def test_the_timm_rule_by_epoch_is_dhvts(golden: Callable[[str], Golden], script: str) -> None:
    """DHVT's scripts step timm after each epoch with its index: epochs 0 and 1 share a value."""
    data = golden("dhvt_lr_schedules")
    config = data.about["config"][script]
    words = config["args"].split()
    flags = dict(zip(words[::2], words[1::2], strict=True))
    lr, epochs, steps = config["scaled_base_lr"], int(flags["--epochs"]), 7
    schedule = Schedule("timm", "epoch", float(flags["--warmup-epochs"]), 1e-6, float(flags.get("--min-lr", 1e-5)))
    for place in (0, steps - 1):  # the same all through an epoch
        rates = [schedule.rate(epoch * steps + place, steps, epochs, lr) for epoch in range(epochs)]
        torch.testing.assert_close(torch.tensor(rates), data[f"out/{script}"].float(), rtol=1e-6, atol=1e-12)


def test_the_timm_rule_by_step_is_cits(golden: Callable[[str], Golden]) -> None:
    """Swin's loop passes the number of the update that just ended, so a golden value belongs to the next update."""
    data = golden("cit_lr_schedule")
    config = data.about["config"]
    schedule = Schedule("timm", "step", config["warmup_epochs"], config["warmup_lr"], config["min_lr"])
    given = (config["steps_per_epoch"], config["epochs"], config["base_lr"])
    rates = [schedule.rate(int(update) + 1, *given) for update in data["in/update"]]
    torch.testing.assert_close(torch.tensor(rates), data["out/lr"].float(), rtol=1e-6, atol=1e-12)
    assert schedule.rate(0, *given) == schedule.rate(1, *given) == config["warmup_lr"]


@pytest.mark.parametrize(
    ("stage", "lr", "first", "last"), [("pretrain", 2.4e-3, 0, 0), ("finetune", 4e-3, 0, 1e-6), ("moco", 6e-4, 1e-6, 0)]
)
def test_the_cosine_rule_is_maes(
    golden: Callable[[str], Golden], stage: str, lr: float, first: float, last: float
) -> None:
    """MAE-lite: the warm-up reaches lr exactly where the cosine begins."""
    data = golden("mae_lr_schedules")
    rates = [Schedule("cosine", "step", 40, first, last).rate(int(step), 1, 400, lr) for step in data["in/step"]]
    torch.testing.assert_close(torch.tensor(rates), data[f"out/{stage}"].float(), rtol=1e-6, atol=1e-12)


def test_cosine_by_epoch_without_warmup_is_torchs_annealing() -> None:
    """Bootstrapping ViTs steps CosineAnnealingLR once an epoch."""
    epochs, steps, lr = 12, 5, 0.3
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    schedule = Schedule("cosine", "epoch", 0)
    for epoch in range(epochs):
        ours = [schedule.rate(epoch * steps + step, steps, epochs, lr) for step in range(steps)]
        assert ours == pytest.approx(steps * theirs.get_last_lr(), abs=1e-12)
        optimizer.step()
        theirs.step()


def test_a_constant_rate_warms_up_and_stays() -> None:
    schedule = Schedule("constant", "step", 0.5)
    assert [schedule.rate(update, 4, 2, 1.0) for update in range(5)] == [0.0, 0.5, 1.0, 1.0, 1.0]


def test_no_epoch_of_a_warm_up_is_trained_at_a_rate_of_zero() -> None:
    """From 0 by epochs: lr / (W + 1) more with each."""
    for rule, shares in (("cosine", (1, 2, 3, 4)), ("timm", (1, 1, 2, 3))):
        schedule = Schedule(rule, "epoch", 3)  # type: ignore[arg-type]
        rates = [schedule.rate(update, 2, 20, 1.0) for update in range(8)]
        assert rates == pytest.approx([share / 4 for share in shares for _ in range(2)])


def test_a_rate_drops_twice_by_ten() -> None:
    """At 24/27 and 26/27 of the training; in 27 epochs of one step, with epoch 24 and with epoch 26."""
    schedule = Schedule("drops", "step", 0.0)
    rates = [schedule.rate(update, 1, 27, 1.0) for update in range(27)]
    assert rates == pytest.approx([1.0] * 24 + [0.1] * 2 + [0.01])


def test_the_mmcv_rule_is_rednets() -> None:
    """RedNet's schedule by hand: cosine annealing by epochs from epoch 0, and in the first 3,130 updates less by a
    factor from a quarter to 1. Fails if the cosine runs by steps or starts after the warm-up, or the factor waits for
    the end of an epoch."""
    lr, epochs, steps, warmup = 0.8, 130, 626, 3130
    schedule = Schedule("mmcv", "epoch", 5, 0.2)
    for update in (0, 1, 625, 626, 1565, 3129, 3130, 3131, 626 * 65, 626 * 130 - 1):
        annealed = lr / 2 * (1 + math.cos(math.pi * (update // steps) / epochs))
        factor = 1 - 0.75 * max(1 - update / warmup, 0)
        assert schedule.rate(update, steps, epochs, lr) == pytest.approx(annealed * factor, rel=1e-12)
    with pytest.raises(UserError, match="interval epoch"):
        Schedule("mmcv")


def test_weight_decay_rises_along_half_a_cosine() -> None:
    """From 0.04 to 0.4, where there is any. Fails if it is linear, or if biases are decayed."""
    optim = Optim(weight_decay=0.04, weight_decay_end=0.4)
    optimizer = optim.build(optim.groups(small_vit(depth=1)))
    for part, value in ((0, 0.04), (1 / 3, 0.13), (0.5, 0.22), (1, 0.4)):
        optim.set_decay(optimizer, part)
        assert sorted({group["weight_decay"] for group in optimizer.param_groups}) == pytest.approx([0, value])
    with pytest.raises(UserError, match="weight_decay_end"):
        Optim(weight_decay=0, weight_decay_end=0.4)


def test_a_scheduler_keeps_the_groups_ratios_and_resumes() -> None:
    optim, schedule = Optim(lr=0.1, layer_decay=0.5), Schedule("cosine", "step", 1, 0.01, 0.001)
    optimizer = optim.build(optim.groups(small_vit(depth=1)))
    scheduler = schedule.attach(optimizer, 3, 4, optim.lr)
    for update in range(12):
        rate = schedule.rate(update, 3, 4, optim.lr)
        assert sorted(set(scheduler.get_last_lr())) == pytest.approx([rate / 4, rate / 2, rate])
        if update == 5:
            state = scheduler.state_dict()
            scheduler = schedule.attach(optim.build(optim.groups(small_vit(depth=1))), 3, 4, optim.lr)
            optimizer = scheduler.optimizer
            scheduler.load_state_dict(state)
        optimizer.step()
        scheduler.step()
    assert max(scheduler.get_last_lr()) == pytest.approx(0.001)  # the end of the cosine


def test_layer_decay_groups_are_maes(golden: Callable[[str], Golden]) -> None:
    """The groups of MAE-lite's `get_parameter_groups` for a ViT of three blocks that averages its patches."""
    about = golden("mae_layer_decay_groups").about
    optim = Optim(lr=2.0, weight_decay=about["weight_decay"], layer_decay=about["layer_decay"])
    groups = optim.groups(small_vit(about["depth"], global_pool="avg"))
    ours = {(g["lr"] / 2.0, g["weight_decay"], frozenset(name for name, _ in g["params"])) for g in groups}
    assert ours == {(g["lr_scale"], g["weight_decay"], frozenset(g["params"])) for g in about["groups"]}


def test_a_final_norm_counts_with_the_head() -> None:
    """MAE's rule; timm's matcher ties `norm` to the last block."""
    rates = settings(Optim(lr=1.0, layer_decay=0.5).groups(small_vit(2)))
    assert rates["norm.weight"] == rates["head.bias"] == (1.0, 0.0)
    assert rates["blocks.1.norm1.weight"] == (0.5, 0.0)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "resnet10t"])
def test_groups_are_timms(name: str) -> None:
    student = timm.create_model(name, num_classes=3) if name == "resnet10t" else small_vit(2, name)
    names = {parameter: name for name, parameter in student.named_parameters()}
    listed = student.no_weight_decay() if hasattr(student, "no_weight_decay") else ()
    plain = param_groups_weight_decay(student, 0.05, no_weight_decay_list=listed)
    assert settings(Optim(lr=1.0).groups(student)) == {
        names[p]: (1.0, group["weight_decay"]) for group in plain for p in group["params"]
    }
    layered = param_groups_layer_decay(student, 0.05, no_weight_decay_list=listed, layer_decay=0.75)
    expected = {names[p]: (g["lr_scale"], g["weight_decay"]) for g in layered for p in g["params"]}
    ours = settings(Optim(lr=1.0, layer_decay=0.75).groups(student))
    assert {n: v for n, v in ours.items() if n[:5] != "norm."} == {
        n: v for n, v in expected.items() if n[:5] != "norm."
    }


def test_decay_can_reach_everything() -> None:
    """Bootstrapping ViTs and MoCo v3: one group."""
    (group,) = Optim(decay_everything=True).groups(small_vit())
    assert group["weight_decay"] == 0.05


def test_decay_can_reach_tokens() -> None:
    """MAE's code decays the class token, not norms and biases."""
    ordinary = settings(Optim(lr=1.0).groups(small_vit()))
    more = settings(Optim(lr=1.0, decay_tokens=True).groups(small_vit()))
    assert {name for name, value in more.items() if value != ordinary[name]} == {"cls_token", "pos_embed"}
    assert more["cls_token"] == more["pos_embed"] == (1.0, 0.05)


def test_guides_have_the_full_rate_and_shared_weights_are_stepped_once() -> None:
    student = small_vit()
    guide = nn.Module()
    guide.link, guide.frozen = nn.Conv2d(2, 2, 1), nn.Linear(2, 2).requires_grad_(False)
    guide.tied = nn.Parameter(student.head.weight.data[1:])
    ours = settings(Optim(lr=1.0, layer_decay=0.5).groups(student, nn.ModuleDict({"agent": guide})))
    added = {name: value for name, value in ours.items() if name.startswith("guides.")}
    assert added == {"guides.agent.link.weight": (1.0, 0.05), "guides.agent.link.bias": (1.0, 0.0)}


def test_one_step_of_adamw_is_the_formula() -> None:
    """Decoupled decay, then a step of lr * sign(g) at the first update [Loshchilov and Hutter, arXiv:1711.05101]."""
    layer = nn.Linear(2, 2)
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, -3.0)
    optim = Optim(lr=0.1, weight_decay=0.5)
    optim.build(optim.groups(layer)).step()
    torch.testing.assert_close(layer.weight.data, before[0] * (1 - 0.1 * 0.5) + 0.1)
    torch.testing.assert_close(layer.bias.data, before[1] + 0.1)


def test_a_weight_may_get_its_first_gradient_later() -> None:
    """As DINO's prototypes; torch's fused SGD has no momentum for it and fails."""
    early, late = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Optim(name="sgd", lr=0.5, momentum=0.5).build([{"params": [("a", early), ("b", late)]}])
    early.grad = torch.ones(2)
    optimizer.step()
    early.grad, late.grad = torch.ones(2), torch.ones(2)
    optimizer.step()
    assert early.tolist() == [1 - 0.5 * (1 + 1.5)] * 2
    assert late.tolist() == [1 - 0.5] * 2


@pytest.mark.parametrize("name", ["sgd", "nesterov"])
def test_two_steps_of_sgd_are_the_formula(name: str) -> None:
    """m <- mu m + g; step by m, or by g + mu m with Nesterov."""
    weight = nn.Linear(1, 1, bias=False)
    optim = Optim(name, lr=0.1, weight_decay=0.0, momentum=0.5)
    optimizer = optim.build(optim.groups(weight))
    before = weight.weight.item()
    for gradient in (1.0, 2.0):
        weight.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
    steps = (1 + 2.5) if name == "sgd" else (1 + 0.5 * 1) + (2 + 0.5 * 2.5)
    assert weight.weight.item() == pytest.approx(before - 0.1 * steps)


def test_settings_that_cannot_work_are_refused() -> None:
    for keywords, words in (
        ({"name": "adam"}, "adamw, sgd, nesterov, lars, muon or auto"),
        ({"lr": 0.0}, "optim.lr must be positive"),
        ({"kernel_lr": 1e-2}, "a rate of muon's, and optim.name is adamw"),
        ({"name": "muon", "kernel_lr": 0.0}, "kernel_lr must be positive"),
        ({"weight_decay": -1.0}, "negative"),
        ({"betas": (0.9, 1.0)}, r"\[0, 1\)"),
        ({"name": "nesterov", "momentum": 0.0}, "needs a momentum"),
        ({"layer_decay": 1.5}, r"\(0, 1\]"),
    ):
        refused(words, Optim, **keywords)
    for keywords, words in (
        ({"rule": "linear"}, "constant"),
        ({"interval": "batch"}, "step or epoch"),
        ({"min_lr": -1}, "neg"),
    ):
        refused(words, Schedule, **keywords)
    with pytest.raises(UserError, match=r"fewer than train.epochs, got 5 and 3"):
        Schedule(warmup_epochs=5).attach(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1, 3, 1.0)
    refused("timm's group_matcher; Linear has none", lambda: Optim(layer_decay=0.5).groups(nn.Linear(1, 1)))
    refused("nothing to train", lambda: Optim().build(Optim().groups(nn.Linear(1, 1).requires_grad_(False))))


def test_rates_never_leave_their_bounds() -> None:
    for rule in ("cosine", "timm", "constant"):
        for each in ("step", "epoch"):
            schedule = Schedule(rule, each, 1.5, 1e-5, 1e-4)
            rates = [schedule.rate(update, 3, 5, 1e-2) for update in range(16)]
            assert all(1e-5 <= rate <= 1e-2 * (1 + 1e-12) and math.isfinite(rate) for rate in rates)


def test_muon_steps_matrices_along_their_polar_factor() -> None:
    """r 0.2 sqrt(max(R, C)) U V^T of the gradient U S V^T from rest, with singular values between 0.6 and 1.3."""
    torch.manual_seed(0)
    for shape in ((6, 10), (10, 6), (8, 3, 3, 3)):
        net = nn.Module()
        net.stem, net.inner = nn.Parameter(torch.randn(4, 3, 2, 2)), nn.Parameter(torch.randn(*shape))
        optim = Optim(name="muon", lr=0.1, weight_decay=0.0)
        before, slope = net.inner.detach().clone(), torch.randn(*shape)
        optimizer = optim.build(optim.groups(net))
        net.inner.grad, net.stem.grad = slope.clone(), torch.ones_like(net.stem)
        stem = net.stem.detach().clone()
        optimizer.step()
        moved = (before - net.inner.detach()).flatten(1) / (0.1 * 0.2 * max(before.flatten(1).shape) ** 0.5)
        u, _, vt = torch.linalg.svd(slope.flatten(1), full_matrices=False)
        inside = u.mT @ moved @ vt.mT
        assert ((inside.diagonal() > 0.6) & (inside.diagonal() < 1.3)).all()
        torch.testing.assert_close(
            inside, inside.diagonal().diag(), rtol=0, atol=0.06
        )  # 0.6 beside bfloat16's rounding
        torch.testing.assert_close(net.stem, stem - 0.1)  # Adam's first step is the sign of the gradient


def test_two_steps_of_muon_are_the_formula() -> None:
    """M <- beta M + (1 - beta) G; W <- (1 - lr decay) W - lr 0.2 sqrt(C) orthogonalize(beta M + (1 - beta) G)."""
    torch.manual_seed(0)
    net = nn.Module()
    net.stem, net.inner = nn.Parameter(torch.randn(4, 3, 2, 2)), nn.Parameter(torch.randn(6, 10))
    optim = Optim(name="muon", lr=0.1, weight_decay=0.5, momentum=0.8)
    optimizer = optim.build(optim.groups(net))
    weight, mean, length = net.inner.detach().clone(), torch.zeros(6, 10), 0.1 * 0.2 * 10**0.5
    for _ in range(2):
        net.inner.grad = slope = torch.randn(6, 10)
        mean = 0.8 * mean + 0.2 * slope
        weight = (1 - 0.1 * 0.5) * weight - length * orthogonalize(0.8 * mean + 0.2 * slope)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[net.inner]["momentum_buffer"], mean)
    torch.testing.assert_close(net.inner.detach(), weight, rtol=0, atol=2 * 0.05 * length)


def test_muon_finds_the_polar_factor_at_any_scale() -> None:
    """Four fifths of the singular values end between 0.65 and 1.25, none below 0.3."""
    torch.manual_seed(0)
    left, right = torch.linalg.qr(torch.randn(64, 64))[0], torch.linalg.qr(torch.randn(300, 64))[0]
    momentum = left * torch.logspace(0, -2, 64) @ right.mT
    for size in (1e-30, 1e-20, 1e-12, 1.0, 1e12, 1e25):
        step, *nothing = orthogonalize(torch.stack([size * momentum, torch.zeros_like(momentum), 1e-40 * momentum]))
        values = torch.linalg.svdvals(step)
        assert ((values > 0.65) & (values < 1.25)).float().mean() > 0.8
        assert values.min() > 0.3
        assert not torch.stack(nothing).any()


def test_muon_on_the_smaller_side_is_the_same_iteration() -> None:
    """Against X <- a X + (b X X^T + c (X X^T)^2) X written out in float64."""
    torch.manual_seed(0)
    a, b, c = COEFFICIENTS
    for rows, columns in ((24, 200), (200, 24), (32, 32)):
        rank = min(rows, columns)
        for falls in (torch.ones(rank), torch.logspace(0, -4, rank), torch.logspace(0, -8, rank), torch.eye(rank)[0]):
            left, right = (torch.linalg.qr(torch.randn(side, rank, dtype=torch.float64))[0] for side in (rows, columns))
            x = momentum = left * falls.double() @ right.mT
            x = x / torch.linalg.svdvals(x).pow(8).sum() ** (1 / 8)
            for _ in range(ITERATIONS):
                gram = x @ x.mT
                x = a * x + (b * gram + c * gram @ gram) @ x
            torch.testing.assert_close(orthogonalize(momentum[None].float())[0].double(), x, rtol=0, atol=1e-3)


def test_muon_changes_matrix_precision_inside_its_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    products, seen = torch.backends.mkldnn.matmul, []  # type: ignore[attr-defined]

    def looked(momentum: torch.Tensor) -> torch.Tensor:
        seen.append(products.fp32_precision)
        return orthogonalize(momentum)

    monkeypatch.setattr("viticulture.optim.muon.orthogonalize", looked)
    student, optim, before = small_vit(depth=1), Optim(name="muon"), products.fp32_precision
    optimizer = optim.build(optim.groups(student))
    student(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    assert set(seen) == {"bf16"}
    assert products.fp32_precision == before != "bf16"


def test_muon_takes_the_matrices_between_stem_and_head() -> None:
    student = small_vit(depth=1)
    routed = {name: group["use_muon"] for group in Optim(name="muon").groups(student) for name, _ in group["params"]}
    inner = {name for name, muon in routed.items() if muon}
    assert inner == {f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert routed.keys() == dict(student.named_parameters()).keys()


def test_muon_leaves_decayed_position_tables_to_adamw() -> None:
    student = nn.Module()
    student.table, student.inner = nn.Parameter(torch.zeros(9, 2)), nn.Parameter(torch.zeros(4, 4))
    vars(student)["no_weight_decay"] = lambda: {"table"}
    groups = Optim(name="muon", weight_decay=0.1, decay_tokens=True).groups(student)
    muon = {name: (group["use_muon"], group["weight_decay"]) for group in groups for name, _ in group["params"]}
    assert muon == {"table": (False, 0.1), "inner": (True, 0.1)}


def test_muon_leaves_a_guides_stem_and_head_to_adamw() -> None:
    net = timm.create_model("resnet10t", num_classes=3)
    groups = Optim(name="muon").groups(small_vit(depth=1), nn.ModuleDict({"guide": nn.ModuleDict({"net": net})}))
    muon = {name: group["use_muon"] for group in groups for name, _ in group["params"]}
    kernels = {name for name, parameter in net.named_parameters() if parameter.ndim > 1}
    assert {name for name in kernels if not muon[f"guides.guide.net.{name}"]} == {"conv1.0.weight", "fc.weight"}


def test_muon_leaves_the_stem_after_a_position_table_to_adamw() -> None:
    """PiT's positions, [1, D, H, W]."""
    with torch.device("meta"):
        student = timm.create_model("pit_ti_224", num_classes=3)
    groups = Optim(name="muon").groups(student)
    muon = {name: group["use_muon"] for group in groups for name, _ in group["params"]}
    assert not muon["pos_embed"]
    assert not muon["patch_embed.conv.weight"]
    assert muon["transformers.0.blocks.0.attn.qkv.weight"]


def test_kernels_have_a_separate_rate() -> None:
    student = small_vit(depth=1)
    student.blocks[0].mlp.fc2 = nn.Conv2d(4, 8, 1)
    groups = Optim(name="muon", lr=1e-3, kernel_lr=1e-2, layer_decay=0.5).groups(student)
    rates = {name: rate for name, (rate, _) in settings(groups).items()}
    assert rates["blocks.0.mlp.fc2.weight"] == pytest.approx(5e-3)
    assert rates["blocks.0.mlp.fc1.weight"] == pytest.approx(5e-4)
    assert rates["blocks.0.mlp.fc2.bias"] == pytest.approx(5e-4)
    assert rates["patch_embed.proj.weight"] == pytest.approx(2.5e-4)
    assert rates["head.weight"] == pytest.approx(1e-3)


def test_muon_resumes_from_its_state() -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = small_vit(depth=1)
        return net, Optim(name="muon").build(Optim(name="muon").groups(net))

    def steps(net: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            net(torch.randn(2, 3, 8, 8, generator=generator)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    whole, optimizer = fresh()
    steps(whole, optimizer, range(3))
    net, optimizer = fresh()
    steps(net, optimizer, range(2))
    other, later = fresh()
    other.load_state_dict(net.state_dict())
    later.load_state_dict(optimizer.state_dict())
    steps(other, later, range(2, 3))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=0)
