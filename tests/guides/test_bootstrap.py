# SPDX-License-Identifier: Apache-2.0
"""The guide of Bootstrapping ViTs: its terms, its gradients, and its runs."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import boot_names
from conftest import Golden
from exact import CLOSE, in_double
from plain_loop import EXACT, check_plain_loop
from refusals import refused
from resumed import check_same_bits, check_same_weights, whole_and_resumed
from slowly import slow_but
from trained import weights
from viticulture.guides.bootstrap import (
    Bootstrap,
    Features,
    Mutual,
    combine_gradients,
    feature_distance,
    shortened_grids,
    shortened_sequences,
)
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.agent.agent_cnn import AgentShape, ResStem, Sizes
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import Taps
from viticulture.training.metrics import read_curves
from viticulture.training.run import fit
from viticulture.training.session import Session, begin

Load = Callable[[str], Golden]


def maps(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("case", ["cnn_longer", "same", "vit_longer"])
def test_the_feature_distance_is_that_of_the_authors_code(golden: Load, case: str) -> None:
    """Value and gradient of their hint loss, map longer, equal and shorter than the sequence."""
    data = golden("boot_hint_loss")
    sequence = data[f"in/{case}_vit"].requires_grad_()  # [T, B, D], class token first
    map_ = sequence[1:].permute(1, 2, 0).unflatten(2, (4, 4))
    loss = feature_distance(map_, data[f"in/{case}_cnn"], "sequence", "standardize")
    torch.testing.assert_close(loss, data[f"out/{case}_loss"], rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss, sequence)
    torch.testing.assert_close(gradient, data[f"gin/{case}_vit"], rtol=1e-5, atol=1e-6)


def test_both_scales_agree_on_centered_tokens() -> None:
    """Standardizing is centering, then division by length, times sqrt(D): Eq. (6) averaged over tokens."""
    student, agent = (side - side.mean(1, keepdim=True) for side in maps(2, 2, 64, 4, 4))
    code = feature_distance(student, agent, "sequence", "standardize")
    paper = feature_distance(student, agent, "sequence", "length")
    torch.testing.assert_close(code, paper, rtol=1e-4, atol=0)  # layer norm adds 1e-5 to a variance near 1
    torch.testing.assert_close(feature_distance(student, 7 * agent, "sequence", "length"), paper)
    torch.testing.assert_close(feature_distance(student, -student, "sequence", "length"), paper.new_tensor(4.0))
    torch.testing.assert_close(feature_distance(student, student, "grid", "length"), paper.new_tensor(0.0))


def test_the_target_gets_no_gradient() -> None:
    student, agent = maps(2, 8, 4, 4).requires_grad_(), maps(2, 8, 8, 8, seed=1).requires_grad_()
    feature_distance(student, agent, "sequence", "standardize").backward()
    assert agent.grad is None
    assert student.grad is not None


def test_only_the_grid_adaptation_preserves_places() -> None:
    small = maps(1, 3, 4, 4)
    large = small.repeat_interleave(2, 2).repeat_interleave(2, 3)
    one, other = shortened_grids(small, large)
    torch.testing.assert_close(one, other)
    one, other = shortened_sequences(small, large)
    assert one.shape == other.shape == (1, 3, 16)
    torch.testing.assert_close(other[0, :, 0], (small[0, :, 0, 0] + small[0, :, 0, 1]) / 2)  # 4 of 8 columns of row 0
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(
    ("student", "agent", "joined"),
    [
        ((1.0, 0.0), (1.0, 1.0), (2.0, 1.0)),  # acute: the plain sum
        ((1.0, 0.0), (-1.0, 1.0), (1.0, 1.0)),  # obtuse: what opposes the student is gone
        ((2.0, 0.0), (-1.0, 1.0), (2.0, 1.0)),  # the length of the student's does not matter for what goes
        ((1.0, 0.0), (-3.0, 3.0), (1.0, 3.0)),  # what stays grows with the agent's
        ((1.0, 0.0), (-1.0, 0.0), (1.0, 0.0)),  # opposite: nothing of the agent's is left
        ((0.0, 0.0), (-1.0, 2.0), (-1.0, 2.0)),  # no student gradient, nothing to oppose
        ((1.0, 2.0), (0.0, 0.0), (1.0, 2.0)),
    ],
)
def test_aligned_gradients_in_two_dimensions(
    student: tuple[float, ...], agent: tuple[float, ...], joined: tuple
) -> None:
    """Algorithm 1, line 8, by hand, with the two components in separate parameters."""
    own = [torch.tensor([x]) for x in student]
    pairs = [(v, torch.tensor([a])) for v, a in zip(own, agent, strict=True)]
    cosine = combine_gradients(pairs, align=True)
    assert torch.cat(own).tolist() == pytest.approx(joined)
    expected = torch.cosine_similarity(torch.tensor(student), torch.tensor(agent), dim=0)
    torch.testing.assert_close(cosine, expected)


def test_the_aligned_gradient_is_orthogonal() -> None:
    """<g_A', g_V> = 0 after the projection, over several parameters of several shapes."""
    student = [maps(3, 4), maps(5, seed=1)]
    agent = [-0.3 * part + 0.1 * maps(*part.shape, seed=2) for part in student]
    before = [part.clone() for part in student]
    assert combine_gradients(list(zip(student, agent, strict=True)), align=True) < 0
    left = [now - then for now, then in zip(student, before, strict=True)]
    product = sum((change * then).sum() for change, then in zip(left, before, strict=True))
    assert abs(float(product)) < 1e-6 * float(sum((then * then).sum() for then in before))  # products in float32


