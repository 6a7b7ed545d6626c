# SPDX-License-Identifier: Apache-2.0
"""Build detectors and segmenters from their settings, and load them from a folder of weights.

A folder of weights is one as of any student (weights/files.py); its config.json describes under `network` what is built
around the student: {"kind": "detection" or "segmentation", and the keywords of `detector` or `segmenter`}.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ...errors import UserError, unknown
from ..data_spec import DataSpec
from ..students import FROM_DATA, blueprint, create_student
from ..weights.checksum import FILES
from ..weights.files import parsed_config, read_config, read_weights
from ..weights.fill import filled
from .backbone import MapBackbone
from .detector import Detector, DetectorSizes
from .segmenter import Segmenter
from .windows import open_windows

DEFAULT_SIZES = DetectorSizes()


def detector(
    student: nn.Module,
    data_spec: DataSpec,
    *,
    heads: DetectorSizes = DEFAULT_SIZES,
    window: int = 0,
    global_blocks: Sequence[int] = (),
    relative_positions: bool = False,
) -> Detector:
    """Build a detector around a student.

    Args:
        student: without classes, weights loaded already; it becomes a part of the detector.
        window: side of the attention windows, tokens; 0 leaves attention global.
        global_blocks: numbers of the blocks whose attention stays global.

    Raises: UserError for a map that the pyramid cannot halve.
    """
    open_windows(student, window, global_blocks, relative_positions)
    backbone = MapBackbone(student, data_spec.image_size, channels=data_spec.channels)
    (height, width), (stride,) = data_spec.image_size, backbone.strides
    if min(height, width) < 2 * stride:  # the pyramid halves the map
        raise UserError(
            f"detection needs a map of at least 2x2 tokens, got images of {height}x{width} pixels and patches of "
            f"{stride}; set images.image_size or student.patch_size"
        )
    network = Detector(backbone, len(data_spec.classes), heads)
    vars(network)["blueprint"] = blueprint(student)
    return network


def segmenter(
    student: nn.Module, data_spec: DataSpec, *, blocks: Sequence[int] = (), dropout: float = 0.0
) -> Segmenter:
    """Build a segmenter around a student.

    Args:
        blocks: numbers of the blocks whose maps are read; if empty, the last one.
    """
    if not 0 <= dropout < 1:
        raise UserError(f"method.dropout must lie in [0, 1), got {dropout}")
    backbone = MapBackbone(student, data_spec.image_size, blocks, channels=data_spec.channels)
    network = Segmenter(backbone, len(data_spec.classes), dropout)
    vars(network)["blueprint"] = blueprint(student)
    return network


def load_network(folder: Path) -> tuple[Detector | Segmenter, DataSpec]:
    """Load the detector or segmenter in a folder of weights, in inference mode, with its data_spec.

    Raises: UserError if files are missing, damaged or do not belong together, or if it holds a classifier.
    """
    config = read_config(folder)
    data_spec, name, arguments = parsed_config(config, folder / FILES[1])
    described = config.get("network")
    if not isinstance(described, dict):
        raise UserError(f"{folder} holds a classifier, no detector or segmenter")
    options = {key: value for key, value in arguments.items() if key not in FROM_DATA}

    def make() -> tuple[Detector | Segmenter, DataSpec]:
        student = create_student(name, replace(data_spec, classes=()), arguments.get("patch_size"), options)
        return built(student, data_spec, described), data_spec

    try:
        network, _ = filled(make, read_weights(folder / FILES[0]))
    except (KeyError, TypeError, RuntimeError) as error:
        raise UserError(f"{folder} is damaged: its files do not fit together ({str(error).splitlines()[0]})") from error
    return network.eval(), data_spec


def built(student: nn.Module, data_spec: DataSpec, described: dict[str, Any]) -> Detector | Segmenter:
    """Build around a student what `network` in a config.json describes."""
    kinds: dict[str, Callable[..., Detector | Segmenter]] = {"detection": detector, "segmentation": segmenter}
    keywords = {key: value for key, value in described.items() if key != "kind"}
    if described["kind"] not in kinds:
        raise unknown("kind of network", described["kind"], kinds)
    if isinstance(keywords.get("heads"), dict):
        keywords["heads"] = DetectorSizes(**keywords["heads"])
    return kinds[described["kind"]](student, data_spec, **keywords)
