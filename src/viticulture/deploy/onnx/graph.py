# SPDX-License-Identifier: Apache-2.0
"""Write networks as ONNX files, for programs without Python or torch: traced, written, compared with the original.

student     image [B, channels, H, W] float32, (pixel / 255 - mean) / std  ->  logits [B, C]
                    or, for several labels per image,       probabilities [B, C]
                    or, for a student without classes,      features [B, D]
                    and, where the run has features of its training images, similarity [B]: an image below
                    `min_similarity` of the metadata is unlike them (models/similarity.py)
"""

import copy
import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...disk import replacing
from ...errors import UserError
from ...models.data_spec import DataSpec
from ...models.similarity import KEY, SimilarityNetwork
from ...outputs import check_out

TOLERANCE = 1e-4
"""Largest difference between ONNX and PyTorch, relative to the largest logit: float32 with other kernels."""

Run = Callable[[Tensor], tuple[Tensor, ...]]  # runs a file: input -> outputs
Finish = Callable[[Path], None]  # changes a whole file before it appears under its name


class Graph(nn.Module):
    """The computation of a file.

    Attributes:
        outputs: names.
        dims: names of the dimensions of the input that are free, and their minimum, by axis.
        hint: of an error message if torch cannot trace it.
        opset: ONNX's; None takes torch's.
        prepares: whether it takes an image as it is, not a normalized batch.
    """

    outputs: tuple[str, ...]
    dims: ClassVar[Mapping[int, tuple[str, int | None]]]
    hint: str
    opset: int | None = None
    prepares: bool = False

    @abstractmethod
    def example(self) -> Tensor:
        """Return an input for tracing."""

    @abstractmethod
    def check(self, run: Run) -> None:
        """Compare a file with this module. Raises: RuntimeError if their outputs differ."""

    def metadata(self, levels: bool) -> dict[str, Any]:
        """Return metadata of the file besides classes, colors and size; levels: the input needs a named range first."""
        return {}


class StudentGraph(Graph):
    """A student for batches of any size."""

    dims: ClassVar = {0: ("batch", None)}
    hint = "student for batches of any size (len(x) in its code, where x.shape[0] is needed, is a common cause)"

    def __init__(self, student: nn.Module, data_spec: DataSpec, cache_size: int = 0) -> None:
        super().__init__()
        self.student, self.data_spec = student, data_spec
        self.outputs = (data_spec.output_name, *(["similarity"] if isinstance(student, SimilarityNetwork) else []))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        outputs = self.student(image)
        logits, *similarity = outputs if len(self.outputs) > 1 else (outputs,)
        return self.data_spec.output_of(logits), *similarity

    def example(self) -> Tensor:
        shape = (2, self.data_spec.channels, *self.data_spec.image_size)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    @torch.inference_mode()
    def check(self, run: Run) -> None:
        """Compare outputs for a batch of the traced size and for one of another size."""
        images = self.example()
        for batch in (images, torch.cat([images, images.flip(-1)])[1:]):
            for name, expected, written in zip(self.outputs, self(batch), run(batch), strict=True):
                if not expected.isfinite().all():
                    raise UserError("the student's outputs are not finite; were its weights trained?")
                gap = float((written - expected).abs().max() / expected.abs().max())
                if not gap <= TOLERANCE:  # a NaN does not agree
                    raise RuntimeError(
                        f"the ONNX file differs from the student: {name} differ by {gap:.1e} of the largest"
                    )

    def metadata(self, levels: bool) -> dict[str, Any]:
        return {KEY: self.student.threshold} if isinstance(self.student, SimilarityNetwork) else {}


def write_graph(
    graph: Graph, path: Path, data_spec: DataSpec, more: Mapping[str, Any] | None = None, finish: Finish | None = None
) -> Path:
    """Write a graph as ONNX, and compare the file with it if onnxruntime is installed.

    The file's metadata hold JSON texts under `classes`, `mean`, `std`, `image_size`, and more, so that it can be used
    without the run. It appears under its name only once it is whole, and `finish` has changed it.

    Raises:
        UserError: torch cannot trace the network, or its outputs are not finite.
        RuntimeError: the file's outputs differ from the network's.
    """
    metadata: dict[str, Any] = {name: getattr(data_spec, name) for name in ("classes", "mean", "std", "image_size")}
    metadata |= {**graph.metadata("range" in (more or {})), **(more or {})}
    dims = {axis: torch.export.Dim(name, min=minimum) for axis, (name, minimum) in graph.dims.items()}
    with warnings.catch_warnings(action="ignore"):  # about the exporter's internals
        try:  # for any size; torch.onnx.export alone would quietly fix the size on failure
            program = torch.export.export(graph.eval(), (graph.example(),), dynamic_shapes=(dims,), strict=False)
        except RuntimeError as error:
            raise UserError(f"torch cannot trace this {graph.hint}: {str(error).strip().splitlines()[0]}") from error
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=graph.opset,
            input_names=["image"],
            output_names=list(graph.outputs),
            dynamic_shapes=({axis: name for axis, (name, _) in graph.dims.items()},),
            verbose=False,
        )
    assert made is not None
    made.model.metadata_props.update({key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()})
    with replacing(path) as unfinished:
        made.save(str(unfinished))
        if find_spec("onnxruntime"):
            graph.check(_runner(unfinished))
        if finish is not None:
            finish(unfinished)
    return path


def _runner(path: Path) -> Run:
    session: Any = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda image: tuple(torch.from_numpy(each) for each in session.run(None, {"image": image.numpy()}))


def check_installed(*modules: str) -> None:
    """Raises: UserError if one of these modules of the extra `onnx` is not installed."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise UserError(
            f"export to ONNX needs {' and '.join(missing)}, not installed; run: pip install 'viticulture[onnx]'"
        )


def check_ending(path: Path) -> None:
    """Raises: UserError for the ending of another format, with the way to get it."""
    fixes = {
        (".pt", ".pth", ".safetensors"): "for torch, timm loads local-dir:RUN/weights/best as it is",
        (".tflite", ".pte", ".mlpackage", ".mlmodel"): "timmx takes RUN/weights/best there (docs/guides/deploy.md)",
    }
    for endings, fix in fixes.items():
        if path.suffix.lower() in endings:
            raise UserError(f"export writes .onnx, got {path}; {fix}")


def inference_copy(network: nn.Module, path: Path) -> nn.Module:
    """Return a copy of a network for tracing: on the CPU, in inference mode, in float32."""
    check_installed("onnx", "onnxscript")
    check_ending(path)
    check_out(path, ".onnx", size=sum(weight.nbytes for weight in network.parameters()))
    return copy.deepcopy(network).eval().requires_grad_(False).cpu().float()


def to_onnx(
    network: nn.Module,
    path: Path,
    data_spec: DataSpec,
    more: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
    graph: Callable[[Any, DataSpec, int], Graph] = StudentGraph,
    cache_size: int = 0,
) -> Path:
    """Write a network as ONNX, and compare the file with it if onnxruntime is installed. The network is not changed.

    Args:
        more: further metadata, such as `range`, the values of black and white.
        finish: changes the whole file before it appears under its name.
        graph: makes the file's computation of the network, its data and the side of a decoded image in the cache.

    Raises:
        UserError: the extra `onnx` is not installed, the file cannot be written, torch cannot trace the network, or its
            outputs are not finite.
        RuntimeError: the file's outputs differ from the network's.
    """
    return write_graph(graph(inference_copy(network, path), data_spec, cache_size), path, data_spec, more, finish)
