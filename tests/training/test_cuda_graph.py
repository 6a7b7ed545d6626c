# SPDX-License-Identifier: Apache-2.0
"""Steps in one CUDA graph: what cannot be captured is refused, and captured steps are the usual ones."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from pairs import Data, pair
from simulated_gpu import simulated_gpu
from slowly import slow_but
from viticulture.config.resolve import Config
from viticulture.config.sections import Engine
from viticulture.data.transforms.transform import send
from viticulture.errors import UserError
from viticulture.optim.muon import Muon
from viticulture.training import cuda_graph
from viticulture.training.assemble import assemble
from viticulture.training.cuda_graph import CapturedModule, is_captured
from viticulture.training.processes import check_devices
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import Session

CASES = [
    ("supervised", "none", "vit"),
    ("supervised", "none", "dhvt"),
    ("mae", "none", "mae"),
    ("simmim", "none", "vit"),
    ("supervised", "bootstrap", "vit"),
    ("supervised", "shared bootstrap", "vit"),
    ("supervised", "co_advise", "cit"),
    ("supervised", "attention_link", "vit"),
    ("supervised", "logits", "vit with dropout"),
    ("supervised", "one head", "vit"),
    ("supervised", "attention_distillation", "vit"),
    ("supervised", "with hidden states", "vit"),
    ("supervised", "relation_distillation", "vit"),
    ("distillation", "feature_distillation", "vit"),
    ("supervised", "none", "cnn"),
    ("supervised", "none", "sparse vit"),
    ("supervised", "none", "agent"),
]
FAST = [case for case in CASES if case[1:] in (("none", "dhvt"), ("none", "mae"), ("shared bootstrap", "vit"))]


def begun(
    case: tuple[str, str, str], data: Data, teachers: Path, folder: Path, captured: bool, **sections: dict[str, Any]
) -> Session:
    """Start the session of a case: a schedule with warm-up, in float32."""
    session = pair(*case, data, teachers)
    values = session.config.values
    changed: dict[str, dict[str, Any]] = {
        "engine": {"precision": "32", "cuda_graph": captured},
        "train": {"epochs": 4},
        "schedule": {"warmup_epochs": 1},
        **sections,
    }
    values = {**values, **{name: {**values[name], **of_section} for name, of_section in changed.items()}}
    config = Config("pair", values)
    made, warnings = assemble(config, session.dataset, seed=0)
    run = RunFolder.create(folder)
    run.write("run.json", {})
    return replace(session, run=run, config=config, method=made, warnings=warnings)


class Seen(Callback):
    """Records losses, rates, and whether a step is a replay; rounds rates to float32, as a graph reads them."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.rates: list[float] = []
        self.replayed: list[bool] = []

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = float(torch.tensor(group["lr"]))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.losses.append(pl_module.method.logs["loss"])
        self.rates.append(pl_module.rate)
        self.replayed.append(isinstance(pl_module, CapturedModule) and pl_module.graph is not None)


def trained(session: Session, until: int | None = None) -> tuple[Seen, dict[str, Tensor]]:
    """Train; return what was seen, and losses and weights on the CPU."""
    seen = Seen()
    fit(session, more=[seen], until=until)
    values = {"losses": torch.stack(seen.losses).cpu()}
    stored = session.method.state_dict().items()
    return seen, values | {name: value.cpu() for name, value in stored if isinstance(value, Tensor)}


def compared(case: tuple[str, str, str], data: Data, teachers: Path, folder: Path, **sections: Any) -> list[Any]:
    """Return losses and weights of usual and captured steps, after checks that both were taken."""
    results = []
    for captured in (False, True):
        torch.manual_seed(0)
        seen, values = trained(begun(case, data, teachers, folder / str(captured), captured, **sections))
        results.append(values)
        assert seen.replayed == [captured and step >= 3 for step in range(8)]
        assert len(set(seen.rates)) == 7
    assert len(set(results[0]["losses"].tolist())) == 8
    return results


@pytest.mark.parametrize(("method", "guide", "student"), slow_but(FAST, CASES))
def test_captured_steps_are_the_usual_ones(
    method: str, guide: str, student: str, data: Data, teachers: Path, tmp_path: Path
) -> None:
    """Three steps before the capture and five after it, in four epochs whose rate rises and falls; drop path and
    dropout included. A number that Python computes in each step, stale inputs, a stale teacher, a rate that is not
    filled in or logs that are overwritten would show."""
    with simulated_gpu():
        usual, captured = compared((method, guide, student), data, teachers, tmp_path)
    for name, value in usual.items():
        assert torch.equal(captured[name], value), name
    ours, theirs = ((tmp_path / name / "metrics.csv").read_text() for name in ("True", "False"))
    assert ours == theirs


def test_nesterov_is_captured(data: Data, teachers: Path, tmp_path: Path) -> None:
    optim = {"name": "nesterov", "lr": 0.1}
    with simulated_gpu():
        usual, captured = compared(("supervised", "none", "dhvt"), data, teachers, tmp_path, optim=optim)
    assert all(torch.equal(captured[name], value) for name, value in usual.items())


