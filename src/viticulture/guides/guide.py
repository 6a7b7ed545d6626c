# SPDX-License-Identifier: Apache-2.0
"""The contract of a guide, which reads the student's forward pass and adds loss terms."""

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar

from torch import Tensor, nn

from ..data.batches.targets import TEACHER_IMAGE
from ..data.batches.targets import Batch as Batch
from ..errors import UserError
from ..models.taps import Readings


class Capability(Enum):
    """Something that a method `provides` and a guide `requires`."""

    LABELS = "one label an image"  # batch["label"]
    CLASSES = "scores of the classes"  # Readings.outputs are the student's for the DataSpec's classes
    FEATURES = "pooled features of the whole image"  # the student's own pass, up to its classifier
    PATCHES = "a token for every patch"  # no patch is missing in the taps' readings


def teacher_images(batch: Batch) -> Tensor:
    """Return the images for teachers, [B, C, h, w]: the student's in another size where the batch has them."""
    return batch.get(TEACHER_IMAGE, batch["image"])


def check_positive(**numbers: float) -> None:
    """Raises: UserError for a keyword's number that is not positive."""
    for name, number in numbers.items():
        if number <= 0:
            off = "; to switch the guide off, leave it out" if name == "weight" else ""
            raise UserError(f"{name} must be positive, got {number}{off}")


class Guide(nn.Module, ABC):
    """Teaches a student during training and is thrown away after it.

    A constructor takes `student` and `data_spec` first; its other keywords are the guide's entry in a recipe. Error
    messages begin with the keyword, before which the entry's name is put. Trainable parameters of a guide are trained
    with the student; a frozen teacher belongs into `models.teachers.Frozen`, which hides it from parameters, state dict
    and DDP.

    Attributes:
        needs: names of the taps that it reads (`models.taps.Taps`).
        requires: what the method must provide; a recipe with another method is refused.
        uses_labels: a term compares predictions with labels.
        capturable: as of a method (`methods.method.Method`).
        trains_every_head: it trains the student's heads after the first, too.
        trains_last_head: it trains the last of them.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[Capability]] = frozenset()
    uses_labels: ClassVar[bool] = False
    capturable: ClassVar[bool] = False
    trains_every_head: ClassVar[bool] = False
    trains_last_head: ClassVar[bool] = False

    @abstractmethod
    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return named, weighted scalar terms, added to the method's.

        Args:
            batch: images by name, see `Batch`.
            readings: outputs and taps of the student's pass; gradients flow through them.
        """

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Runs before every epoch, counted from 0, for weights that follow a schedule."""

    def compile_networks(self, **options: Any) -> None:
        """Compile what the guide trains, in place; frozen teachers are compiled without it. Options are
        `torch.compile`'s."""

    def after_backward(self) -> dict[str, Tensor]:
        """Runs once a step when all gradients are there, averaged over processes, not yet unscaled or clipped.

        A guide that shares the student's weights combines the two gradients here and clears its gradients.

        Returns: scalars to log.
        """
        return {}

    def after_step(self) -> None:
        """Runs after the optimizer's step."""

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return metrics of the guide's network on a held-out batch, means over its images."""
        return {}
