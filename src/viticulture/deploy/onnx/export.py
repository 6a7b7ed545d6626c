# SPDX-License-Identifier: Apache-2.0
"""Write a network as an ONNX file, for programs without Python or torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ...models.data_spec import DataSpec
from ...models.detection.detector import Detector
from ...models.detection.segmenter import Segmenter
from .detection import DetectorGraph, SegmenterGraph
from .graph import Finish, Graph, StudentGraph, inference_copy, write_graph


def to_onnx(
    network: nn.Module,
    path: Path,
    data_spec: DataSpec,
    more: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
    cache_size: int = 0,
) -> Path:
    """Write a network as ONNX, and compare the file with it if onnxruntime is installed. The network is not changed.

    Args:
        more: further metadata, such as `range`, the values of black and white.
        finish: changes the whole file before it appears under its name.

    Raises:
        UserError: the extra `onnx` is not installed, the file cannot be written, torch cannot trace the network, or its
            outputs are not finite.
        RuntimeError: the file's outputs differ from the network's.
    """
    return write_graph(graph_of(inference_copy(network, path), data_spec, cache_size), path, data_spec, more, finish)


def graph_of(network: nn.Module, data_spec: DataSpec, cache_size: int) -> Graph:
    """Return the computation of a network's file."""
    if isinstance(network, Detector):
        return DetectorGraph(network, data_spec, cache_size)
    if isinstance(network, Segmenter):
        return SegmenterGraph(network, data_spec, cache_size)
    return StudentGraph(network, data_spec)
