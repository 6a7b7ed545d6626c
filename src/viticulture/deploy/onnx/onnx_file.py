# SPDX-License-Identifier: Apache-2.0
"""A student as an ONNX file, for programs that know nothing of Python or torch."""

import copy
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...disk import replacing
from ...errors import UserError
from ...models.data_spec import DataSpec
from ...outputs import check_out

Network = TypeVar("Network", bound=nn.Module)
TOLERANCE = 1e-4
"""Largest difference between ONNX and eager, relative to the largest logit: float32 with other kernels."""


Finish = Callable[[Path], None]
"""What is done to a whole file before it appears under its name."""


def to_onnx(
    student: nn.Module,
    path: Path,
    data_spec: DataSpec,
    more: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
) -> Path:
    """Write a student as ONNX with any batch size, and compare it with the original where onnxruntime is installed.

        image [B, channels, H, W] float32, (pixel / 255 - mean) / std  ->  logits [B, C]
                            or, of several labels an image,         probabilities [B, C]
                            or, of a student without classes,       features [B, D]

    The file's metadata hold JSON texts under `classes`, `mean`, `std` and `image_size`, and what there is `more`, so
    that it can be used without the run. It appears under its name only once it is whole, and `finish` has changed it.
    The student itself is not changed.

    Raises:
        UserError: the extra `onnx` is not installed, the file cannot be written, torch cannot trace the student, or it
            says no numbers.
        RuntimeError: the file's logits differ from the student's.
    """
    eager: nn.Module = inference_copy(student, path)
    output = "probabilities" if data_spec.several else "logits" if data_spec.classes else "features"
    if data_spec.several:
        eager = nn.Sequential(eager, nn.Sigmoid())
    images = torch.randn(2, data_spec.channels, *data_spec.image_size, generator=torch.Generator().manual_seed(0))
    shapes = {0: torch.export.Dim("batch")}
    hint = "student for batches of any size (len(x) in its code, where x.shape[0] is needed, is a common cause)"
    about = {
        "classes": data_spec.classes,
        "mean": data_spec.mean,
        "std": data_spec.std,
        "image_size": data_spec.image_size,
        **(more or {}),
    }
    # The student's operations for any batch size; torch.onnx.export alone would quietly fix the size on failure.
    with written(path, traced(eager, images, shapes, hint), shapes, [output], about) as unfinished:
        gap = _gap(unfinished, eager, images) if find_spec("onnxruntime") else 0.0
        if not gap <= TOLERANCE:  # a NaN is no agreement
            raise RuntimeError(
                f"the ONNX file does not say what the student says: logits differ by {gap:.1e} of the largest"
            )
        if finish is not None:
            finish(unfinished)
    return path


def check_installed(*modules: str) -> None:
    """Raises: UserError if one of these modules of the extra `onnx` is not there."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise UserError(
            f"export to ONNX needs {' and '.join(missing)}, not installed; run: pip install 'viticulture[onnx]'"
        )


def check_ending(path: Path) -> None:
    """Raises: UserError, naming the way, for an ending of what other programs write."""
    mends = {
        (".pt", ".pth", ".safetensors"): "for torch, timm loads local-dir:RUN/weights/best as it is",
        (".tflite", ".pte", ".mlpackage", ".mlmodel"): "timmx takes RUN/weights/best there (docs/tutorials/deploy.md)",
    }
    for endings, mend in mends.items():
        if path.suffix.lower() in endings:
            raise UserError(f"export writes .onnx, got {path}; {mend}")


def inference_copy(network: Network, path: Path) -> Network:
    """A copy of a network to be traced: on the CPU, in inference mode, in float32.

    Raises: UserError, before anything is computed, if the extra `onnx` is not installed or the file cannot be written.
    """
    check_installed("onnx", "onnxscript")
    check_ending(path)
    check_out(path, ".onnx", size=sum(weight.nbytes for weight in network.parameters()))
    return copy.deepcopy(network).eval().requires_grad_(False).cpu().float()


def traced(eager: nn.Module, example: Tensor, shapes: dict[int, Any], hint: str) -> torch.export.ExportedProgram:
    """The operations of a network on inputs like the example, whose named dimensions are free.

    Raises: UserError that says what torch cannot trace, by the hint.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # notes that concern the exporter's own internals
            return torch.export.export(eager, (example,), dynamic_shapes=(shapes,), strict=False)
    except RuntimeError as error:
        raise UserError(f"torch cannot trace this {hint}: {str(error).strip().splitlines()[0]}") from error


@contextmanager
def written(
    path: Path,
    program: torch.export.ExportedProgram,
    shapes: Mapping[int, Any],
    outputs: Sequence[str],
    about: Mapping[str, Any],
    opset: int | None = None,
) -> Iterator[Path]:
    """The ONNX file of a traced network under another name, to be compared with it before it appears under its own.

    Args:
        path: of the file.
        program: what `traced` gave; its one input is called `image`.
        shapes: the named dimensions that `traced` was given, of which the program keeps no names.
        outputs: names.
        about: what the file says of itself, as JSON texts.
        opset: ONNX's; None takes torch's.
    """
    names = ({axis: dim.__name__ for axis, dim in shapes.items()},)
    with warnings.catch_warnings(action="ignore"):
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            input_names=["image"],
            output_names=list(outputs),
            dynamic_shapes=names,
            verbose=False,
        )
    assert made is not None
    made.model.metadata_props.update({key: json.dumps(value, ensure_ascii=False) for key, value in about.items()})
    with replacing(path) as unfinished:
        made.save(str(unfinished))
        yield unfinished


def _gap(path: Path, eager: nn.Module, images: Tensor) -> float:
    """Difference from eager for a batch of the traced size and for one of another size."""
    session = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    gaps = []
    for batch in (images, torch.cat([images, images.flip(-1)])[1:]):
        with torch.inference_mode():
            expected = eager(batch)
        if not expected.isfinite().all():
            raise UserError("the student's outputs are not finite; were its weights trained?")
        (output,) = session.run(None, {"image": batch.numpy()})
        gaps.append(float((torch.from_numpy(output) - expected).abs().max() / expected.abs().max()))
    return max(gaps)
