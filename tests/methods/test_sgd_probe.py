# SPDX-License-Identifier: Apache-2.0
"""The probe trains a classifier on frozen features, and the student is that classifier; LARS is the paper's."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from children import one_of_pair, pair, shared_gradients
from exact import CLOSE, check_same_gradients, never_single
from plain_loop import plain_loop
from resumed import check_same_bits, check_same_weights, whole_and_resumed
from trained import weights
from viticulture.errors import UserError
from viticulture.methods.method import Setup
from viticulture.methods.sgd_probe import SGDProbe
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.optim import Optim
from viticulture.training.run import fit
from viticulture.training.session import Session, begin

DATA_SPEC = DataSpec(("a", "b", "c"), (16, 16), (0.5,) * 3, (0.2,) * 3)
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}
RUN: dict[str, Any] = {
    "student.name": "mae_tiny",
    "student.options": TINY,
    "method.name": "sgd_probe",
    "data.per_class": 10,
    "train.epochs": 2,
    "train.batch_size": 20,
    "optim.name": "lars",
    "optim.lr": 5.0,
}


def start(out: Path, **overrides: Any) -> Session:
    return begin("digits", "default/digits", 0, str(out), False, {**RUN, **overrides}, "test")


def test_the_student_is_the_probe_folded(tmp_path: Path) -> None:
    """After a training the student's logits are W norm(f) + b with the running statistics, its trunk is untouched, and
    a plain loop gives the same. Catches: a trunk that moves, statistics of the last batch, a bias without the mean."""
    session = start(tmp_path / "run")
    assert "random weights" in session.method.warnings(20)[0]
    before = {name: value.clone() for name, value in session.method.student.state_dict().items()}
    fit(session)
    method = session.method.eval()
    images = torch.randn(5, 3, 8, 8)
    student: Any = method.student
    with torch.no_grad():
        features = student.forward_head(student.forward_features(images), pre_logits=True)
        folded = method.auxiliary["classifier"](method.auxiliary["norm"](features))
        torch.testing.assert_close(student(images), folded, rtol=1e-4, atol=1e-4)
    saved = weights(session.run.path)
    changed = {name for name in saved if not torch.equal(saved[name], before[name])}
    assert changed == {"head.weight", "head.bias"}
    looped = plain_loop(start(tmp_path / "looped"))
    for name, value in looped.auxiliary.state_dict().items():
        torch.testing.assert_close(method.auxiliary.state_dict()[name], value)


def test_the_frozen_network_is_compiled() -> None:
    """Catches: a pass beside the compiled one."""
    torch.manual_seed(0)
    probe = SGDProbe(Setup(create_student("mae_tiny", DATA_SPEC, 4, TINY), DATA_SPEC)).train()
    batch, graphs = {"image": torch.randn(12, 3, 16, 16), "label": torch.arange(12) % 3}, list[int]()
    eager = probe.losses(batch)["label"]

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(sum("attention" in str(node.target) for node in graph.graph.nodes))
        return graph

    probe.auxiliary["norm"].reset_running_stats()  # type: ignore[operator]
    probe.compile_networks(backend=backend)
    torch.testing.assert_close(probe.losses(batch)["label"], eager)
    assert max(graphs) == TINY["depth"]


def test_features_are_normalized_by_the_batch() -> None:
    """The loss by hand, std with 1 / N. Catches: running statistics in training, a gradient to the trunk."""
    torch.manual_seed(0)
    probe = SGDProbe(Setup(create_student("mae_tiny", DATA_SPEC, 4, TINY), DATA_SPEC)).train()
    images, label = torch.randn(12, 3, 16, 16), torch.arange(12) % 3
    loss = probe.losses({"image": images, "label": label})["label"]
    student: Any = probe.student
    features = student.forward_head(student.forward_features(images), pre_logits=True)
    z = (features - features.mean(0)) / (features.var(0, correction=0) + 1e-6).sqrt()
    torch.testing.assert_close(loss, nn.functional.cross_entropy(probe.auxiliary["classifier"](z), label))
    loss.backward()
    assert all(p.grad is None for p in probe.student.parameters())


def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    """With mixed labels, an averaged student and micro-batches. Catches: labels that are taken for classes, statistics
    that are not in a checkpoint."""
    keys = {"augment.mix.mixup": 0.8, "train.ema_decay": 0.9, "train.accumulate": 2}
    whole, again = whole_and_resumed(partial(start, **keys), tmp_path)
    check_same_bits(whole.method.state_dict(), again.method.state_dict())
    check_same_weights(whole, again, ("last", "ema"))


def test_balanced_accuracy_selects_the_best_weights(tmp_path: Path) -> None:
    keys = {"train.best_by": "balanced_accuracy", "train.validate": "val", "data.val_fraction": 0.2}
    session = start(tmp_path / "run", **keys)
    fit(session)
    assert session.run.weights("best").is_dir()


def one_of_two(rank: int, folder: str) -> None:
    """Compute a process's gradients, averaged as by DDP, and its student, from every other image."""
    with one_of_pair(rank, folder):
        never_single()
        torch.save(two_steps(slice(rank, None, 2), shared_gradients), f"{folder}/{rank}.pt")


def two_steps(part: slice, gradients_of: Callable[[nn.Module], Any]) -> Any:
    """Return gradients of two batches in double precision, and the student's classifier after them."""
    torch.manual_seed(0)
    probe = SGDProbe(Setup(create_student("mae_tiny", DATA_SPEC, 4, TINY), DATA_SPEC)).double().train()
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        images, label = torch.randn(12, 3, 16, 16, generator=generator, dtype=torch.float64), torch.arange(12) % 3
        probe.losses({"image": images[part], "label": label[part]})["label"].backward()  # type: ignore[no-untyped-call]
    probe.after_step()
    student: Any = probe.student
    return gradients_of(probe), student.head.weight.detach(), student.head.bias.detach()


@pytest.mark.children
def test_two_processes_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: statistics of a process's own images."""
    halves = pair(one_of_two, tmp_path)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    probe, weight, bias = two_steps(slice(None), lambda module: module)
    for gradients, *head in halves:
        check_same_gradients(gradients, probe)
        torch.testing.assert_close(head, [weight, bias], **CLOSE)


def test_what_cannot_be_probed_is_refused() -> None:
    with pytest.raises(UserError, match="one linear classifier"):
        SGDProbe(Setup(create_student("cit_tiny", DATA_SPEC, 4, {**TINY, "tokens": 1}), DATA_SPEC))


def test_lars_is_maes_rule() -> None:
    """Two steps by hand: matrices at 0.001 |w| / |g| of the rate, biases at the rate; momentum before the rate.
    Catches: biases that are scaled, a ratio upside down, momentum of unscaled gradients."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    optim = Optim(name="lars", lr=2.0, momentum=0.9, weight_decay=0.0)
    optimizer = optim.build(optim.groups(layer))
    ours = [p.detach().clone() for p in layer.parameters()]
    buffers = [torch.zeros_like(p) for p in ours]
    for _ in range(2):
        for p, mine, buffer in zip(layer.parameters(), ours, buffers, strict=True):
            p.grad = torch.randn_like(p)
            ratio = 0.001 * mine.norm() / p.grad.norm() if p.ndim > 1 else 1.0
            buffer.mul_(0.9).add_(p.grad * ratio)
            mine.sub_(2.0 * buffer)
        optimizer.step()
        for p, mine in zip(layer.parameters(), ours, strict=True):
            torch.testing.assert_close(p.detach(), mine)