def test_without_alignment_gradients_are_summed() -> None:
    student, agent = maps(4), -maps(4)
    combine_gradients([(student, agent)], align=False)
    torch.testing.assert_close(student, torch.zeros(4, dtype=torch.float64))


GOLDEN_TASK = DataSpec(tuple("abcde"), (64, 64), (0.5,) * 3, (0.5,) * 3)


def loaded(data: Golden, weights: Literal["own", "shared"]) -> tuple[nn.Module, Bootstrap]:
    """Load the small networks of a golden step: width 18, 3 blocks of 9 heads, 64 px, patch 16."""
    shape = {"embed_dim": 18, "depth": 3, "num_heads": 9, "mlp_ratio": 2}
    student = create_student("vit_nano", GOLDEN_TASK, 16, shape)
    for module in student.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    halves = 0.5 if weights == "shared" else 1.0
    guide = Bootstrap(student, GOLDEN_TASK, agent=AgentShape(pool_after=[0, 1]), weights=weights, weight=halves)
    guide.agent.stem = ResStem(Sizes(16, 18, 3, 9, 36), 6, 3, "default")  # narrower than the published one
    ours, agents = boot_names.both(data.part("w/"))
    student.load_state_dict(ours)
    wanting = guide.agent.load_state_dict(agents, strict=False)
    assert not wanting.unexpected_keys
    assert all("num_batches" in key or "running" in key for key in wanting.missing_keys)
    guide.start_epoch(data.about["config"]["epoch"], data.about["config"]["total_epoch"])
    return student.train(), guide.train()


