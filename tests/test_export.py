# SPDX-License-Identifier: Apache-2.0
"""An exported student predicts as the student, and its metadata describe its input."""

import copy
import errno
import json
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import viticulture
from refusals import file_limit, refused
from untrained import untrained
from viticulture.deploy.onnx.graph import to_onnx
from viticulture.deploy.onnx.int8 import _quantize, to_int8
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student

TASK = DataSpec(("Blüte", 'a "b", c', "👩‍🔬"), (16, 16), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="needs the extra onnx"
)


def small_student() -> nn.Module:
    torch.manual_seed(0)
    small = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, proj_drop_rate=0.5, **small).train()


@pytest.fixture
def student() -> nn.Module:
    return small_student()


@pytest.mark.parametrize(("ending", "words"), [("pt", "local-dir:RUN/weights/best"), ("tflite", "timmx")])
def test_an_ending_of_another_program_names_the_way_to_it(
    student: nn.Module, tmp_path: Path, ending: str, words: str
) -> None:
    refused(f"export writes .onnx, got .*{ending}; .*{words}", to_onnx, student, tmp_path / f"student.{ending}", TASK)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, dict[str, Tensor], Path]:
    """Export a student; return it, its weights before, and the file."""
    student, path = small_student(), tmp_path_factory.mktemp("exported") / "student.onnx"
    before = {name: value.clone() for name, value in student.state_dict().items()}
    assert to_onnx(student, path, TASK) == path
    return student, before, path


