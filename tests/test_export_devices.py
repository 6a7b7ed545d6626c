# SPDX-License-Identifier: Apache-2.0
"""timmx takes our weights to ExecuTorch, LiteRT and Core ML, as docs/guides/deploy.md describes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save

timmx = pytest.importorskip("timmx", reason="environments of their own: docs/guides/deploy.md")
pytestmark = pytest.mark.slow

TASK = DataSpec(("a", "b", "c"), (32, 32), (0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
STUDENTS = [("botnet14t", 8), ("hybrid_nano", 8), ("vit_nano", 4), ("dhvt_nano", 4), ("resnet10t", None)]
TOLERANCE = 1e-4  # of the largest logit: float32 with other kernels


def saved(name: str, patch: int | None, folder: Path) -> nn.Module:
    """Save a student that timm loads; none of its layers is zero, as some are initially."""
    torch.manual_seed(0)
    student = create_student(name, TASK, patch).eval()
    for key, weight in student.state_dict().items():
        if weight.is_floating_point():
            weight.add_(torch.rand_like(weight) if "running_var" in key else 0.05 * torch.randn_like(weight))
    save(student, folder, TASK)
    return student


def check(student: nn.Module, answers: Callable[[Tensor], Tensor], numbers: tuple[int, ...]) -> None:
    """Compare logits of batches of these numbers of images."""
    for number in numbers:
        images = torch.randn(number, 3, *TASK.image_size)
        with torch.inference_mode():
            expected = student(images)
        gap = (answers(images) - expected).abs().max() / expected.abs().max()
        assert gap < TOLERANCE, f"{number} images"


@pytest.mark.parametrize(("name", "patch"), STUDENTS)
def test_executorch_equals_torch(name: str, patch: int | None, tmp_path: Path) -> None:
    runtime = pytest.importorskip("executorch.runtime")
    student, path = saved(name, patch, tmp_path), tmp_path / "a.pte"
    timmx.export_model(
        "executorch", f"local-dir:{tmp_path}", pretrained=True, dynamic_batch=True, batch_size=2, output=path
    )
    method = runtime.Runtime.get().load_program(path).load_method("forward")
    check(student, lambda images: method.execute([images])[0], (1, 2, 5))


@pytest.mark.parametrize(("name", "patch"), STUDENTS)
def test_litert_equals_torch(name: str, patch: int | None, tmp_path: Path) -> None:
    """With pixels in [0, 1], channels last."""
    pytest.importorskip("litert_torch")
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    student, path = saved(name, patch, tmp_path), tmp_path / "a.tflite"
    options = {"pretrained": True, "normalize": True, "nhwc_input": True}
    timmx.export_model("litert", f"local-dir:{tmp_path}", output=path, **options)
    runner = interpreter.Interpreter(str(path)).get_signature_runner()
    (entry,) = runner.get_input_details()
    mean, std = (torch.tensor(values)[:, None, None] for values in (TASK.mean, TASK.std))

    def answers(images: Tensor) -> Tensor:
        (logits,) = runner(**{entry: (images * std + mean).permute(0, 2, 3, 1).numpy()}).values()
        return torch.from_numpy(np.asarray(logits))

    check(student, answers, (1,))


@pytest.mark.parametrize(("name", "patch"), STUDENTS)
def test_core_ml_takes_every_operation(name: str, patch: int | None, tmp_path: Path) -> None:
    """On macOS timmx compares predictions too; elsewhere nothing runs the file."""
    coremltools = pytest.importorskip("coremltools")
    saved(name, patch, tmp_path)
    path, labels = tmp_path / "a.mlpackage", tmp_path / "classes.txt"
    labels.write_text("\n".join(TASK.classes))
    options = {"pretrained": True, "normalize": True, "softmax": True, "image_input": True, "class_labels": labels}
    timmx.export_model("coreml", f"local-dir:{tmp_path}", output=path, **options)
    description = coremltools.utils.load_spec(str(path)).description
    assert (description.input[0].type.imageType.height, description.input[0].type.imageType.width) == TASK.image_size
    assert {output.name for output in description.output} == {"classLabel", "classLabel_probs"}
