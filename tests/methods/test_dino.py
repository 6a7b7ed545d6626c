# SPDX-License-Identifier: Apache-2.0
"""DINO: its loss, centering and sharpening, the momentum teacher, prototypes frozen for the first epoch."""

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from children import one_of_pair, pair, shared_gradients
from exact import CLOSE, check_same_gradients, doubled, never_single
from label_free import start
from refusals import refused
from resumed import check_same_bits, whole_and_resumed
from trained import weights
from viticulture.errors import UserError
from viticulture.methods.dino import DINO, Head, LocalCrops, cross_entropy, view_loss
from viticulture.methods.method import Setup, StepContext, TrainingLength
from viticulture.models.data_spec import DataSpec
from viticulture.models.momentum_encoder import MomentumEncoder
from viticulture.models.students import create_student
from viticulture.models.vit.patches import forward_at_any_size
from viticulture.optim import Optim
from viticulture.training.feed import training_loader
from viticulture.training.module import TrainingModule
from viticulture.training.run import fit

HALF = (0.5, 0.5, 0.5)
TASK = DataSpec((), (32, 32), HALF, HALF)
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
STILL = {"embed_dim": 16, "depth": 2, "num_heads": 2}  # draws nothing
SMALL = {"local_crops": LocalCrops(2), "prototypes": 24, "hidden_width": 16}
RUN = {
    "method.name": "dino",
    "method.local_crops.count": 2,
    "method.local_crops.size": 4,
    "method.prototypes": 32,
    "method.hidden_width": 16,
    "augment2.padded_crop.padding": 2,
    "augment_local_crops.resized_crop.scale": [0.1, 0.4],
}


def method(student: nn.Module | None = None, **options: Any) -> DINO:
    torch.manual_seed(0)
    student = create_student("mae_tiny", TASK, 4, TINY) if student is None else student
    return DINO(Setup(student, TASK), **{**SMALL, **options})


