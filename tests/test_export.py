# SPDX-License-Identifier: Apache-2.0
"""An exported student says what the student says, and tells a stranger how to ask it."""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import Tensor, nn

from viticulture.errors import UserError
from viticulture.export import to_onnx
from viticulture.models.task import Task

TASK = Task(("Blüte", 'a "b", c', "👩‍🔬"), (16, 16), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra onnx",
)


@pytest.fixture
def student() -> nn.Module:
    torch.manual_seed(0)
    small = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, proj_drop_rate=0.5, **small).train()


@needs_onnx
def test_exported_equals_eager_for_any_batch(student: nn.Module, tmp_path: Path) -> None:
    """Four equalities, the last: logits of 1, 2 and 5 images agree to float32 rounding; metadata are complete.

    Fails if the batch is fixed at tracing, dropout is left on, or probabilities are written instead of logits.
    """
    import onnxruntime

    path = tmp_path / "student.onnx"
    assert to_onnx(student, path, TASK) == path
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    eager = student.eval()
    for B in (1, 2, 5):
        images = torch.randn(B, 3, 16, 16, generator=torch.Generator().manual_seed(B))
        with torch.inference_mode():
            expected = eager(images)
        (found,) = session.run(["logits"], {"image": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)

    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(TASK.classes)
    assert json.loads(about["image_size"]) == [16, 16]
    assert (json.loads(about["mean"]), json.loads(about["std"])) == (list(TASK.mean), list(TASK.std))


@needs_onnx
def test_exporting_leaves_the_student_and_the_folder_clean(student: nn.Module, tmp_path: Path) -> None:
    """It stays in training mode with its gradients on; the file is alone in its folder, weights inside."""
    before = {name: value.clone() for name, value in student.state_dict().items()}
    to_onnx(student, tmp_path / "student.onnx", TASK)
    assert student.training
    assert all(parameter.requires_grad for parameter in student.parameters())
    assert all(torch.equal(before[name], value) for name, value in student.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == ["student.onnx"]


class Chameleon(nn.Module):
    """Says something else while it is traced, as a wrong kernel or a lost branch would."""

    def forward(self, image: Tensor) -> Tensor:
        return image.mean((2, 3)) * (1.01 if torch.compiler.is_compiling() else 1.0)


@needs_onnx
def test_a_file_that_disagrees_is_not_kept(tmp_path: Path) -> None:
    """One percent off is an error, and no file is left, whole or half."""
    with pytest.raises(RuntimeError, match="logits differ"):
        to_onnx(Chameleon(), tmp_path / "student.onnx", TASK)
    assert list(tmp_path.iterdir()) == []


class Countable(nn.Module):
    """Counts its images with len, which a trace writes down as a constant."""

    def forward(self, image: Tensor) -> Tensor:
        return image.mean((2, 3)) + torch.zeros(1, 3).expand(len(image), -1)


@needs_onnx
def test_a_student_that_fixes_its_batch_size_is_refused(tmp_path: Path) -> None:
    """torch.onnx.export on its own falls back to a file that takes batches of two and nothing else."""
    with pytest.raises(UserError, match=r"x\.shape\[0\]"):
        to_onnx(Countable(), tmp_path / "student.onnx", TASK)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_says_what_to_install(
    student: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch imports onnxscript only while exporting, and then fails with an import error of its own."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "onnxscript", raising=False)
    with pytest.raises(UserError, match=r"viticulture\[onnx\]"):
        to_onnx(student, tmp_path / "student.onnx", TASK)


@needs_onnx
def test_a_missing_folder_is_named(student: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        to_onnx(student, tmp_path / "nowhere" / "student.onnx", TASK)


@needs_onnx
def test_a_place_that_cannot_be_written_is_refused_before_the_export(
    student: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a folder or another format told after the tracing, or not at all; a disk too small for the weights."""
    monkeypatch.setattr(torch.export, "export", None)
    for name, said in {".": "is a folder", "x.txt": "written as .onnx", "nowhere/x.onnx": "no folder"}.items():
        with pytest.raises(UserError, match=said):
            to_onnx(student, tmp_path / name, TASK)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(UserError, match="free some space"):
        to_onnx(student, tmp_path / "x.onnx", TASK)
