# SPDX-License-Identifier: Apache-2.0
"""Teachers: trained, frozen networks that are run on the student's images; outputs.py and feature_maps.py load them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Self
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError, counted
from ...text import shell_word
from ..compiled_blocks import compile_blocks
from ..data_spec import DataSpec
from ..taps import Taps


class Frozen(nn.Module):
    """A frozen network, hidden from parameters and state dict.

    It is hidden from modules(), DDP and train() as well; it moves to devices and stays in inference mode, so that
    neither weights nor batch statistics change. Its outputs have no gradient.
    """

    memory: Callable[[Tensor, Callable[[], Any]], Any] | None = None
    """(images, function that runs the network on them) -> outputs, see `training.replay`."""
    last: tuple[ref[Tensor], Tensor] | None = None
    """The last images and their outputs, one row each, which several guides read."""
    compiled = "no"

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        vars(self)["hidden"] = net.eval().requires_grad_(False)  # an attribute, but no child

    @property
    def net(self) -> nn.Module:
        """The hidden network."""
        return vars(self)["hidden"]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.net._apply(fn)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]

    def compile_network(self, by_block: bool = False, **options: Any) -> None:
        """Compile the hidden network in place, without what adapts images; options are `torch.compile`'s."""
        self.compiled = "by block" if by_block else "whole"
        net = self.net.net if isinstance(self.net, Adapted) else self.net
        if isinstance(taps := getattr(net, "taps", None), Taps):  # their hooks are opened outside the graph
            taps.compile(by_block, **options)
        elif not (by_block and compile_blocks(net, **options)):
            net.compile(**options)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "last": None}  # a weak reference cannot be pickled

    def forward(self, images: Tensor, *more: Any) -> Any:
        with torch.no_grad():
            if more:
                return self.net(images, *more)
            if self.last is None or self.last[0]() is not images:
                compute = partial(self.net, images)
                outputs = compute() if self.memory is None else self.memory(images, compute)
                if not isinstance(outputs, Tensor) or outputs.ndim != 2:  # maps would fill memory until the next step
                    return outputs
                self.last = ref(images), outputs
            return self.last[1]


class Adapted(nn.Module):
    """A teacher on the student's images, in another normalization and size than the teacher's.

        images' = (images * std_s + mean_s - mean_t) / std_t      one affine map from the student's normalization

    then resized (bicubic, antialiased) to the teacher's size where that differs.

    Shape: [B, C, H, W] -> the teacher's outputs.

    Args:
        student: images of the student.
        teacher: images of the teacher's training.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, net: nn.Module, student: DataSpec, teacher: DataSpec) -> None:
        super().__init__()
        self.net, self.image_size = net, teacher.image_size
        mean_s, std_s, mean_t, std_t = (
            torch.tensor(values).view(1, -1, 1, 1) for values in (student.mean, student.std, teacher.mean, teacher.std)
        )
        self.register_buffer("scale", std_s / std_t)
        self.register_buffer("shift", (mean_s - mean_t) / std_t)
        self.same = (student.mean, student.std) == (teacher.mean, teacher.std)

    def forward(self, images: Tensor, *more: Any) -> Any:
        if not self.same:
            images = torch.addcmul(self.shift, images, self.scale)
        if images.shape[-2:] != self.image_size:
            images = F.interpolate(images, self.image_size, mode="bicubic", antialias=True)
        return self.net(images, *more)


def adapted(source: str, net: nn.Module, spec: DataSpec, data_spec: DataSpec, image_size: int | None = None) -> Frozen:
    """Freeze a network of `spec` for a student's images; `check_reads` tells whether it can read them. `image_size`:
    side of its input, pixels; None: as of `load_teacher`.
    """
    check_channels(source, spec, data_spec)
    size = data_spec.teacher_size if image_size is None else (image_size, image_size)
    return Frozen(Adapted(net, data_spec, spec if size is None else replace(spec, image_size=size)))


def check_reads(source: str, teacher: Frozen, data_spec: DataSpec) -> Any:
    """Return a teacher's outputs for one image.

    Raises: UserError if it cannot read images of that size, or its outputs are not finite.
    """
    try:
        outputs = teacher(torch.zeros(data_spec.teacher_shape))
    except Exception as error:
        net: Any = teacher.net
        height, width = net.image_size
        reason = " ".join(str(error).split())
        raise UserError(f"the teacher {source} cannot read images of {height}x{width} pixels: {reason}") from error
    if isinstance(outputs, Tensor) and not outputs.isfinite().all():
        raise UserError(f"the outputs of the teacher {source} are not finite; name a trained network")
    return outputs


def check_channels(source: str, spec: DataSpec, data_spec: DataSpec) -> None:
    """Raises: UserError if a teacher takes other channels than the student's images have."""
    if spec.channels != data_spec.channels:
        raise UserError(
            f"the teacher {source} takes {counted(spec.channels, 'channel')}, and images.channels is "
            f"{data_spec.channels}; train a teacher on such images and name its run"
        )


def check_classes(source: str, spec: DataSpec, data_spec: DataSpec) -> None:
    """Raises: UserError unless teacher and student have equal classes in one order; numbered ones match any names."""
    theirs, ours = spec.classes, data_spec.classes
    cure = f"viticulture probe {shell_word(source)} DATA --out RUN trains a classifier for these, and RUN can teach"
    if spec.multilabel != data_spec.multilabel:
        words = {True: "several labels an image", False: "one class an image"}
        theirs_is, ours_is = words[spec.multilabel], words[data_spec.multilabel]
        raise UserError(f"{source} was trained on {theirs_is}, and the student is trained on {ours_is}")
    if len(theirs) != len(ours):
        raise UserError(f"a teacher must have the student's {len(ours)} classes, {source} has {len(theirs)}; {cure}")
    if theirs != ours and theirs != tuple(map(str, range(len(theirs)))):
        place = next(place for place in range(len(ours)) if theirs[place] != ours[place])
        raise UserError(
            f"a teacher must have the student's classes in their order, but class {place} is {theirs[place]!r} "
            f"in {source} and {ours[place]!r} here; {cure}"
        )