@pytest.mark.parametrize(("file", "weights"), [("boot_joint_step", "own"), ("boot_shared_step_prenorm", "shared")])
def test_a_step_is_that_of_the_authors_code(golden: Load, file: str, weights: Literal["own", "shared"]) -> None:
    """Logits, features, every term, the weighted sum and every gradient of one step, at epoch 60 of 240."""
    data = golden(file)
    student, guide = loaded(data, weights)
    batch = {"image": data["in/x"], "label": data["in/label"].long()}
    setup = Setup(student, GOLDEN_TASK, {"bootstrap": guide})
    method = Supervised(setup, label_weight=guide.weight).train()
    readings = method.taps(batch["image"])
    logits, maps_ = guide.agent.forward_with_features(batch["image"])
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(readings.outputs[0], data["out/logits_vit"], **close)
    torch.testing.assert_close(logits, data["out/logits_cnn"], **close)
    for block in range(3):
        torch.testing.assert_close(readings.blocks[block].transpose(0, 1), data[f"out/feat_vit{block}"], **close)
        torch.testing.assert_close(maps_[block], data[f"out/feat_cnn{block}"], **close)

    terms = method.losses(batch)
    config = data.about["config"]
    totals = config.get("weighted_totals_at_epoch") or {"joint": config["weighted_total_at_epoch"]}
    assert sum(float(term.detach()) for term in terms.values()) == pytest.approx(sum(totals.values()), rel=1e-4)
    torch.stack(list(terms.values())).sum().backward()
    guide.after_backward()
    found = {name: p.grad for name, p in student.named_parameters()}
    found_agent = {name: p.grad for name, p in guide.agent.named_parameters() if p.grad is not None}
    ours, agents = boot_names.both(data.part("grad/"))
    assert ours
    assert agents
    for expected, gradients in ((ours, found), (agents, found_agent)):
        for name, value in expected.items():
            torch.testing.assert_close(gradients[name], value, **close, msg=lambda m, n=name: f"{n}: {m}")
    norms = config["grad_l2_norms"]
    lengths = boot_names.both({name: torch.full_like(data[f"w/{name}"], norms[name]) for name in norms})
    for expected, gradients in zip(lengths, (found, found_agent), strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(
                gradients[name].norm(), value.flatten()[0], rtol=1e-3, atol=1e-4, msg=lambda m, n=name: n + m
            )


TINY = {"embed_dim": 16, "depth": 2, "num_heads": 4}
RUN: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {**TINY, "proj_drop_rate": 0.1},
    "data.per_class": 4,
    "train.epochs": 2,
    "train.batch_size": 8,
    "train.validate": "test",
    "train.ema_decay": 0.9,
    "schedule.warmup_epochs": 0,
    "method.label_weight": 0.5,
    "guides.bootstrap.weight": 0.5,
    "guides.bootstrap.weights": "aligned",
}


def start(out: Path, **overrides: Any) -> Session:
    return begin("digits", "default/digits", 0, str(out), False, RUN | overrides, "test")


def test_a_run_with_a_shared_agent_resumes_exactly(tmp_path: Path) -> None:
    whole, again = whole_and_resumed(start, tmp_path)
    check_same_bits(whole.method.state_dict(), again.method.state_dict())
    check_same_weights(whole, again, ("last", "ema"))


@pytest.mark.parametrize(
    ("weights", "accumulate"),
    slow_but([("own", 1), ("shared", 1), ("aligned", 2)], itertools.product(["own", "shared", "aligned"], [1, 2])),
)
def test_the_trainer_is_a_plain_loop_with_an_agent(tmp_path: Path, weights: str, accumulate: int) -> None:
    """BatchNorm of the agent is frozen, since micro-batches change its statistics."""
    overrides = {"guides.bootstrap.weights": weights, "train.accumulate": accumulate, "train.clip_norm": 0.5}
    overrides |= {"student.options": TINY, "train.ema_decay": None, "optim.name": "sgd", "optim.lr": 0.1}
    overrides |= {"train.validate": "none"}
    session, twin = start(tmp_path / "run", **overrides), start(tmp_path / "other", **overrides)
    if accumulate > 1:  # sums in another order
        session, twin = in_double(session), in_double(twin)
        hold_still(session.method)
        hold_still(twin.method)
    check_plain_loop(session, twin, EXACT if accumulate == 1 else CLOSE)


def hold_still(method: nn.Module) -> None:
    """Keep every BatchNorm at its starting statistics."""
    for module in method.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.train = lambda mode=True, module=module: module  # type: ignore[method-assign,misc]


TWO = """
import sys
import torch
sys.path[:0] = sys.argv[3:]
from exact import in_double
from test_bootstrap import TINY, fit, hold_still, start
from pathlib import Path
torch.set_num_threads(1)
settings = {"optim.name": "sgd", "optim.lr": 0.1, "student.options": TINY, "train.ema_decay": None, "train.epochs": 1}
settings |= {"engine.devices": int(sys.argv[2]), "engine.device": "cpu", "train.validate": "none"}
session = in_double(start(Path(sys.argv[1]), **settings))
hold_still(session.method)
fit(session)
"""


@pytest.mark.slow
def test_two_processes_align_as_one(tmp_path: Path) -> None:
    """In double precision; BatchNorm is frozen, because on a CPU each process has its statistics."""
    script = tmp_path / "two.py"
    script.write_text(TWO)
    found = []
    for devices in (1, 2):
        words = [
            sys.executable,
            script,
            tmp_path / str(devices),
            devices,
            Path(__file__).parents[1],
            Path(__file__).parent,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found.append(weights(tmp_path / str(devices)))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, **CLOSE)


