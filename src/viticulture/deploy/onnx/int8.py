# SPDX-License-Identifier: Apache-2.0
"""A student with its large products in int8, and the cost in accuracy on its test images.

Static quantization by onnxruntime: weights of convolutions and linear layers as int8, one scale per output channel;
their inputs as uint8, with scales from training images. Everything else stays in float32: residual sums, norms,
softmax, and the two products of attention, which have no fixed weights.

Weights use seven of the eight bits: processors without instructions for such products (VNNI) add two of them in
sixteen bits, which full int8 overflows silently.
"""

import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...data.image_set import Images
from ...disk import partial_path
from ...errors import UserError
from ...evaluation.model import EvaluatedModel
from ...outputs import check_out
from .graph import Finish, check_ending, check_installed, to_onnx

CALIBRATION = 256  # training images that determine the scales
TIMED = 30  # single images that are timed
FILES = 4  # Float32 files that exist at once during quantization; onnxruntime has no clear error for a truncated one


@dataclass(frozen=True)
class Cost:
    """Accuracy, size and time of one file."""

    top1: float  # accuracy on the test images, in [0, 1]
    size: int
    milliseconds: float  # processor time of a single image, median, on one thread


@dataclass(frozen=True)
class Quantized:
    """An int8 file compared with the float32 file of the same student."""

    path: Path
    before: Cost
    after: Cost
    same: float  # share of the test images for which both predict the same class
    images: int


def to_int8(
    model: EvaluatedModel,
    train: Images,
    test: Images | None,
    path: Path,
    more: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
) -> Quantized:
    """Write a student as ONNX with int8 products, and evaluate it and the float32 file on the same images.

    Inputs, outputs and metadata are those of `to_onnx`. The file appears under its name only once it is whole.

    Args:
        train: training images, from all of which calibration images are drawn, as neighbors may be of one class.

    Raises: UserError if onnxruntime is not installed, there are no test images, or the file cannot be written.
    """
    check_installed("onnx", "onnxscript", "onnxruntime")
    check_ending(path)
    check_out(path, ".onnx", size=FILES * sum(weight.nbytes for weight in model.network.parameters()))
    if not test or not len(test):
        raise UserError("the cost of int8 is measured on test images, and this run has none")
    results: list[Quantized] = []

    def quantize(unfinished: Path) -> None:
        count = min(CALIBRATION, len(train))
        some = train.part(torch.arange(count) * len(train) // count)
        before, in_float = _evaluate(unfinished, model, test)
        _quantize(unfinished, (batch["image"].cpu() for batch in model.batches(some)))
        after, in_int8 = _evaluate(unfinished, model, test)
        results.append(Quantized(path, before, after, int((in_float == in_int8).sum()) / len(in_float), len(in_float)))
        if finish is not None:
            finish(unfinished)

    to_onnx(model.tta_network, path, model.data_spec, more, quantize)
    return results[0]


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Make a temporary folder next to a file, for onnxruntime's temporary files too.

    Raises: OSError for a full disk, whatever onnxruntime raises about a truncated file.
    """
    size, previous, folder = path.stat().st_size, tempfile.tempdir, partial_path(path)
    folder.mkdir()
    tempfile.tempdir = str(folder)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        if shutil.disk_usage(folder).free < (FILES - 1) * size:
            raise full
        try:
            yield folder
        except Exception as error:
            if shutil.disk_usage(folder).free < size:
                raise full from error
            raise
    finally:
        tempfile.tempdir = previous
        shutil.rmtree(folder, ignore_errors=True)


def _quantize(path: Path, images: Iterable[Tensor]) -> None:
    """Replace a float32 file by an int8 file."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self.feeds = ({"image": batch.numpy()} for batch in images)

        def get_next(self) -> Any:
            return next(self.feeds, None)

    metadata = {p.key: p.value for p in onnx.load(str(path), load_external_data=False).metadata_props}
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns about every vector without channels
    try:
        with _scratch(path) as folder:
            ready = folder / "folded.onnx"
            quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)  # folds BatchNorm into convolutions
            graph = onnx.load(str(ready), load_external_data=False).graph
            weights = {tensor.name for tensor in graph.initializer}
            attention = [node.name for node in graph.node if node.op_type == "MatMul" and not weights & set(node.input)]
            quantize_static(
                str(ready),
                str(path),
                Reader(),
                op_types_to_quantize=["Conv", "MatMul", "Gemm"],
                nodes_to_exclude=attention,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                reduce_range=True,
            )
    finally:
        logger.setLevel(level)
    whole = onnx.load(str(path))
    onnx.helper.set_model_props(whole, metadata)
    onnx.save(whole, str(path))


def _evaluate(path: Path, model: EvaluatedModel, test: Images) -> tuple[Cost, Tensor]:
    """Return the cost of a file, and its class for every image."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    predicted: list[Tensor] = []
    labels: list[Tensor] = []
    seconds: list[float] = []
    for batch in model.batches(test):
        images = batch["image"].cpu().numpy()
        predicted.append(torch.from_numpy(session.run(["logits"], {"image": images})[0]).argmax(1))
        labels.append(batch["label"].cpu())
        for i in range(min(TIMED - len(seconds), len(images))):
            start = time.process_time()
            session.run(["logits"], {"image": images[i : i + 1]})
            seconds.append(time.process_time() - start)
    classes = torch.cat(predicted)
    top1 = float((classes == torch.cat(labels)).double().mean())
    return Cost(top1, path.stat().st_size, 1e3 * median(seconds)), classes
