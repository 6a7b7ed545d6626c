# SPDX-License-Identifier: Apache-2.0
"""Feature distillation (SEED): an image's similarities to a queue follow its teacher's."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from children import one_of_pair, pair, shared_gradients
from exact import CLOSE, check_same_gradients, doubled, never_single
from label_free import start
from refusals import refused
from resumed import check_same_bits, whole_and_resumed
from trained import weights
from viticulture.guides.feature_distillation import FeatureDistillation, similarity_loss
from viticulture.methods.distillation import Distillation
from viticulture.methods.method import Setup
from viticulture.models.data_spec import DataSpec
from viticulture.models.shared_batch_norm import normalized
from viticulture.models.students import create_student
from viticulture.models.taps import Taps
from viticulture.models.teachers.outputs import load_teacher
from viticulture.models.weights.files import save

HALF = (0.5, 0.5, 0.5)
TASK = DataSpec((), (16, 16), HALF, HALF)
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    """A CNN classifier, whose head is ignored."""
    torch.manual_seed(3)
    data_spec = DataSpec(("a", "b", "c"), (16, 16), HALF, HALF)
    save(
        create_student("resnet10", data_spec, None, {"channels": [8, 8, 8, 12], "stem_width": 8}),
        tmp_path / "cnn",
        data_spec,
    )
    return str(tmp_path / "cnn")


def method(teacher: str, **options: Any) -> Distillation:
    torch.manual_seed(0)
    student = create_student("vit_nano", TASK, 4, TINY)
    keywords = {"queue": 6, "temperature": 0.2, "teacher_temperature": 1e-4, **options}
    return Distillation(
        Setup(student, TASK, {"feature_distillation": FeatureDistillation(student, TASK, teacher=teacher, **keywords)})
    )


def guide_of(method: Distillation) -> FeatureDistillation:
    guide = method.guides["feature_distillation"]
    assert isinstance(guide, FeatureDistillation)
    return guide


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def step(method: Distillation, *parts: Tensor) -> list[Tensor]:
    """Run a step without an optimizer, in micro-batches, with gradients; return their losses."""
    losses = [method.losses({"image": part})["feature_distillation"] for part in parts]
    if losses[0].requires_grad:
        torch.stack(losses).sum().backward()
    for _, guide in method.named_guides():
        guide.after_backward()
        guide.after_step()
    return losses


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
    guide = guide_of(method(teacher))
    with torch.no_grad():
        scores = load_teacher(teacher, DataSpec(("a", "b", "c"), (16, 16), HALF, HALF))(images())
        net: Any = guide.teacher.net
        torch.testing.assert_close(net.get_classifier()(guide.teacher(images())), scores)
    assert not any("teacher" in name for name in (*guide.state_dict(), *dict(guide.named_parameters())))
    assert guide.queue.shape == (6, 12)
    torch.testing.assert_close(guide.queue.norm(dim=1), torch.ones(6))


def test_the_queue_holds_the_last_features(teacher: str) -> None:
    """Four images, eight in two micro-batches, then more than it holds; held-out images leave it alone."""
    seed, both = method(teacher, weight=0.5), images(8)
    guide = guide_of(seed)
    with torch.no_grad():
        embedded, before = normalized(guide.teacher(both)), guide.queue.clone()
        (first,) = step(seed, both[:4])
        ours = normalized(guide.head(seed.student(both[:4])))
        torch.testing.assert_close(first, 0.5 * similarity_loss(ours, embedded[:4], before, (0.2, 1e-4)))
        torch.testing.assert_close(guide.queue, torch.cat([embedded[:4], before[4:]]))
        step(seed, both[4:6], both[6:])
        torch.testing.assert_close(guide.queue, embedded[[6, 7, 2, 3, 4, 5]])
        step(seed, both)
        torch.testing.assert_close(guide.queue.sort(0).values, embedded[:6].sort(0).values)
        seed.eval().metrics({"image": both})
    assert not guide.pending


def test_the_queue_moves_once_a_step_of_two_gradients(teacher: str) -> None:
    """As with SAM: both passes are compared with the same queue, and their images enter it once."""
    seed, both = method(teacher), images(4)
    guide, before = guide_of(seed), guide_of(seed).queue.clone()
    for _ in range(2):
        seed.losses({"image": both})
        guide.after_backward()
        assert torch.equal(guide.queue, before)
    guide.after_step()
    torch.testing.assert_close(guide.queue, torch.cat([normalized(guide.teacher(both)), before[4:]]))
    assert guide.oldest == 4


def test_an_interrupted_run_resumes_exactly(teacher: str, tmp_path: Path) -> None:
    options = {
        "method.name": "distillation",
        "guides.feature_distillation": {"teacher": teacher, "queue": 30},
        "guides.relation_distillation.teacher": teacher,
        "images.teacher_size": 64,
        "data.per_class": 6,
    }
    whole, again = whole_and_resumed(partial(start, **options), tmp_path, steps=4)
    check_same_bits(whole.method.state_dict(), again.method.state_dict())
    assert not [name for name in weights(again.run.path) if "guides" in name or "queue" in name]


def one_of_two(rank: int, folder: str) -> None:
    """Compute a process's gradients, averaged as by DDP, and its queue, from every other image."""
    with one_of_pair(rank, folder):
        never_single()
        seed = method(f"{folder}/cnn").double()
        for batch in images(8).split(4):
            step(seed, doubled({"image": batch[rank::2]})["image"])
        torch.save([shared_gradients(seed), guide_of(seed).queue], f"{folder}/{rank}.pt")