def test_saved_weights_hold_no_agent(tmp_path: Path) -> None:
    session = start(tmp_path / "run")
    fit(session)
    plain = create_student("vit_nano", session.method.data_spec, 2, RUN["student.options"]).state_dict()
    for which in ("last", "ema"):
        assert weights(session.run.path, which).keys() == plain.keys()
    curves = read_curves(session.run.metrics)
    assert len(curves["test/bootstrap_agent_accuracy"]) == 2
    assert {"train/bootstrap_gradient_cosine", "train/bootstrap_gradient_conflict"} <= curves.keys()
    assert [value for _, value in curves["train/bootstrap_feature_scale"]] == [1.0, 0.5]


TASK = DataSpec(("a", "b", "c"), (32, 32), (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    ("student", "options"),
    [
        ("deit_tiny_distilled_patch16_224", {"embed_dim": 48, "depth": 3, "num_heads": 3}),
        ("dhvt_nano", {}),
        ("vit_tiny_patch16_224", {"embed_dim": 48, "depth": 3, "num_heads": 3, "reg_tokens": 2}),
    ],
)
def test_other_students_with_square_grids_take_an_agent(student: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = create_student(student, TASK, 8, options).train()
    guide = Bootstrap(network, TASK).train()
    batch = {"image": torch.randn(2, 3, 32, 32), "label": torch.tensor([0, 2])}
    readings = Taps(network, guide.needs)(batch["image"])
    terms = guide.losses(batch, readings)
    assert set(terms) == {"agent_label", "from_agent", "to_agent", "features"}
    assert all(term.isfinite() for term in terms.values())
    (taught,) = torch.autograd.grad(terms["from_agent"], readings.outputs[-1], retain_graph=True)
    assert taught.abs().sum() > 0
    for logits in readings.outputs:
        assert torch.autograd.grad(terms["to_agent"], logits, retain_graph=True, allow_unused=True) == (None,)
    if len(readings.outputs) > 1:
        assert torch.autograd.grad(terms["from_agent"], readings.outputs[0], retain_graph=True, allow_unused=True) == (
            None,
        )
        others = (readings.outputs[0] + torch.randn(2, 3), *readings.outputs[1:])
        again = guide.losses(batch, replace(readings, output=others))
        torch.testing.assert_close(again["to_agent"], terms["to_agent"])


def test_terms_without_weight_are_not_computed() -> None:
    network = create_student("vit_nano", TASK, 8).train()
    batch = {"image": torch.randn(2, 3, 32, 32), "label": torch.tensor([0, 2])}
    guide = Bootstrap(network, TASK, mutual=Mutual(weight=0))
    readings = Taps(network, guide.needs)(batch["image"])
    assert set(guide.losses(batch, readings)) == {"agent_label", "features"}
    guide.start_epoch(4, 4)
    assert set(guide.losses(batch, readings)) == {"agent_label"}
    guide = Bootstrap(network, TASK, features=Features(decay="none"))
    guide.start_epoch(4, 4)
    assert "features" in guide.losses(batch, readings)


def test_the_decay_is_the_authors(golden: Load) -> None:
    """1 - epoch / epochs, constant within an epoch."""
    data, network = golden("boot_decay_strategy"), create_student("vit_nano", TASK, 8)
    guide = Bootstrap(network, TASK)
    for epoch, share in zip(data["in/epoch"].tolist(), data["out/hint_vit"].tolist(), strict=True):
        guide.start_epoch(epoch, 240)
        assert guide.feature_scale == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: Bootstrap(s, TASK, weight=0), "weight must be positive"),
        (lambda s: Bootstrap(s, TASK, weights="both"), "own, shared or aligned"),  # type: ignore[arg-type]
        (lambda s: Bootstrap(s, TASK, features=Features(blocks=[0, 4])), "0 to 3, got 4"),
        (lambda s: Features(weight=-1), "must not be negative"),
        (lambda s: Mutual(temperature=0), "positive temperature"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[nn.Module], Any], message: str) -> None:
    student = create_student("vit_nano", TASK, 8)
    refused(message, make, student)
