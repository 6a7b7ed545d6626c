# SPDX-License-Identifier: Apache-2.0
"""A detector or a segmenter as an ONNX file that takes an image as a camera gives it.

    image [H, W, 3] uint8, RGB, upright, of any size from 2 pixels each way; of a run with other channels as many of
          levels, to which a named range must have been applied

    detector     ->  boxes [n, 4] float32 left, top, right, bottom in the image's pixels, scores [n], labels [n] int64,
                     and with masks: masks [n, H, W] bool; most certain first
    segmenter    ->  classes [H, W] uint8

Resizing, padding and normalization are inside, and so are the choice of boxes and the way back to the image's pixels.
Metadata are JSON texts: `classes`, `kind` (detection or segmentation), `input`, `outputs`, `image_size` (what the
network sees, pixels), `mean`, `std` and, where one was named, `range`. Masks of n objects take 5 n H W bytes while they
are made.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...models.data_spec import DataSpec
from ...models.detection.detector import Detector
from ...models.detection.segmenter import Segmenter
from .agreement import check_agreement, something
from .canvas import Canvas, back, pasted, stretched
from .detections import Detections
from .onnx_file import inference_copy, traced, written

OPSET = 18
INSIDE = 0.5  # share from which a pixel belongs to a mask
INPUT = "[H, W, {channels}] uint8, {kind}, upright, of any height and width from 2 pixels"


class DetectorFile(nn.Module):
    """What a detector's file computes: [H, W, channels] uint8 -> boxes, scores, labels and, if any, masks."""

    outputs = ("boxes", "scores", "labels", "masks")

    def __init__(self, detector: Detector, data_spec: DataSpec, store: int) -> None:
        super().__init__()
        self.canvas, self.detections = Canvas(data_spec, store), Detections(detector, data_spec.image_size[0])

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        size, extent = (image.shape[0], image.shape[1]), self.canvas.extent(image)
        boxes, scores, labels, *masks = self.detections(self.canvas(image))
        boxes = back(boxes, extent, size)
        solid = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1).nonzero()[:, 0]  # in padding there is nothing
        boxes, scores, labels = boxes[solid], scores[solid], labels[solid]
        return (boxes, scores, labels, *(pasted(shares[solid], boxes, size) >= INSIDE for shares in masks))


class SegmenterFile(nn.Module):
    """What a segmenter's file computes: [H, W, channels] uint8 -> classes [H, W] uint8."""

    outputs = ("classes",)

    def __init__(self, segmenter: Segmenter, data_spec: DataSpec, store: int) -> None:
        super().__init__()
        self.canvas, self.segmenter = Canvas(data_spec, store), segmenter

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        size, extent = (image.shape[0], image.shape[1]), self.canvas.extent(image)
        logits = self.segmenter(self.canvas(image))[0]  # [C, S, S]
        return (stretched(logits, extent, size).argmax(0).to(torch.uint8),)


def dense_to_onnx(
    network: Detector | Segmenter, path: Path, data_spec: DataSpec, store: int, more: Mapping[str, Any] | None = None
) -> Path:
    """Write a network as ONNX, and compare it with the original where onnxruntime is installed.

    It appears under its name only once it is whole. The network itself is not changed.

    Args:
        network: of a run.
        path: the file, .onnx.
        data_spec: its classes, image size and colors.
        store: side of the square in which its images were kept, pixels.
        more: further metadata, such as `range`, the values that are black and white.

    Raises:
        UserError: the extra `onnx` is not installed, the file cannot be written, or torch cannot trace the network.
        RuntimeError: the file's answers differ from the network's.
    """
    eager = file_of(inference_copy(network, path), data_spec, store).eval()
    sizes = {side: torch.export.Dim(name, min=2) for side, name in enumerate(("height", "width"))}
    program = traced(eager, something((48, 64), 0, data_spec.channels), sizes, "network for images of any size")
    names = eager.outputs[: len(program.graph_signature.user_outputs)]
    plain = data_spec.channels == 3 and "range" not in (more or {})
    about = {
        "classes": data_spec.classes,
        "kind": "detection" if isinstance(network, Detector) else "segmentation",
        "input": INPUT.format(channels=data_spec.channels, kind="RGB" if plain else "levels"),
        "outputs": names,
        "image_size": data_spec.image_size,
        "mean": data_spec.mean,
        "std": data_spec.std,
        **(more or {}),
    }
    with written(path, program, sizes, names, about, OPSET) as unfinished:
        if find_spec("onnxruntime"):
            _check(unfinished, eager)
    return path


def file_of(network: Detector | Segmenter, data_spec: DataSpec, store: int) -> DetectorFile | SegmenterFile:
    """What a network's file computes, as a module."""
    if isinstance(network, Detector):
        return DetectorFile(network, data_spec, store)
    return SegmenterFile(network, data_spec, store)


def _check(path: Path, eager: nn.Module) -> None:
    session: Any = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def answers(image: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(each) for each in session.run(None, {"image": image.numpy()}))

    check_agreement(answers, eager)
