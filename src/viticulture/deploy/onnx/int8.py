# SPDX-License-Identifier: Apache-2.0
"""A student whose large products are computed in eight bits, and what that costs in accuracy on its own test images.

Static quantization by onnxruntime: weights of convolutions and linear layers as int8, one scale a channel of their
output; what flows into them as uint8, with scales from training images. All else stays in float32: sums around the
blocks, norms, softmax, and the two products of attention, whose operands have no fixed weights.

Weights take seven of the eight bits: processors without instructions for such products (VNNI) add two of them in
sixteen bits, which whole int8 overflows without a word.
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
from ...disk import unfinished
from ...errors import UserError
from ...evaluation.model import EvaluatedModel
from ...outputs import check_out
from .onnx_file import Finish, check_ending, check_installed, to_onnx

CALIBRATION = 256
"""Training images whose values set the scales."""
TIMED = 30
"""Single images whose times are compared."""
AT_ONCE = 4
"""Float32 files that stand beside each other on the way; onnxruntime says nothing clear of one that is cut off."""


@dataclass(frozen=True)
class Cost:
    """What one file takes and gives.

    Args:
        top1: accuracy on the test images, in [0, 1].
        size: bytes of the file.
        milliseconds: processor time of one image by itself, median, on one thread.
    """

    top1: float
    size: int
    milliseconds: float


@dataclass(frozen=True)
class Quantized:
    """A file in eight bits beside the float32 file of the same student.

    Args:
        path: the file.
        before: of float32.
        after: of eight bits.
        same: share of the test images that both give the same class.
        images: how many test images there were.
    """

    path: Path
    before: Cost
    after: Cost
    same: float
    images: int


def to_int8(
    subject: EvaluatedModel,
    train: Images,
    test: Images | None,
    path: Path,
    more: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
) -> Quantized:
    """Write a student as ONNX with eight-bit products, and ask both files about the same images.

    Inputs, outputs and metadata are those of `to_onnx`. The file appears under its name only once it is whole.

    Args:
        subject: the student, and how it is shown images.
        train: what it learnt from; images from all over it set the scales, as neighbors may be of one class.
        test: labeled images, which decide nothing.
        path: the file, .onnx.
        more: metadata besides, as for `to_onnx`.
        finish: as for `to_onnx`; both files are asked before it.

    Raises: UserError if onnxruntime is not installed, there are no test images, or the file cannot be written.
    """
    check_installed("onnx", "onnxscript", "onnxruntime")
    check_ending(path)
    check_out(path, ".onnx", size=AT_ONCE * sum(weight.nbytes for weight in subject.network.parameters()))
    if not test or not len(test):
        raise UserError("what eight bits cost is measured on test images, of which this run has none")
    outcomes: list[Quantized] = []

    def in_eight_bits(unfinished: Path) -> None:
        few = min(CALIBRATION, len(train))
        some = train.part(torch.arange(few) * len(train) // few)
        before, in_float = _cost(unfinished, subject, test)
        _quantize(unfinished, (batch["image"].cpu() for batch in subject.batches(some)))
        after, in_int8 = _cost(unfinished, subject, test)
        outcomes.append(Quantized(path, before, after, int((in_float == in_int8).sum()) / len(in_float), len(in_float)))
        if finish is not None:
            finish(unfinished)

    to_onnx(subject.tta_network, path, subject.data_spec, more, in_eight_bits)
    return outcomes[0]


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A folder for what is written for a moment, by onnxruntime too, on the disk where there must be room anyway."""
    usual = tempfile.tempdir
    folder = unfinished(path)
    folder.mkdir()
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = usual
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _room_in(folder: Path, size: int) -> Iterator[None]:
    """The block in which onnxruntime writes files of about a size. Raises: OSError if there is no room for them,
    whatever onnxruntime makes of a file that was cut off."""
    if shutil.disk_usage(folder).free < (AT_ONCE - 1) * size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        yield
    except Exception as error:
        if shutil.disk_usage(folder).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def _quantize(path: Path, images: Iterable[Tensor]) -> None:
    """A float32 file becomes one in eight bits."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self.feeds = ({"image": batch.numpy()} for batch in images)

        def get_next(self) -> Any:
            return next(self.feeds, None)

    about = {p.key: p.value for p in onnx.load(str(path), load_external_data=False).metadata_props}
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of every vector that has no channels to scale one by one
    try:
        with _beside(path) as folder, _room_in(folder, path.stat().st_size):
            ready = folder / "folded.onnx"
            quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)  # folds BatchNorm into convolutions
            graph = onnx.load(str(ready), load_external_data=False).graph
            weights = {tensor.name for tensor in graph.initializer}
            free = [node.name for node in graph.node if node.op_type == "MatMul" and not weights & set(node.input)]
            quantize_static(
                str(ready),
                str(path),
                Reader(),
                op_types_to_quantize=["Conv", "MatMul", "Gemm"],
                nodes_to_exclude=free,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                reduce_range=True,
            )
    finally:
        logger.setLevel(level)
    whole = onnx.load(str(path))
    onnx.helper.set_model_props(whole, about)
    onnx.save(whole, str(path))


def _cost(path: Path, subject: EvaluatedModel, test: Images) -> tuple[Cost, Tensor]:
    """What a file costs, and the class that it gives to every image."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    classes: list[Tensor] = []
    labels: list[Tensor] = []
    spent: list[float] = []
    for batch in subject.batches(test):
        images = batch["image"].cpu().numpy()
        classes.append(torch.from_numpy(session.run(["logits"], {"image": images})[0]).argmax(1))
        labels.append(batch["label"].cpu())
        for i in range(min(TIMED - len(spent), len(images))):
            start = time.process_time()
            session.run(["logits"], {"image": images[i : i + 1]})
            spent.append(time.process_time() - start)
    predicted = torch.cat(classes)
    right = int((predicted == torch.cat(labels)).sum())
    return Cost(right / len(predicted), path.stat().st_size, 1e3 * median(spent)), predicted
