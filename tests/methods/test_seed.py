# SPDX-License-Identifier: Apache-2.0
"""SEED: an image's similarities to a queue follow its teacher's."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from children import one_of_pair, pair, shared_gradients
from exact import CLOSE, check_same_gradients, doubled, never_single
from label_free import start
from refusals import refused
from resumed import check_same_bits, whole_and_resumed
from trained import weights
from viticulture.methods.method import Setup, StepContext
from viticulture.methods.seed import Seed, similarity_loss
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.teachers.frozen import load_teacher
from viticulture.models.weights.files import save
from viticulture.optim import Optim
from viticulture.training.module import TrainingModule

HALF = (0.5, 0.5, 0.5)
TASK = DataSpec((), (16, 16), HALF, HALF)
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    """A CNN classifier, whose head SEED ignores."""
    torch.manual_seed(3)
    data_spec = DataSpec(("a", "b", "c"), (16, 16), HALF, HALF)
    save(
        create_student("resnet10", data_spec, None, {"channels": [8, 8, 8, 12], "stem_width": 8}),
        tmp_path / "cnn",
        data_spec,
    )
    return str(tmp_path / "cnn")


def method(teacher: str, **options: Any) -> Seed:
    torch.manual_seed(0)
    return Seed(Setup(create_student("vit_nano", TASK, 4, TINY), TASK), teacher=teacher, **{"queue": 6, **options})


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_the_loss_by_hand() -> None:
    """In float64. Cosines to [same image, queue]: teacher 1, 0, -1; student 1/2, sqrt(3)/2, -1/2."""
    student = torch.tensor([[0.5, math.sqrt(3) / 2]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    queue = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    aims = [math.exp(c / 0.5) for c in (1.0, 0.0, -1.0)]
    guesses = [math.exp(c / 0.2) for c in (0.5, math.sqrt(3) / 2, -0.5)]
    expected = -sum(a / sum(aims) * math.log(g / sum(guesses)) for a, g in zip(aims, guesses, strict=True))
    assert expected == pytest.approx(1.844505049624, abs=1e-12)
    loss = similarity_loss(student, teacher, queue, (0.2, 0.5))
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert torch.autograd.grad(loss, teacher, allow_unused=True) == (None,)
    twice = similarity_loss(student.expand(2, 2), teacher.expand(2, 2), queue, (0.2, 0.5))
    assert twice.item() == pytest.approx(expected, abs=1e-12)
    assert torch.autograd.gradcheck(lambda s: similarity_loss(s, teacher, queue, (0.2, 0.5)), student)


def test_the_teachers_features_are_its_classifiers_input(teacher: str) -> None:
    seed = method(teacher)
    with torch.no_grad():
        scores = load_teacher(teacher, DataSpec(("a", "b", "c"), (16, 16), HALF, HALF))(images())
        net: Any = seed.teacher.net
        torch.testing.assert_close(net.net.net.get_classifier()(seed.teacher(images())), scores)
    assert not any("teacher" in name for name in (*seed.state_dict(), *dict(seed.named_parameters())))
    assert seed.queue.shape == (6, 12)
    torch.testing.assert_close(seed.queue.norm(dim=1), torch.ones(6))


def test_the_queue_holds_the_last_embeddings(teacher: str) -> None:
    seed, both = method(teacher), images(8)
    with torch.no_grad():
        embedded = seed._embedding(both)
        before = seed.queue.clone()
        first = seed.losses({"image": both[:4]})["similarity"]
        assert torch.equal(seed.queue, before)
        expected = similarity_loss(seed._projection(seed.student(both[:4])), embedded[:4], before, (0.2, 1e-4))
        torch.testing.assert_close(first, expected)
        seed.after_step()
        torch.testing.assert_close(seed.queue, torch.cat([embedded[:4], before[4:]]))
        for part, last in ((both[4:6], False), (both[6:], True)):
            seed.step = StepContext(first=not last, last=last)
            seed.losses({"image": part})
        seed.after_step()
        torch.testing.assert_close(seed.queue, embedded[[6, 7, 2, 3, 4, 5]])
        seed.losses({"image": both})
        seed.after_step()
        torch.testing.assert_close(seed.queue.sort(0).values, embedded[:6].sort(0).values)
    assert not seed.waiting


def test_the_queue_moves_once_a_step_of_two_gradients(teacher: str) -> None:
    torch.manual_seed(0)
    setup = Setup(create_student("vit_nano", TASK, 4, TINY), TASK, optim=Optim(sam_rho=0.05))
    seed, both = Seed(setup, teacher=teacher, queue=6), images(8)
    optimizer: Any = TrainingModule(seed).configure_optimizers()
    for batch in both.split(4):
        compared: list[Tensor] = []

        def closure(batch: Tensor = batch, compared: list[Tensor] = compared) -> Tensor:
            compared.append(seed.queue.clone())
            seed.step = StepContext(perturbed=len(compared) == 2)
            seed.zero_grad()
            loss = seed.losses({"image": batch})["similarity"]
            loss.backward()
            return loss

        optimizer["optimizer"].step(closure)
        seed.after_step()
        assert torch.equal(*compared)
    with torch.no_grad():
        embedded = seed._embedding(both)
    torch.testing.assert_close(seed.queue, torch.cat([embedded[6:], embedded[2:6]]))
    assert seed.oldest == 2


def test_an_interrupted_run_resumes_exactly(teacher: str, tmp_path: Path) -> None:
    options = {"method.name": "seed", "method.teacher": teacher, "method.queue": 30, "data.per_class": 6}
    whole, again = whole_and_resumed(partial(start, **options), tmp_path, steps=4)
    check_same_bits(whole.method.state_dict(), again.method.state_dict())
    assert not [name for name in weights(again.run.path) if "head.0" in name or "queue" in name]


def one_of_two(rank: int, folder: str) -> None:
    """Compute a process's gradients, averaged as by DDP, and its queue, from every other image."""
    with one_of_pair(rank, folder):
        never_single()
        seed = method(f"{folder}/cnn").double()
        for batch in images(8).split(4):
            seed.losses(doubled({"image": batch[rank::2]}))["similarity"].backward()
            seed.after_step()
        torch.save([shared_gradients(seed), seed.queue], f"{folder}/{rank}.pt")


@pytest.mark.children
def test_two_processes_are_one(teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = pair(one_of_two, tmp_path)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    seed = method(teacher).double()
    for batch in images(8).split(4):
        seed.losses(doubled({"image": batch}))["similarity"].backward()
        seed.after_step()
    for gradients, queue in halves:
        check_same_gradients(gradients, seed)
        torch.testing.assert_close(queue, seed.queue, **CLOSE)


def test_a_student_learns(teacher: str) -> None:
    seed = method(teacher, teacher_temperature=0.1)
    optimizer = torch.optim.SGD([*seed.student.parameters(), *seed.auxiliary.parameters()], lr=0.1)
    losses = []
    for _ in range(10):
        loss = seed.losses({"image": images()})["similarity"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for p in seed.auxiliary.parameters())
    assert isinstance(seed.auxiliary["head"], nn.Sequential)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "method.temperature and method.teacher_temperature must be positive, got 0.0 and"),
        ({"teacher_temperature": -1.0}, "must be positive, got 0.2 and -1.0"),
        ({"queue": 0}, "method.queue must be positive, got 0"),
        ({"teacher": "nowhere"}, "nowhere"),
    ],
)
def test_invalid_settings_are_refused(teacher: str, options: dict[str, Any], message: str) -> None:
    refused(message, method, **{"teacher": teacher, **options})
