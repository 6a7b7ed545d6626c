# SPDX-License-Identifier: Apache-2.0
"""Teachers: trained, frozen networks that are run on the student's images."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError, counted
from ..data_spec import DataSpec
from ..heads import token_logits
from ..weights.sources import open_network


class Frozen(nn.Module):
    """A frozen network, hidden from parameters and state dict.

    It is hidden from modules(), DDP and train() as well; it moves to devices and stays in inference mode, so that
    neither weights nor batch statistics change. Its outputs have no gradient.
    """

    memory: Callable[[Tensor, Callable[[], Any]], Any] | None = None
    """(images, function that runs the network on them) -> outputs, see `training.replay`."""

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

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the hidden network in place; arguments are `torch.compile`'s."""
        self.net.compile(*arguments, **options)

    def forward(self, images: Tensor, *more: Any) -> Any:
        with torch.no_grad():
            if self.memory is None or more:
                return self.net(images, *more)
            return self.memory(images, lambda: self.net(images))


class Adapted(nn.Module):
    """A teacher on the student's images, in another normalization and size than the teacher's.

        images' = (images * std_s + mean_s - mean_t) / std_t      one affine map from the student's normalization

    then resized (bicubic, antialiased) to the teacher's size where that differs.

    Shape: [B, C, H, W] -> the teacher's outputs.

    Args:
        net: the teacher.
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


class Embedding(nn.Module):
    """The features that a timm network's classifier, of several the first, reads. [B, C, H, W] -> [B, D]."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        net: Any = self.net
        return token_logits(net.forward_head(net.forward_features(images), pre_logits=True))[0]


def load_teacher(source: str, data_spec: DataSpec, image_size: int | None = None) -> Frozen:
    """Load a frozen teacher for the student's images and classes.

    Args:
        source: of a trained network, as for `weights.sources.open_network`.
        image_size: side of the teacher's input, pixels; None: as in its training.

    Raises: UserError if the teacher cannot be read, or has other classes than the student.
    """
    net, spec, _ = open_network(source)
    _check_classes(source, spec, data_spec)
    return adapted(source, net, spec, data_spec, image_size)


def load_embedding(source: str, data_spec: DataSpec, image_size: int | None) -> Frozen:
    """Load a frozen teacher that returns the features before its classifier, [B, D], of any classes.

    Args, Raises: as of `load_teacher`.
    """
    net, spec, _ = open_network(source)
    return adapted(source, Embedding(net), spec, data_spec, image_size)


def adapted(source: str, net: nn.Module, spec: DataSpec, data_spec: DataSpec, image_size: int | None = None) -> Frozen:
    """Freeze a network for a student's images.

    Raises: UserError if it cannot read images of that size or of so many channels, or its outputs are not finite.
    """
    if image_size is not None:
        spec = replace(spec, image_size=(image_size, image_size))
    check_channels(source, spec, data_spec)
    teacher = Frozen(Adapted(net, data_spec, spec))
    try:
        outputs = teacher(torch.zeros(1, data_spec.channels, *data_spec.image_size))
    except Exception as error:
        height, width = spec.image_size
        reason = " ".join(str(error).split())
        raise UserError(f"the teacher {source} cannot read images of {height}x{width} pixels: {reason}") from error
    if isinstance(outputs, Tensor) and not outputs.isfinite().all():
        raise UserError(f"the outputs of the teacher {source} are not finite; name a trained network")
    return teacher


def check_channels(source: str, spec: DataSpec, data_spec: DataSpec) -> None:
    """Raises: UserError if a teacher takes other channels than the student's images have."""
    if spec.channels != data_spec.channels:
        raise UserError(
            f"the teacher {source} takes {counted(spec.channels, 'channel')}, and images.channels is "
            f"{data_spec.channels}; train a teacher on such images and name its run"
        )


def _check_classes(source: str, spec: DataSpec, data_spec: DataSpec) -> None:
    """Raises: UserError unless teacher and student have equal classes in one order; numbered ones match any names."""
    theirs, ours = spec.classes, data_spec.classes
    if spec.multilabel != data_spec.multilabel:
        words = {True: "several labels an image", False: "one class an image"}
        theirs_is, ours_is = words[spec.multilabel], words[data_spec.multilabel]
        raise UserError(f"{source} was trained on {theirs_is}, and the student is trained on {ours_is}")
    if len(theirs) != len(ours):
        raise UserError(
            f"a teacher must have the student's {len(ours)} classes, {source} has {len(theirs)}; "
            "train one on this data first and name its run"
        )
    if theirs != ours and theirs != tuple(map(str, range(len(theirs)))):
        place = next(place for place in range(len(ours)) if theirs[place] != ours[place])
        raise UserError(
            f"a teacher must have the student's classes in their order, but class {place} is {theirs[place]!r} "
            f"in {source} and {ours[place]!r} here"
        )
