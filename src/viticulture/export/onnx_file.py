# SPDX-License-Identifier: Apache-2.0
"""A student as an ONNX file, for programs that know nothing of Python or torch."""

import copy
import json
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..disk import replacing
from ..errors import UserError
from ..models.task import Task
from ..outputs import check_out

TOLERANCE = 1e-4
"""Largest difference between ONNX and eager, relative to the largest logit: float32 with other kernels."""


def to_onnx(student: nn.Module, path: Path, task: Task, more: Mapping[str, Any] | None = None) -> Path:
    """Write a student as ONNX with any batch size, and compare it with the original where onnxruntime is installed.

        image [B, 3, H, W] float32, (pixel / 255 - mean) / std  ->  logits [B, C]
                            or, of several labels an image,         probabilities [B, C]

    The file's metadata hold JSON texts under `classes`, `mean`, `std` and `image_size`, and what there is `more`, so
    that it can be used without the run. It appears under its name only once it is whole. The student itself is not
    changed.

    Raises:
        UserError: the extra `onnx` is not installed, the file cannot be written, or torch cannot trace the student.
        RuntimeError: the file's logits differ from the student's.
    """
    check_installed("onnx", "onnxscript")
    check_out(path, ".onnx", size=sum(weight.nbytes for weight in student.parameters()))
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write {path.name} into")
    eager = copy.deepcopy(student).eval().requires_grad_(False).cpu().float()
    output = "probabilities" if task.several else "logits"
    if task.several:
        eager = nn.Sequential(eager, nn.Sigmoid())
    images = torch.randn(2, 3, *task.image_size, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's notes concern its own internals
        program = torch.onnx.export(
            _traced(eager, images),
            dynamo=True,
            input_names=["image"],
            output_names=[output],
            verbose=False,
        )
    assert program is not None
    about = {"classes": task.classes, "mean": task.mean, "std": task.std, "image_size": task.image_size, **(more or {})}
    program.model.metadata_props.update({key: json.dumps(value, ensure_ascii=False) for key, value in about.items()})
    with replacing(path) as unfinished:
        program.save(str(unfinished))
        gap = _gap(unfinished, eager, images) if find_spec("onnxruntime") else 0.0
        if not gap <= TOLERANCE:  # a NaN is no agreement
            raise RuntimeError(
                f"the ONNX file does not say what the student says: logits differ by {gap:.1e} of the largest"
            )
    return path


def check_installed(*modules: str) -> None:
    """Raises: UserError if one of these modules of the extra `onnx` is not there."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise UserError(
            f"export to ONNX needs {' and '.join(missing)}, not installed; run: pip install 'viticulture[onnx]'"
        )


def _traced(eager: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    """The student's operations for any batch size; torch.onnx.export alone would quietly fix the size on failure."""
    try:
        return torch.export.export(eager, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"torch cannot trace this student for batches of any size (len(x) in its code, where x.shape[0] is "
            f"needed, is a common cause): {reason}"
        ) from error


def _gap(path: Path, eager: nn.Module, images: Tensor) -> float:
    """Difference from eager for a batch of the traced size and for one of another size."""
    session = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    gaps = []
    for batch in (images, torch.cat([images, images.flip(-1)])[1:]):
        with torch.inference_mode():
            expected = eager(batch)
        (found,) = session.run(None, {"image": batch.numpy()})
        gaps.append(float((torch.from_numpy(found) - expected).abs().max() / expected.abs().max()))
    return max(gaps)
