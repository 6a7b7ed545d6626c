# SPDX-License-Identifier: Apache-2.0
"""Teachers: networks that have learned already, are shown the student's images, and change no more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError, counted
from ..data_spec import DataSpec
from ..heads import token_logits
from .open import open_teacher


class Frozen(nn.Module):
    """A network in inference mode, without gradient, that is no part of what is trained or saved.

    Hidden from parameters(), state_dict(), modules(), DDP, train() and compile(); it follows moves to a device and
    stays in inference mode, so that neither weights nor batch statistics change. Its outputs carry no gradient.
    """

    memory: Callable[[Tensor, Callable[[], Any]], Any] | None = None
    """Called with images and a function that runs the network on them; gives the outputs, see `training.replay`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        vars(self)["hidden"] = net.eval().requires_grad_(False)  # an attribute, but no child

    @property
    def net(self) -> nn.Module:
        """The network, for those who mean it."""
        return vars(self)["hidden"]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.net._apply(fn)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]

    def forward(self, images: Tensor, *more: Any) -> Any:
        with torch.no_grad():
            if self.memory is None or more:
                return self.net(images, *more)
            return self.memory(images, lambda: self.net(images))


class Adapted(nn.Module):
    """A teacher with the student's input: images in another normalization and size than its own.

        images' = (images * std_s + mean_s - mean_t) / std_t      one affine map from the student's normalization

    then resized (bicubic, antialiased) to the teacher's size where that differs.

    Shape: [B, C, H, W] -> the teacher's outputs.

    Args:
        net: the teacher.
        student: what the student is shown.
        teacher: what the teacher was shown when it learned.
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
    """What a network's classifier reads. Shape: [B, C, H, W] -> [B, D].

    Args:
        net: one that follows timm's habits; of several heads the first one's.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        net: Any = self.net
        return token_logits(net.forward_head(net.forward_features(images), pre_logits=True))[0]


def load_teacher(source: str, data_spec: DataSpec, image_size: int | None = None) -> Frozen:
    """A frozen teacher for the student's images and classes.

    Args:
        source: a run or a folder of weights; a timm name with pretrained weights, such as
            regnety_160.deit_in1k; or ARCHITECTURE=FILE, a timm architecture and its .safetensors or .pth.
        data_spec: what the student is shown, normalization included.
        image_size: show the teacher images of so many pixels on a side; None: of the size it learned with.

    Raises: UserError if the teacher cannot be read, or tells other classes apart than the student.
    """
    net, known = open_teacher(source)
    _check_classes(source, known, data_spec)
    return adapted(source, net, known, data_spec, image_size)


def load_embedding(source: str, data_spec: DataSpec, image_size: int | None) -> Frozen:
    """A frozen teacher that gives what its classifier would read, [B, D], whatever classes it knows.

    Args: as of `load_teacher`.

    Raises: UserError if the teacher cannot be read.
    """
    net, known = open_teacher(source)
    return adapted(source, Embedding(net), known, data_spec, image_size)


def adapted(source: str, net: nn.Module, known: DataSpec, data_spec: DataSpec, image_size: int | None = None) -> Frozen:
    """The network, frozen, for images as a student gets them.

    Args:
        source: what it is called in an error.
        net: the network.
        known: what it reads.
        data_spec: what the student is shown.
        image_size: as of `load_teacher`.

    Raises: UserError if it cannot read images of that size or of so many channels.
    """
    if image_size is not None:
        known = replace(known, image_size=(image_size, image_size))
    check_channels(source, known, data_spec)
    teacher = Frozen(Adapted(net, data_spec, known))
    try:
        teacher(torch.zeros(1, data_spec.channels, *data_spec.image_size))
    except Exception as error:
        height, width = known.image_size
        reason = " ".join(str(error).split())
        raise UserError(f"the teacher {source} cannot read images of {height}x{width} pixels: {reason}") from error
    return teacher


def check_channels(source: str, known: DataSpec, data_spec: DataSpec) -> None:
    """Raises: UserError if a teacher takes other channels than the student's images have."""
    if known.channels != data_spec.channels:
        raise UserError(
            f"the teacher {source} takes {counted(known.channels, 'channel')}, and images.channels is "
            f"{data_spec.channels}; train a teacher on such images and name its run"
        )


def _check_classes(source: str, known: DataSpec, data_spec: DataSpec) -> None:
    """The teacher must tell the student's classes apart, in the same order; numbered classes match any names."""
    theirs, ours = known.classes, data_spec.classes
    if known.multilabel != data_spec.multilabel:
        words = {True: "several labels an image", False: "one class an image"}
        raise UserError(
            f"{source} learnt {words[known.multilabel]}, and the student learns {words[data_spec.multilabel]}"
        )
    if len(theirs) != len(ours):
        raise UserError(
            f"a teacher must know the student's {len(ours)} classes, {source} knows {len(theirs)}; "
            "train one on this data first and name its run"
        )
    if theirs != ours and theirs != tuple(map(str, range(len(theirs)))):
        place = next(place for place in range(len(ours)) if theirs[place] != ours[place])
        raise UserError(
            f"a teacher must know the student's classes in their order, but class {place} is {theirs[place]!r} "
            f"to {source} and {ours[place]!r} here"
        )