def test_muon_is_captured(data: Data, teachers: Path, tmp_path: Path) -> None:
    """Roughly, as a rate in a tensor rounds otherwise and a small singular value's direction is rounding's."""
    with simulated_gpu():
        usual, captured = compared(("supervised", "none", "dhvt"), data, teachers, tmp_path, optim={"name": "muon"})
    torch.testing.assert_close(captured["losses"], usual["losses"], rtol=1e-2, atol=1e-3)


def test_muon_takes_its_rate_as_a_tensor() -> None:
    torch.manual_seed(0)
    start, slopes, ends = torch.randn(4, 6).double(), torch.randn(3, 4, 6).double(), []
    for rate in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        weight = torch.nn.Parameter(start.clone())
        optimizer = Muon([{"params": [weight], "use_muon": True, "weight_decay": 0.1}], 1.0, (0.9, 0.99), 0.9)
        optimizer.param_groups[0]["lr"] = rate
        for slope in slopes:
            weight.grad = slope.clone()
            optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends)


def test_steps_in_bfloat16_are_captured(data: Data, teachers: Path, tmp_path: Path) -> None:
    mixed = {"precision": "bf16-mixed"}
    results = []
    with simulated_gpu():
        for captured in (False, True):
            torch.manual_seed(0)
            engine = {**mixed, "cuda_graph": captured}
            case = ("supervised", "none", "vit")
            results.append(trained(begun(case, data, teachers, tmp_path / str(captured), captured, engine=engine))[1])
    assert all(torch.equal(results[1][name], value) for name, value in results[0].items())


def resumed(data: Data, teachers: Path, folder: Path) -> list[dict[str, Tensor]]:
    """Return losses and weights after four epochs at once, and after two and two."""
    results = []
    for stops in (False, True):
        torch.manual_seed(0)
        session = begun(("supervised", "logits", "vit"), data, teachers, folder / str(stops), True)
        if stops:
            trained(session, until=2)
            torch.manual_seed(1)
            fresh, warnings = assemble(session.config, session.dataset, seed=0)
            session = replace(session, method=fresh, warnings=warnings, begun=True)
        results.append(trained(session)[1])
    return results


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("gpu", [simulated_gpu, pytest.param(nullcontext, marks=on_a_gpu)])
def test_a_captured_run_resumes_bit_for_bit(gpu: Any, data: Data, teachers: Path, tmp_path: Path) -> None:
    """Steps before the capture read their rates as captured ones do."""
    with gpu():
        whole, parts = resumed(data, teachers, tmp_path)
    assert torch.equal(whole.pop("losses")[4:], parts.pop("losses"))
    assert all(torch.equal(parts[name], value) for name, value in whole.items())


@on_a_gpu
@pytest.mark.parametrize(("method", "guide", "student"), CASES)
def test_a_gpu_replays_the_usual_steps(
    method: str, guide: str, student: str, data: Data, teachers: Path, tmp_path: Path
) -> None:
    """With SGD, as Adam makes whole steps of rounding. Before `AUTO` is true these two tests must have passed."""
    plain = {"optim": {"name": "sgd", "lr": 0.01}}
    usual, captured = compared((method, guide, student), data, teachers, tmp_path, **plain)
    for name, value in usual.items():
        torch.testing.assert_close(captured[name], value, rtol=1e-3, atol=1e-4)


def test_the_simulated_capture_refuses_what_a_capture_refuses() -> None:
    with simulated_gpu() as gpu:
        here, there = torch.arange(3.0), torch.arange(3.0, device=gpu)
        refused: tuple[Callable[[], object], ...] = (
            lambda: there[0].item(),
            lambda: bool(there.sum()),
            there.tolist,
            there.cpu,
            lambda: there.to("cpu", non_blocking=True),
            there.nonzero,
            lambda: there[there > 1],
            lambda: there.masked_fill(there > 1, 0).unique(),
            lambda: there.repeat_interleave(there.long()),
            lambda: torch.where(there > 1)[0],
            lambda: there[[0, 2]],
            lambda: there.new_tensor(2.0),
            lambda: torch.allclose(there, there),
            lambda: repr(there),
            lambda: send(here, gpu),
            lambda: there.copy_(here),
            lambda: there * torch.tensor(2.0),
            lambda: torch.tensor(2.0, device=gpu),
            lambda: torch.rand(3),
            lambda: torch.randperm(3),
            torch.cuda.memory_allocated,
            torch.cuda.synchronize,
            torch.cuda.Event().synchronize,
        )
        for call in refused:
            with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                call()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):  # kernels alone
            labels = torch.where(there > 1, 0, there[:1].clamp(min=0)).long().masked_fill_(there > 1, 2)
            torch.nn.functional.one_hot(labels, 3).float().sort(stable=True)
            torch.full((), 2.0, device=gpu).add_(torch.rand(3, device=gpu).sum())
        there[0].item()  # after a capture all is as before


