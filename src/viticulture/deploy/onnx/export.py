# SPDX-License-Identifier: Apache-2.0
"""Write a network as an ONNX file, for programs without Python or torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ...models.data_spec import DataSpec
from .graph import Finish, Graph, StudentGraph, inference_copy, write_graph


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
