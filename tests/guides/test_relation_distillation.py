# SPDX-License-Identifier: Apache-2.0
"""Relation distillation: patches of an image are as similar to each other as the teacher's are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refusals import refused
from viticulture.guides.feature_distillation import FeatureDistillation
from viticulture.guides.logits import Logits
from viticulture.guides.relation_distillation import RelationDistillation, relation_loss
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import Taps, relations
from viticulture.models.teachers.outputs import load_teacher, shared_teachers
from viticulture.models.weights.files import save

HALF = (0.5, 0.5, 0.5)
TASK = DataSpec(("a", "b", "c"), (64, 64), HALF, HALF)
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}
CNN = {"channels": [8, 8, 8, 12], "stem_width": 8}


@pytest.fixture
def teachers(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    save(create_student("resnet10", TASK, None, CNN), tmp_path / "cnn", TASK)
    save(create_student("vit_nano", TASK, 8, TINY), tmp_path / "vit", TASK)
    return tmp_path


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_loss_is_the_divergence_of_rows() -> None:
    """Against NumPy in float64; 0 for the teacher's map turned or scaled, which have its relations."""
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 5, 3, 2)), rng.normal(size=(2, 7, 3, 2))
    rows = [x.reshape(2, x.shape[1], 6).swapaxes(1, 2) for x in (student, teacher)]
    unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in rows]
    ours, theirs = (softmax(x @ x.swapaxes(1, 2) / 0.3) for x in unit)
    expected = (theirs * (np.log(theirs) - np.log(ours))).sum(-1).mean()
    known = relations(torch.tensor(teacher)).double().requires_grad_()
    maps = torch.tensor(student, requires_grad=True)
    loss = relation_loss(maps, known, (3, 2), 0.3)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert torch.autograd.grad(loss, (maps, known), allow_unused=True)[1] is None
    turned, _ = torch.linalg.qr(torch.tensor(rng.normal(size=(7, 7))))
    same = 3 * torch.einsum("dc,bchw->bdhw", turned, torch.tensor(teacher))
    assert relation_loss(same, known, (3, 2), 0.3).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("source", ["cnn", "vit"])
@pytest.mark.parametrize(
    ("name", "patch", "options"),
    [
        ("botnet14n", 8, {"num_heads": 1}),
        ("dhvt_nano", 16, TINY),
        ("vit_nano", 16, {**TINY, "class_token": True}),
        ("resnet10", None, CNN),
        ("swin_tiny_patch4_window7_224", None, {"embed_dim": 24, "depths": [1, 1, 1, 1], "window_size": 2}),
    ],
)
def test_maps_of_every_family_are_read(
    name: str, patch: int | None, options: dict[str, Any], source: str, teachers: Path
) -> None:
    """Of teachers with maps and with tokens. A student with the teacher's weights has its relations."""
    torch.manual_seed(0)
    student = create_student(name, TASK, patch, options).eval()
    guide = RelationDistillation(student, TASK, teacher=str(teachers / source))
    batch = {"image": torch.randn(2, 3, 64, 64)}
    readings = Taps(student, guide.needs)(batch["image"])
    rows, columns = readings.maps[-1].shape[-2:]
    assert rows == columns
    guide.losses(batch, readings)["relation_distillation"].backward()
    assert sum(p.grad.abs().sum() for p in student.parameters() if p.grad is not None) > 0
    assert not guide.state_dict()
    twin: Any = guide.teacher.net
    same = guide.losses(batch, Taps(twin, guide.needs)(batch["image"]))["relation_distillation"]
    assert same.item() == pytest.approx(0, abs=1e-6)


def test_tokens_lie_on_the_map_as_their_patches(teachers: Path) -> None:
    """Row by row, without the class token."""
    student = create_student("vit_nano", TASK, 16, {**TINY, "class_token": True}).eval()
    readings = Taps(student, frozenset({"blocks"}))(torch.randn(2, 3, 64, 64))
    torch.testing.assert_close(readings.maps[1][:, :, 2, 1], readings.blocks[1][:, 1 + 2 * 4 + 1])


def test_guides_of_one_teacher_share_a_pass(teachers: Path) -> None:
    """And each reads what it would read alone."""
    student, batch = create_student("vit_nano", TASK, 8, TINY), {"image": torch.randn(2, 3, 64, 64)}
    source, passes = str(teachers / "cnn"), []
    with shared_teachers({}):
        guides = [made(student, TASK, teacher=source) for made in (RelationDistillation, FeatureDistillation, Logits)]
    guides[0].teacher.outputs.register_forward_hook(lambda *_: passes.append(1))
    shared = [guide.teacher(batch["image"]) for guide in guides]
    assert len(passes) == 1
    for name, ours in zip(("relations", "features", "logits"), shared, strict=True):
        torch.testing.assert_close(ours, load_teacher(source, TASK, output=name)(batch["image"]))


def test_a_single_patch_has_no_relations(teachers: Path) -> None:
    small = DataSpec(TASK.classes, (16, 16), HALF, HALF, teacher_size=(32, 32))
    student = create_student("vit_nano", small, 4, TINY)
    words = "is a single patch, without relations"
    refused(words, RelationDistillation, student, small, teacher=str(teachers / "cnn"))


@pytest.mark.parametrize("key", ["temperature", "weight"])
def test_settings_out_of_range_are_refused(key: str, teachers: Path) -> None:
    keywords = {"teacher": str(teachers / "cnn"), key: 0.0}
    refused(f"{key} must be positive, got 0.0", RelationDistillation, torch.nn.Identity(), TASK, **keywords)