@pytest.mark.children
def test_two_processes_are_one(teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = pair(one_of_two, tmp_path)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    seed = method(teacher).double()
    for batch in images(8).split(4):
        step(seed, doubled({"image": batch})["image"])
    for gradients, queue in halves:
        check_same_gradients(gradients, seed)
        torch.testing.assert_close(queue, guide_of(seed).queue, **CLOSE)


@pytest.mark.parametrize(
    ("name", "patch", "options"),
    [
        ("botnet14n", 8, {"num_heads": 1}),
        ("hybrid_nano", 8, {"embed_dim": 32, "depth": 1}),
        ("dhvt_tiny_cifar_patch4", None, TINY),
        ("vit_nano", 4, TINY),
        ("resnet10", None, {"channels": [8, 8, 8, 8], "stem_width": 8}),
        ("mobilenetv3_small_050", None, {}),
        ("convnext_atto", None, {"depths": [1, 1, 1, 1], "dims": [8, 8, 8, 8]}),
        ("swin_tiny_patch4_window7_224", None, {"embed_dim": 24, "depths": [1, 1, 1, 1], "window_size": 2}),
    ],
)
@pytest.mark.parametrize("classes", [(), ("a", "b", "c")])
def test_the_students_features_are_its_classifiers_input(
    name: str, patch: int | None, options: dict[str, Any], classes: tuple[str, ...], teacher: str
) -> None:
    """For every family of students; the gradient reaches the student, not the teacher."""
    torch.manual_seed(0)
    task = DataSpec(classes, (32, 32), HALF, HALF)
    student = create_student(name, task, patch, options).eval()
    batch = torch.randn(2, 3, 32, 32)
    readings = Taps(student, frozenset({"features", "blocks"}))(batch)
    pooled = student.forward_head(student.forward_features(batch), pre_logits=True)
    torch.testing.assert_close(readings.features[0], pooled.flatten(1))
    assert torch.equal(readings.output, student(batch))
    guide = FeatureDistillation(student, task, teacher=teacher, queue=3)
    guide.losses({"image": batch}, readings)["feature_distillation"].backward()
    assert sum(p.grad.abs().sum() for p in student.parameters() if p.grad is not None) > 0
    assert all(p.grad is None for p in guide.teacher.net.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"teacher_temperature": -1.0}, "teacher_temperature must be positive, got -1.0"),
        ({"queue": 0}, "queue must be positive, got 0"),
        ({"weight": 0.0}, "weight must be positive, got 0.0"),
        ({"teacher": "nowhere"}, "nowhere"),
    ],
)
def test_invalid_settings_are_refused(teacher: str, options: dict[str, Any], message: str) -> None:
    refused(message, method, **{"teacher": teacher, **options})


def test_without_a_guide_nothing_teaches() -> None:
    setup = Setup(create_student("vit_nano", TASK, 4, TINY), TASK)
    refused("trains by guides alone, and there are none", Distillation, setup)


def test_a_teacher_of_one_size_reads_smaller_images_enlarged(tmp_path: Path) -> None:
    """As most ViTs; one that reads any size reads them as they are."""
    sizes = {}
    for name in ("vit_tiny_patch16_224", "test_efficientnet"):
        torch.manual_seed(0)
        torch.save(timm.create_model(name).state_dict(), tmp_path / f"{name}.pth")
        spec = DataSpec(("a", "b"), (32, 32), (0.5,) * 3, (0.5,) * 3, teacher_size=(64, 64))
        output = load_teacher(f"{name}={tmp_path / name}.pth", spec, output="features")
        sizes[name] = output.teacher.net.image_size
        assert output(torch.zeros(2, 3, 64, 64)).shape[0] == 2
    assert sizes == {"vit_tiny_patch16_224": (224, 224), "test_efficientnet": (64, 64)}
