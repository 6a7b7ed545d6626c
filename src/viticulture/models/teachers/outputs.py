# SPDX-License-Identifier: Apache-2.0
"""A frozen teacher's logits, pooled features and relations between patches, read from one pass a step.

    with shared_teachers({}):
        logits = load_teacher("runs/teacher", data_spec)
        features = load_teacher("runs/teacher", data_spec, output="features")
    logits(images), features(images)                                # one pass: [B, C], [B, D]

What guides need of a teacher stands in one row an image, so that replay (training/replay.py) stores it as it stores
logits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..data_spec import DataSpec
from ..taps import Readings, Taps, relations
from ..weights.sources import open_network
from .frozen import Frozen, adapted, check_classes, check_reads

Output = Literal["logits", "features", "relations"]
_TAP: dict[Output, str] = {"features": "features", "relations": "blocks"}
Opened = dict[tuple[str, int | None], tuple[Frozen, "Outputs", DataSpec]]
_opened: ContextVar[Opened | None] = ContextVar("teachers that guides of a run share", default=None)


class Outputs(nn.Module):
    """A network's requested outputs side by side, [B, C, H, W] -> [B, N].

    Attributes:
        names: of the outputs, in the order of their columns.
        widths: columns of each, from the first pass on.
        grid: rows and columns of the last map, from the first pass that reads it on.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.taps = net, Taps(net)
        self.names: tuple[Output, ...] = ()
        self.widths: list[int] = []
        self.grid = (0, 0)

    def request(self, name: Output) -> None:
        """Add an output, which the next pass returns as well."""
        if name not in self.names:
            names = *self.names, name
            self.taps = Taps(self.net, frozenset(_TAP[each] for each in names if each in _TAP))
            self.names = names

    def forward(self, images: Tensor) -> Tensor:
        readings = self.taps(images)
        outputs = [self._read(name, readings) for name in self.names]
        self.widths = [output.shape[1] for output in outputs]
        return outputs[0] if len(outputs) == 1 else torch.cat([output.float() for output in outputs], 1)

    def _read(self, name: Output, readings: Readings) -> Tensor:
        if name == "logits":
            return readings.outputs[0]
        if name == "features":
            return readings.features[0]
        rows, columns = readings.maps[-1].shape[-2:]
        self.grid = rows, columns
        return relations(readings.maps[-1]).flatten(1)


class TeacherOutput(nn.Module):
    """One output of a frozen teacher: images in the student's normalization -> logits [B, C], features [B, D], or the
    cosines between all P patches of the last map, [B, P P]."""

    def __init__(self, teacher: Frozen, outputs: Outputs, name: Output) -> None:
        super().__init__()
        self.teacher, self.name = teacher, name
        vars(self)["outputs"] = outputs  # hidden as the teacher's network is

    @property
    def outputs(self) -> Outputs:
        """The network, with what the last pass found about it."""
        return vars(self)["outputs"]

    @property
    def net(self) -> nn.Module:
        """The network."""
        return self.outputs.net

    @property
    def width(self) -> int:
        """Numbers of an image."""
        return self.outputs.widths[self.outputs.names.index(self.name)]

    def forward(self, images: Tensor) -> Tensor:
        row: Tensor = self.teacher(images)
        return torch.split(row, self.outputs.widths, 1)[self.outputs.names.index(self.name)]


def _reads(net: nn.Module, data_spec: DataSpec) -> bool:
    """True if a network reads images of the size for teachers."""
    try:
        with torch.no_grad():
            net.eval()(torch.zeros(data_spec.teacher_shape))
    except Exception:  # networks raise anything
        return False
    return True


@contextmanager
def shared_teachers(opened: Opened) -> Iterator[None]:
    """Share the networks of `opened` between all `load_teacher` in the block, and add those that it opens."""
    token = _opened.set(opened)
    try:
        yield
    finally:
        _opened.reset(token)


def load_teacher(
    source: str, data_spec: DataSpec, image_size: int | None = None, output: Output = "logits"
) -> TeacherOutput:
    """Load a frozen teacher for the student's images, and for logits of the student's classes.

    Args:
        source: of a trained network, as for `weights.sources.open_network`.
        image_size: side of the teacher's input, pixels; None: that of the images for teachers where the recipe makes
            some (`images.teacher_size`), else as in its training.

    Raises: UserError if the teacher cannot be read, has other classes than the student, or outputs that are not finite.
    """
    opened = _opened.get()
    opened = {} if opened is None else opened
    if (source, image_size) in opened:
        teacher, outputs, spec = opened[source, image_size]
    else:
        net, spec, _ = open_network(source)
        outputs = Outputs(net)
        side = image_size
        if side is None and data_spec.teacher_size is not None and not _reads(net, data_spec):
            side = spec.image_size[0]  # as of most ViTs: smaller images are enlarged
        teacher = adapted(source, outputs, spec, data_spec, side)
    if output == "logits":
        check_classes(source, spec, data_spec)
    try:
        outputs.request(output)
    except UserError as error:
        raise UserError(f"the teacher {source} has no {output} to read: {error}") from error
    check_reads(source, teacher, data_spec)
    opened[source, image_size] = teacher, outputs, spec
    return TeacherOutput(teacher, outputs, output)
