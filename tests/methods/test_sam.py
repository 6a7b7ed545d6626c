# SPDX-License-Identifier: Apache-2.0
"""Sharpness-aware minimization is the official step, also under the Trainer, on processes, resumed."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import Golden
from exact import CLOSE, in_double
from refusals import refused
from resumed import check_same_bits, interrupt_fit
from slowly import slow_but
from trained import train_apart, weights
from viticulture.methods.method import Method
from viticulture.optim import SAM, Optim
from viticulture.training.feed import training_loader
from viticulture.training.run import fit
from viticulture.training.session import Session, begin, reopen

RHO = 0.1
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}
SMALL: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": TINY,
    "data.per_class": 8,
    "data.val_fraction": 0,
    "augment.padded_crop.padding": 1,
    "train.epochs": 2,
    "train.batch_size": 16,
    "train.clip_norm": 1.0,
    "train.validate": "none",
    "schedule.warmup_epochs": 1,
    "optim.sam_rho": RHO,
    "engine.device": "cpu",
}
SGD = {"optim.name": "sgd", "optim.lr": 0.1}  # Adam makes whole steps of what is nothing but rounding


def session(folder: Path, **changes: Any) -> Session:
    overrides = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
    return begin("digits", "default/digits", 0, str(folder), False, overrides, "test")


def test_a_step_is_the_official_one(golden: Callable[[str], Golden]) -> None:
    """Perturbed weights and weights after the whole step over AdamW."""
    data = golden("boot_sam_step")
    layer = nn.Linear(4, 3)
    layer.load_state_dict(data.part("w/"))
    layer.double()  # so that the only rounding is the reference's, on any processor
    optim = Optim(lr=1e-3, weight_decay=0.05, decay_everything=True, sam_rho=RHO)
    optimizer = optim.build(optim.groups(layer))
    sam, visits = SAM(optimizer, RHO, layer), []

    def closure() -> Tensor:
        visits.append({name: parameter.detach().clone() for name, parameter in layer.named_parameters()})
        sam.zero_grad()
        loss = F.cross_entropy(layer(data["in/x"].double()), data["in/t"].long())
        loss.backward()
        return loss

    sam.step(closure)
    foot, uphill = visits
    for name, parameter in layer.named_parameters():
        assert torch.equal(foot[name], data[f"w/{name}"].double())
        torch.testing.assert_close(uphill[name].float(), data[f"mid/{name}"], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(parameter.data.float(), data[f"after/{name}"], rtol=1e-6, atol=1e-7)


class Parameters(nn.Module):
    """Weights with preset gradients, and a buffer that counts."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        self.weights = nn.ParameterList([draw(3, 4), draw(5).double(), draw(2)])
        self.slopes = [scale * draw(3, 4), scale * draw(5).double(), None]
        self.passes = nn.Buffer(torch.zeros(()))
        self.visits: list[list[Tensor]] = []

    def __call__(self) -> Tensor:
        self.visits.append([weight.detach().clone() for weight in self.weights])
        self.passes += 1
        for weight, slope in zip(self.weights, self.slopes, strict=True):
            weight.grad = None if slope is None else slope.clone()
        return torch.zeros(())


@pytest.mark.parametrize("scale", [1.0, 65536.0, 0.0])
def test_the_perturbation_has_the_requested_norm_at_any_gradient_scale(scale: float) -> None:
    net = Parameters(scale)
    sam = SAM(torch.optim.SGD(net.parameters(), lr=0.0), 0.3, net)
    sam.step(net)
    foot, uphill = net.visits
    ways = [(up - down).flatten().double() for up, down in zip(uphill, foot, strict=True)]
    assert torch.cat(ways).norm() == pytest.approx(0.3 if scale else 0.0, rel=1e-5)
    assert not ways[2].any()
    if scale:
        assert F.cosine_similarity(ways[0], net.slopes[0].flatten().double(), dim=0) == pytest.approx(1)
    assert all(map(torch.equal, net.weights, foot))
    assert net.passes == 1
    assert not sam.perturbed