@needs_onnx
def test_exported_equals_eager_for_any_batch(exported: tuple[nn.Module, dict[str, Tensor], Path]) -> None:
    """Logits of 1, 2 and 5 images agree to float32 rounding."""
    import onnxruntime

    student, _, path = exported
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    eager = copy.deepcopy(student).eval()
    for B in (1, 2, 5):
        images = torch.randn(B, 3, 16, 16, generator=torch.Generator().manual_seed(B))
        with torch.inference_mode():
            expected = eager(images)
        (found,) = session.run(["logits"], {"image": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)

    assert [each.shape[0] for each in (*session.get_inputs(), *session.get_outputs())] == ["batch", "batch"]
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(TASK.classes)
    assert json.loads(about["image_size"]) == [16, 16]
    assert (json.loads(about["mean"]), json.loads(about["std"])) == (list(TASK.mean), list(TASK.std))


@needs_onnx
@pytest.mark.parametrize("name", ["botnet14t", "hybrid_nano", "dhvt_nano", "resnet10t"])
def test_students_of_budgets_can_be_exported(name: str, tmp_path: Path) -> None:
    import onnxruntime

    torch.manual_seed(0)
    network = create_student(name, TASK, None if name == "resnet10t" else 4).train()
    path = to_onnx(network, tmp_path / "student.onnx", TASK)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for images in (torch.randn(3, 3, 16, 16), torch.randn(16, 3, 16, 16)):
        with torch.inference_mode():
            expected = network.eval()(images)
        (found,) = session.run(["logits"], {"image": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


@needs_onnx
def test_exporting_leaves_student_and_folder_unchanged(exported: tuple[nn.Module, dict[str, Tensor], Path]) -> None:
    student, before, path = exported
    assert student.training
    assert all(parameter.requires_grad for parameter in student.parameters())
    assert all(torch.equal(before[name], value) for name, value in student.state_dict().items())
    assert list(path.parent.iterdir()) == [path]


class Chameleon(nn.Module):
    """Computes something else under tracing, as a wrong kernel would."""

    def forward(self, image: Tensor) -> Tensor:
        return image.mean((2, 3)) * (1.01 if torch.compiler.is_compiling() else 1.0)


@needs_onnx
def test_a_file_that_disagrees_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="logits differ"):
        to_onnx(Chameleon(), tmp_path / "student.onnx", TASK)
    assert list(tmp_path.iterdir()) == []


class Countable(nn.Module):
    """Counts its images with len, which a trace records as a constant."""

    def forward(self, image: Tensor) -> Tensor:
        return image.mean((2, 3)) + torch.zeros(1, 3).expand(len(image), -1)


@needs_onnx
def test_a_student_with_a_fixed_batch_size_is_refused(tmp_path: Path) -> None:
    refused(r"x\.shape\[0\]", lambda: to_onnx(Countable(), tmp_path / "student.onnx", TASK))
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_names_what_to_install(
    student: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "onnxscript", raising=False)
    refused(r"viticulture\[onnx\]", to_onnx, student, tmp_path / "student.onnx", TASK)


@needs_onnx
def test_a_missing_folder_is_made(student: nn.Module, tmp_path: Path) -> None:
    to_onnx(student, tmp_path / "new" / "student.onnx", TASK)
    assert (tmp_path / "new" / "student.onnx").is_file()


@needs_onnx
def test_an_unwritable_path_is_refused_before_the_export(
    student: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.export, "export", None)
    (tmp_path / "file").touch()
    for name, said in {
        ".": "is a folder",
        "x.txt": "must end in .onnx",
        "file/x.onnx": "not a writable folder",
    }.items():
        refused(said, to_onnx, student, tmp_path / name, TASK)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    refused("free some space", to_onnx, student, tmp_path / "x.onnx", TASK)


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("int8") / "run"
    few = {"data.per_class": 5, "train.epochs": 2, "train.batch_size": 10, "schedule.warmup_epochs": 1}
    viticulture.train("digits", "dhvt/digits", out=str(path), overrides=few)
    return path


@needs_onnx
@pytest.mark.slow
def test_int8_is_close_to_float32(digits_run: Path, tmp_path: Path) -> None:
    import onnx
    import onnxruntime
    from onnx import TensorProto, numpy_helper

    out = tmp_path / "small.onnx"
    result = viticulture.export(str(digits_run), str(out), int8=True)
    student = viticulture.Run(digits_run)
    assert result.before.top1 == student.accuracy
    assert result.same >= 0.95
    assert abs(result.after.top1 - result.before.top1) <= 1 - result.same
    assert result.after.size == out.stat().st_size < 0.7 * result.before.size
    graph = onnx.load(str(out)).graph
    whole = [numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.data_type == TensorProto.INT8]
    assert max(np.abs(weights.astype(int)).max() for weights in whole) == 64
    made = {name: node.op_type for node in graph.node for name in node.output}
    fixed = {tensor.name for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul" and not fixed & set(node.input)]
    free = [node for node in products if made.get(node.input[1]) != "DequantizeLinear"]
    assert len(free) == 2 * len(student.student().blocks)  # scores and mixtures of every block
    about = onnxruntime.InferenceSession(str(out)).get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == [str(digit) for digit in range(10)]


@needs_onnx
def test_a_student_without_classes_gives_features(tmp_path: Path) -> None:
    import onnxruntime

    run = untrained(tmp_path / "run", ())
    run.write("split.json", {"names": {"train": ["a.png"], "test": ["b.png"]}})
    refused("trained without labels", viticulture.export, run.path, tmp_path / "small.onnx", int8=True)
    path = viticulture.export(run.path, tmp_path / "student.onnx")
    (output,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_outputs()
    assert output.name == "features"


def test_int8_needs_images_in_files(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    run.write("split.json", {"names": {"train": ["a.png"], "test": ["b.png"]}})
    run.update(data={**run.read("run.json")["data"], "given": "an object's fingerprint"})
    with pytest.raises(UserError, match=r"a Python object.*; leave it out, or train on the images as files"):
        viticulture.export(run.path, tmp_path / "small.onnx", int8=True)


@needs_onnx
def test_int8_needs_test_images(student: nn.Module, tmp_path: Path) -> None:
    subject = SimpleNamespace(network=student, data_spec=TASK)
    with pytest.raises(UserError, match="has none"):
        to_int8(subject, [1], None, tmp_path / "student.onnx")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@needs_onnx
@pytest.mark.parametrize("free", [[0], [10**9, 0]], ids=["from the first", "on the way"])
def test_a_full_disk_is_the_reported_cause_in_int8(
    free: list[int], student: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: Any, **__: Any) -> None:
        raise ValueError("Wire format was corrupt")

    path, left = to_onnx(student, tmp_path / "student.onnx", TASK), iter(free)
    monkeypatch.setattr("onnxruntime.quantization.shape_inference.quant_pre_process", cut_off)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(left)))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        _quantize(path, [])
    assert list(tmp_path.iterdir()) == [path]


@needs_onnx
def test_a_full_disk_in_int8_names_the_requested_file(
    student: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, scratch = tmp_path / "out" / "student.onnx", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    subject: Any = SimpleNamespace(network=student, tta_network=student, data_spec=TASK)
    with file_limit(1000):
        line = refused("free some space", to_int8, subject, [1], [1], out)
    assert line.startswith(f"cannot write {out}: ")
    free = 2 * sum(weight.nbytes for weight in student.parameters())  # enough for float32 alone
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(UserError, match=f"cannot write {out}: it needs .* bytes"):
        to_int8(subject, [1], [1], out)  # type: ignore[arg-type]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