def test_the_simulated_capture_computes_in_replays_alone() -> None:
    with simulated_gpu() as gpu:
        x, weight, factor = torch.ones(3, device=gpu), torch.ones(3, device=gpu), 2.0
        graph, state = torch.cuda.CUDAGraph(), torch.get_rng_state()
        with torch.cuda.graph(graph):
            weight += factor * x.view(3, 1)[:, 0]
            noise = torch.rand(3, device=gpu)
        assert weight.tolist() == [1, 1, 1]
        assert torch.equal(torch.get_rng_state(), state)
        first = torch.rand(3, device=gpu).tolist()
        torch.set_rng_state(state)
        x.fill_(5.0)
        factor = 3.0  # of Python, which a graph does not read again
        graph.replay()
        assert weight.tolist() == [11, 11, 11]
        assert noise.tolist() == first
        graph.replay()
        assert weight.tolist() == [21, 21, 21]
        assert noise.tolist() != first


def test_a_step_that_waits_is_refused(
    data: Data, teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begun(("supervised", "none", "vit"), data, teachers, tmp_path, True)
    usual = session.method.losses

    def losses(batch: Any) -> dict[str, Tensor]:
        terms = usual(batch)
        return {name: term * float(term.detach() > 0) for name, term in terms.items()}

    monkeypatch.setattr(session.method, "losses", losses)
    with simulated_gpu(), pytest.raises(UserError, match=r"cannot capture this step \(.*waits.*set it to false"):
        trained(session)


def test_another_shape_is_refused(data: Data, teachers: Path, tmp_path: Path) -> None:
    class Cut(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 5:
                batch["label"] = batch["label"][:2]

    session = begun(("supervised", "none", "vit"), data, teachers, tmp_path, True)
    with simulated_gpu(), pytest.raises(UserError, match=r"one shape, got label \[2\] after \[4\]; set"):
        fit(session, more=[Cut()])


class Inside(Callback):
    def on_before_optimizer_step(self, *_: Any) -> None: ...


@pytest.mark.parametrize(
    ("case", "sections", "reason"),
    [
        (("supervised", "none", "vit"), {"optim": {"sam_rho": 0.05}}, "sam_rho 0.05 takes two gradients"),
        (("supervised", "none", "vit"), {"optim": {"weight_decay_end": 0.4}}, "weight_decay_end 0.4 is another number"),
        (("supervised", "none", "vit"), {"optim": {"name": "lars"}}, "lars reads its rate"),
        (("supervised", "none", "vit"), {"train": {"accumulate": 2}}, "accumulate 2 divides it"),
        (("supervised", "none", "vit"), {"engine": {"devices": 2}}, "2 processes exchange gradients"),
        (("supervised", "none", "vit"), {"engine": {"precision": "16-mixed"}}, "16-mixed reads on the CPU"),
        (("supervised", "logits", "vit"), {"engine": {"replay_gb": 1.0}}, "replay_gb 1.0 reads teachers' outputs"),
        (("moco_v3", "none", "vit"), {}, "method moco_v3 does not state `capturable`"),
    ],
)
def test_what_is_not_captured_is_refused_or_noted(
    case: tuple[str, str, str],
    sections: dict[str, Any],
    reason: str,
    data: Data,
    teachers: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = pair(*case, data, teachers)

    def config(chosen: bool | None) -> Config:
        engine = {"cuda_graph": chosen, **sections.get("engine", {})}
        parts = {**sections, "engine": engine}
        values = session.config.values
        return Config("pair", {**values, **{name: {**values[name], **part} for name, part in parts.items()}})

    with pytest.raises(UserError, match=f"engine.cuda_graph captures the whole step, and .*{reason}.* off"):
        assemble(config(True), session.dataset, seed=0)
    assert not is_captured(config(None), on_gpu=True)
    assert not capsys.readouterr().err
    monkeypatch.setattr(cuda_graph, "AUTO", True)
    assert not is_captured(config(None), on_gpu=True)
    assert reason in capsys.readouterr().err


def test_by_default_steps_are_captured_where_it_has_been_tried(
    data: Data, teachers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = pair("supervised", "none", "vit", data, teachers).config
    assert not is_captured(config, on_gpu=True)
    monkeypatch.setattr(cuda_graph, "AUTO", True)
    assert is_captured(config, on_gpu=True)
    assert not is_captured(config, on_gpu=False)
    assert not is_captured(config, on_gpu=True, callbacks=[Inside()])
    assert "Inside.on_before_optimizer_step runs inside the step" in capsys.readouterr().err


def test_a_graph_needs_a_gpu() -> None:
    with pytest.raises(UserError, match="cuda_graph is true, but the training runs on no NVIDIA GPU"):
        check_devices(Engine(cuda_graph=True, device="cpu"))