def views(small: tuple[int, int], images: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    sides = [32, 32, *[small[1]] * small[0]]
    return {
        "image" if k == 0 else f"image{k + 1}": torch.randn(images, 3, side, side, generator=generator)
        for k, side in enumerate(sides)
    }


def test_the_loss_is_the_papers_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. (1), (3), (4) and Algorithm 1 with loops over views and images, in double precision, with the gradient."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    dino, batch = method(temperature=(0.07, 0.07)).double(), doubled(views((2, 12)))
    nn.init.normal_(dino.center)
    center = dino.center.clone()
    (loss,) = dino.losses(batch).values()
    teacher = dino.auxiliary["teacher"]
    with torch.no_grad():
        taught = [teacher[1](teacher[0](batch[name])) for name in ("image", "image2")]
        guesses = [dino.auxiliary["head"](dino._features(image)) for image in batch.values()]
    total, pairs = 0.0, 0
    for i, logits in enumerate(taught):
        for j, guess in enumerate(guesses):
            if i != j:
                target = ((logits - center) / 0.07).softmax(-1)
                total += -(target * (guess / 0.1).log_softmax(-1)).sum(-1).mean().item()
                pairs += 1
    assert pairs == 2 * 3
    assert loss.item() == pytest.approx(total / pairs, rel=1e-9)
    expected = 0.9 * center + 0.1 * torch.cat(taught).mean(0)
    torch.testing.assert_close(dino.center, expected, **CLOSE)
    loss.backward()
    assert not any(p.requires_grad or p.grad is not None for p in teacher.parameters())
    assert all(p.grad is not None for name, p in dino.named_parameters() if "teacher" not in name)


def test_the_center_moves_once_a_step_of_two_gradients() -> None:
    torch.manual_seed(0)
    setup = Setup(create_student("mae_tiny", TASK, 4, TINY), TASK, optim=Optim(sam_rho=0.05))
    dino, batch, centers = DINO(setup, **SMALL), views((2, 12)), list[Tensor]()
    optimizer: Any = TrainingModule(dino).configure_optimizers()

    def closure() -> Tensor:
        dino.zero_grad()
        dino.step = StepContext(perturbed=bool(centers))
        loss = dino.losses(batch)["views"]
        loss.backward()
        centers.append(dino.center.clone())
        return loss

    optimizer["optimizer"].step(closure)
    assert centers[0].any()
    assert torch.equal(centers[0], centers[1])
    assert torch.equal(centers[0], dino.center)


def test_micro_batches_move_the_center_as_their_batch_does() -> None:
    whole, batch = method(), views((2, 12))
    halves = copy.deepcopy(whole)
    for _ in range(2):
        whole.losses(batch)
        for part in range(2):
            halves.step = StepContext(first=part == 0, last=part == 1)
            halves.losses({name: value[2 * part : 2 * part + 2] for name, value in batch.items()})
    assert whole.center.abs().max() > 0
    torch.testing.assert_close(halves.center, whole.center, **CLOSE)


def test_the_gradient_is_prediction_minus_target() -> None:
    """d CE / d logits = (softmax(z / 0.1) - target) / (0.1 B); zero gradient where both agree."""
    generator = torch.Generator().manual_seed(0)
    z, target = torch.randn(5, 7, generator=generator, requires_grad=True), torch.rand(5, 7, generator=generator)
    target = target / target.sum(-1, keepdim=True)
    (slope,) = torch.autograd.grad(cross_entropy(z, target), z)
    torch.testing.assert_close(slope, ((z / 0.1).softmax(-1) - target) / (0.1 * 5))
    entropy = torch.special.entr(target).sum(-1).mean()
    torch.testing.assert_close(view_loss([z, 0.1 * target.log()], [target]), entropy)


def test_the_head_depends_on_directions_alone() -> None:
    """Cosines: unchanged by the length of prototypes and features; three layers, 256 wide."""
    head = Head(16, 24, 32)
    x = torch.randn(3, 16)
    before = head(x)
    assert before.abs().max() <= 1
    with torch.no_grad():
        head.prototypes.weight.mul_(torch.rand(32, 1) + 0.5)
        head.perceptron[-1].weight.mul_(3)
    torch.testing.assert_close(head(x), before)
    assert [layer.weight.shape for layer in head.perceptron[::2]] == [(24, 16), (24, 24), (256, 24)]
    assert head.perceptron[0].weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_the_schedules() -> None:
    """Temperature linear, then constant; momentum 1 - (1 - m0) (1 + cos(pi t)) / 2, one move a batch."""
    dino = method(temperature=(0.04, 0.07), temperature_epochs=4, momentum=0.9)
    dino.length = TrainingLength(5, 6)
    teacher = dino.auxiliary["teacher"]
    logits = torch.randn(2, 24)
    for epoch, temperature in enumerate([0.04, 0.05, 0.06, 0.07, 0.07]):
        for step in (0, 4):
            teacher.updates = 5 * epoch + step + 1
            torch.testing.assert_close(dino._sharpened(logits), (logits / temperature).softmax(-1))
    nn.init.constant_(teacher[0].norm.weight, 0.0)
    nn.init.constant_(dino.student.norm.weight, 1.0)
    teacher.updates = 16  # by the share of step 15, half-way
    for last in (False, True):
        assert not dino.center.any()
        dino.step = StepContext(first=not last, last=last)
        dino.losses(views((2, 12)))
    assert dino.center.any()
    torch.testing.assert_close(teacher[0].norm.weight, torch.full((16,), 0.05))
    assert teacher.updates == 17


def test_prototypes_are_frozen_for_an_epoch(tmp_path: Path) -> None:
    session = start(tmp_path / "run", **RUN)
    head, kept = session.method.auxiliary["head"], []
    parts = head.prototypes.weight, head.perceptron[0].weight
    begun = [part.clone() for part in parts]
    head.register_forward_hook(lambda *_: kept.append([part.detach().clone() for part in parts]))
    fit(session)
    steps = session.method.length.steps_per_epoch
    assert all(torch.equal(begun[0], prototypes) for prototypes, _ in kept[: steps + 1])
    assert not torch.equal(begun[0], parts[0])
    assert not torch.equal(begun[1], kept[steps][1])


def test_a_student_takes_any_image_size() -> None:
    student = timm.create_model("mae_tiny", img_size=32, patch_size=4, num_classes=0, **TINY)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(forward_at_any_size(student, images), student(images))
    rows = torch.linspace(-1, 1, 8)
    with torch.no_grad():
        student.pos_embed.zero_()
        student.pos_embed[0, 0] = 5.0
        student.pos_embed[0, 1:, 0] = rows.repeat_interleave(8)
    small = torch.randn(2, 3, 16, 16)
    other = timm.create_model("mae_tiny", img_size=16, patch_size=4, num_classes=0, **TINY)
    other.load_state_dict({**student.state_dict(), "pos_embed": other.pos_embed})
    with torch.no_grad():
        other.pos_embed.zero_()
        other.pos_embed[0, 0] = 5.0
        halved = F.interpolate(rows[None, None], 4, mode="linear", antialias=False)[0, 0]
        other.pos_embed[0, 1:, 0] = halved.repeat_interleave(4)
    torch.testing.assert_close(forward_at_any_size(student, small), other(small), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("name", "patch"), [("dhvt_nano", 4), ("resnet10t", None)])
def test_other_students_train(name: str, patch: int | None) -> None:
    """Convolutions need no positions; without local crops any student will do."""
    dino = method(create_student(name, TASK, patch), local_crops=LocalCrops(2, 16))
    assert dino.losses(views((2, 16)))["views"].isfinite()
    alone = method(create_student("vit_nano", TASK, 4), local_crops=LocalCrops(0))
    assert alone.losses(views((0, 0)))["views"].isfinite()


@pytest.mark.parametrize(
    ("name", "patch", "options"),
    [
        ("mae_tiny", 4, {**TINY, "drop_path_rate": 0.5, "proj_drop_rate": 0.5}),
        ("mae_tiny", 4, {**TINY, "patch_drop_rate": 0.5}),
        ("resnet10t", None, {"drop_rate": 0.5}),
    ],
)
def test_the_teacher_drops_nothing(name: str, patch: int | None, options: dict[str, Any]) -> None:
    student = create_student(name, TASK, patch, options)
    teacher = MomentumEncoder(student.train(), nn.Identity(), 0.9).train()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(teacher(images)[0], teacher(images)[0])
    assert not torch.equal(student(images), student(images))


def test_small_views_reach_the_batch(tmp_path: Path) -> None:
    loader = training_loader(start(tmp_path / "run", **RUN))
    batch = loader.batch(0, 0)
    assert [batch[name].shape[-1] for name in ("image", "image2", "image3", "image4")] == [8, 8, 4, 4]
    assert not torch.equal(batch["image3"], batch["image4"])
    with_none = {k: v for k, v in RUN.items() if "local" not in k} | {"method.local_crops.count": 0}
    plain = training_loader(start(tmp_path / "plain", **with_none)).batch(0, 0)
    assert torch.equal(plain["image"], batch["image"])
    assert torch.equal(plain["image2"], batch["image2"])


def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    whole, again = whole_and_resumed(partial(start, **RUN), tmp_path)
    assert again.method.auxiliary["teacher"].updates == 2 * whole.method.length.steps_per_epoch
    check_same_bits(whole.method.state_dict(), again.method.state_dict())
    assert not [name for name in weights(again.run.path) if "head" in name or "teacher" in name or "center" in name]


def test_a_training_is_the_authors(tmp_path: Path) -> None:
    """Ten steps in two epochs in the order of the authors' loop: forward, backward, each parameter's gradient to a
    norm of 0.02, prototypes left alone in the first epoch, AdamW at that step's weight decay, then the teacher by that
    step's momentum.

    Catches: a teacher that moves before the student, by the next step's share, or by a share that starts anew; a norm
    over all parameters; weight decay that is constant, late, or changes biases.
    """
    keys = {**RUN, "train.clip_norm": 0.02, "train.clip_each": True, "method.momentum": 0.5, "student.options": STILL}
    keys |= {"optim.weight_decay": 0.04, "optim.weight_decay_end": 8.0, "optim.decay_tokens": True}
    trained, looped = start(tmp_path / "trained", **keys), start(tmp_path / "looped", **keys)
    fit(trained)
    dino, loader = looped.method.train(), training_loader(looped)
    head, teacher, steps = dino.auxiliary["head"], dino.auxiliary["teacher"], 2 * len(loader)
    dino.length = TrainingLength(len(loader), 2)
    teacher.update = lambda *_: None
    optimizer = dino.optim.build(dino.optim.groups(dino.student, nn.ModuleDict({**dino.auxiliary})))
    schedule = dino.schedule.attach(optimizer, len(loader), 2, dino.optim.lr)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["weight_decay"] = (
                group["weight_decay"] and 8 + (0.04 - 8) * (1 + math.cos(math.pi * step / steps)) / 2
            )
        teacher.updates = step + 1
        optimizer.zero_grad()
        dino.losses(loader.batch(*divmod(step, len(loader))))["views"].backward()
        for parameter in [*dino.student.parameters(), *head.parameters()]:
            if parameter.grad is not None:
                parameter.grad *= min(0.02 / (parameter.grad.norm() + 1e-6), 1)
        if step < len(loader):
            head.prototypes.weight.grad = None
        optimizer.step()
        schedule.step()
        if step < steps - 1:  # the last one's student never teaches
            keep = 1 - 0.5 * (1 + math.cos(math.pi * step / steps)) / 2
            for theirs, ours in zip(
                teacher.parameters(), [*dino.student.parameters(), *head.parameters()], strict=True
            ):
                theirs.data.lerp_(ours.detach(), 1 - keep)
    for name, value in trained.method.state_dict().items():
        torch.testing.assert_close(
            value, dino.state_dict()[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def one_of_two(rank: int, folder: str) -> None:
    """Compute a process's gradients, averaged as by DDP, and its center, from every other image."""
    with one_of_pair(rank, folder):
        never_single()
        dino = method().double()
        dino.losses({name: images[rank::2] for name, images in doubled(views((2, 12))).items()})["views"].backward()
        torch.save([shared_gradients(dino), dino.center], f"{folder}/{rank}.pt")


@pytest.mark.children
def test_two_processes_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = pair(one_of_two, tmp_path)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    dino = method().double()
    dino.losses(doubled(views((2, 12))))["views"].backward()
    for gradients, center in halves:
        torch.testing.assert_close(center, dino.center, **CLOSE)
        check_same_gradients(gradients, dino)


def test_validation_leaves_no_trace() -> None:
    """The metric is deterministic; neither center nor teacher moves."""
    dino = method(local_crops=LocalCrops(0)).eval()
    nn.init.normal_(dino.center)
    batch, mirrored = ({"image": images} for images in (views((0, 0))["image"], views((0, 0))["image"].flip(-1)))
    center, measured = dino.center.clone(), dino.metrics(batch)["loss"]
    assert torch.equal(measured, dino.metrics(batch)["loss"])
    assert torch.equal(dino.center, center)
    assert dino.auxiliary["teacher"].updates == 0
    (loss,) = dino.losses({**batch, "image2": mirrored["image"]}).values()
    dino.center.copy_(center)
    torch.testing.assert_close((measured + dino.metrics(mirrored)["loss"]) / 2, loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": (0.0, 0.04)}, "temperature must be positive.*got \\(0.0, 0.04\\)"),
        ({"momentum": 1.0}, "momentum lie in \\[0, 1\\).*1.0"),
        ({"prototypes": 0}, "must be positive, got 0, 0 and 16"),
        ({"temperature_epochs": -1}, "must not be negative"),
        ({"local_crops": LocalCrops(2, 10)}, "multiple of the patch, 4x4; method.local_crops.count 0"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    refused(message, method, **options)


def test_local_crops_need_their_section(tmp_path: Path) -> None:
    silent = {key: value for key, value in RUN.items() if not key.startswith("augment_local_crops")}
    refused(r"dino needs 2 local crops.*augment_local_crops", start, tmp_path / "run", **silent)
    with pytest.raises(UserError, match=r"mae needs 0 local crops.*take augment_local_crops out"):
        start(tmp_path / "run", **{"augment_local_crops.resized_crop.scale": [0.1, 0.4]})
    assert not (tmp_path / "run").exists()