def test_its_state_is_that_of_its_base_optimizer() -> None:
    net, other = Parameters(1.0), Parameters(1.0)
    sams = [SAM(torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9), 0.3, each) for each in (net, other)]
    for _ in range(2):
        sams[0].step(net)
    other.load_state_dict(net.state_dict())
    sams[1].load_state_dict(deepcopy(sams[0].state_dict()))
    for sam, each in zip(sams, (net, other), strict=True):
        sam.param_groups[0]["lr"] = 0.01
        sam.step(each)
    assert all(map(torch.equal, net.weights, other.weights))


@pytest.mark.parametrize("changes", [{"train__accumulate": 2}, {"engine__precision": "16-mixed"}])
def test_portions_and_scaled_gradients_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    refused(r"set train\.accumulate to 1 and engine\.precision", session, tmp_path / "run", **changes)
    refused("sam_rho must be positive, got 0", Optim, sam_rho=0.0)


def loop(method: Method, run: Session, epochs: int) -> list[float]:
    """Run SAM in a plain loop on whole batches; return each epoch's mean loss at the unperturbed weights."""
    loader = training_loader(run)
    optimizer = method.optim.build(method.optim.groups(method.student))
    schedule = method.schedule.attach(optimizer, len(loader), epochs, method.optim.lr)
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    method.train()
    means = [0.0] * epochs
    for epoch in range(epochs):
        for step in range(len(loader)):
            batch = loader.batch(epoch, step)
            optimizer.zero_grad()
            loss = torch.stack(list(method.losses(batch).values())).sum()
            means[epoch] += loss.item() / len(loader)
            loss.backward()
            weights = [p.detach().clone() for p in stepped]
            buffers = [b.clone() for b in method.buffers()]
            norm = torch.cat([p.grad.flatten() for p in stepped if p.grad is not None]).norm()
            with torch.no_grad():
                for p in stepped:
                    assert p.grad is not None
                    p += RHO * p.grad / norm
            optimizer.zero_grad()
            torch.stack(list(method.losses(batch).values())).sum().backward()
            with torch.no_grad():
                for p, old in zip([*stepped, *method.buffers()], weights + buffers, strict=True):
                    p.copy_(old)
            torch.nn.utils.clip_grad_norm_(stepped, 1.0)
            optimizer.step()
            schedule.step()
    return means


@pytest.mark.parametrize("student", slow_but(("dhvt_nano",), ["vit_nano", "dhvt_nano"]))
def test_the_trainer_is_a_plain_loop(tmp_path: Path, student: str) -> None:
    """Weights and BatchNorm statistics, with clipping and a warm-up."""
    options = {"student__name": student, "student__options": TINY, **SGD}
    run, other = (in_double(session(tmp_path / name, **options)) for name in ("run", "other"))
    fit(run)
    losses = loop(other.method, other, SMALL["train.epochs"])
    for name, value in other.method.student.state_dict().items():
        torch.testing.assert_close(run.method.student.state_dict()[name], value, **CLOSE)
    assert not run.method.step.perturbed
    rows = [line.split(",") for line in run.run.metrics.read_text().splitlines()]
    logged = [(int(step), float(value)) for step, _, name, value in rows if name == "train/loss_epoch"]
    assert [step for step, _ in logged] == [4, 9]  # the last of five steps an epoch
    assert [value for _, value in logged] == pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    """Gloo, two processes against one, up to the order of sums."""
    train_apart(tmp_path / "two", {**SMALL, **SGD, "engine.devices": 2})
    fit(session(tmp_path / "one", **SGD))
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", slow_but(("32",), ["32", "bf16-mixed"]))
def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(tmp_path: Path, precision: str) -> None:
    """Bit for bit, EMA, dropout and drop-path included, in both precisions; stopped perturbed, in mid-epoch."""
    options = {**TINY, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1}
    settings = {"student__options": options, "train__ema_decay": 0.9, "engine__precision": precision}
    settings |= {"engine__checkpoint_minutes": 1e-9}
    fit(session(tmp_path / "whole", **settings))
    broken = session(tmp_path / "broken", **settings)
    interrupt_fit(broken, calls=2 * 6 + 1)  # two passes a step: before the seventh step's perturbed pass
    assert broken.method.step.perturbed
    fit(reopen(str(tmp_path / "broken"), None))
    for which in ("last", "ema"):
        check_same_bits(weights(tmp_path / "whole", which), weights(tmp_path / "broken", which))
