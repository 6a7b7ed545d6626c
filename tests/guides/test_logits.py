# SPDX-License-Identifier: Apache-2.0
"""DeiT's distillation as a guide: the official total, the distilled head, and a teacher that is not trained."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import Golden
from networks import Constant
from refusals import refused
from viticulture.config.start import TAUGHT, taught_by
from viticulture.guides.logits import Logits
from viticulture.losses import cross_entropy, soft_distillation
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import Readings, Taps
from viticulture.models.teachers.frozen import Frozen
from viticulture.models.weights.files import save
from viticulture.optim import Optim

TASK = DataSpec(tuple("abcdefghi"), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TINY = {"embed_dim": 8, "depth": 1, "num_heads": 2}


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    torch.manual_seed(1)
    save(create_student("vit_nano", TASK, 4, TINY), tmp_path / "w", TASK)
    return str(tmp_path / "w")


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_guide_and_label_term_add_up_to_deits_loss(golden: Callable[[str], Golden], teacher: str, kind: str) -> None:
    """(1 - alpha) of the label term and this guide with weight alpha (alpha / C when soft)."""
    data = golden("deit_distillation_loss")
    head, distilled, answers, label = (data[f"in/{name}"] for name in ("cls", "dist", "teacher", "soft_target"))
    alpha, tau, expected = (data.about["config"][name] for name in ("alpha", "tau", "losses"))
    weight = alpha / head.shape[1] if kind == "soft" else alpha
    guide = Logits(nn.Identity(), TASK, teacher=teacher, kind=kind, temperature=tau, weight=weight)
    guide.teacher = Frozen(Constant(answers))
    terms = guide.losses({"image": torch.zeros(4, 3, 8, 8), "label": label}, Readings((head, distilled)))
    total = (1 - alpha) * cross_entropy(head, label) + terms["logits"]
    assert total.item() == pytest.approx(expected[kind], rel=1e-6)


@pytest.mark.parametrize("name", ["vit_nano", "deit_tiny_distilled_patch16_224"])
def test_a_step_trains_the_last_head_and_leaves_the_teacher_alone(teacher: str, name: str) -> None:
    student = create_student(name, TASK, 4, TINY).train()
    guide = Logits(student, TASK, teacher=teacher, kind="soft", temperature=2.0)
    batch = {"image": torch.randn(4, 3, 8, 8)}
    guide.losses(batch, Taps(student, guide.needs)(batch["image"]))["logits"].backward()
    distilled = name != "vit_nano"
    assert (student.head.weight.grad is None) == distilled
    if distilled:
        assert student.head_dist.weight.grad.abs().sum() > 0
    assert not guide.state_dict()
    names = [name for group in Optim().groups(student, nn.ModuleDict({"logits": guide})) for name, _ in group["params"]]
    assert len(names) == len(list(student.parameters()))
    if not distilled:
        student.load_state_dict(guide.teacher.net.state_dict())
        same = guide.losses(batch, Taps(student)(batch["image"]))["logits"]
        assert same.item() == pytest.approx(0.0, abs=1e-6)


def test_several_teachers_teach_by_the_mean_of_their_probabilities() -> None:
    """Their guides' gradient is that of one teacher with the mean of the softened probabilities."""
    torch.manual_seed(0)
    entries = [value for key, value in taught_by("abc").items() if key.startswith("guides.")]
    assert [entry.pop("teacher") for entry in entries] == ["a", "b", "c"]
    assert all(entry.pop("class", "logits") == "logits" for entry in entries)
    tau, outputs = TAUGHT["guides.logits"]["temperature"], torch.randn(3, 5, 9).double() * 4
    head = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    several = sum(
        entry["weight"] * soft_distillation(head, output, entry["temperature"])
        for entry, output in zip(entries, outputs, strict=True)
    )
    mean = (outputs / tau).softmax(2).mean(0).log() * tau
    one = TAUGHT["guides.logits"]["weight"] * soft_distillation(head, mean, tau)
    torch.testing.assert_close(torch.autograd.grad(several, head), torch.autograd.grad(one, head))


def test_settings_without_meaning_are_refused(teacher: str) -> None:
    for keywords, words in (
        ({"kind": "firm"}, "soft or hard"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"weight": 0.0}, "to switch the guide off, leave it out"),
    ):
        refused(words, Logits, nn.Identity(), TASK, teacher=teacher, **keywords)
