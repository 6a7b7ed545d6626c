# SPDX-License-Identifier: Apache-2.0
"""The contract of a guide: it watches one forward pass of the student and says what it would change."""

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

from torch import Tensor, nn

from ..data.batches.batch import Batch as Batch  # which a guide of one's own finds here
from ..models.taps import Readings


class Given(Enum):
    """What a method may show the guides beside it. A method lists what it `gives`, a guide what it `asks`."""

    LABELS = "one label an image"  # batch["label"]
    CLASSES = "scores of the classes"  # Readings.outputs are the student's for the DataSpec's classes
    PATCHES = "a token for every patch"  # no patch is missing in the taps' readings


class Guide(nn.Module, ABC):
    """Teaches a student during training and is thrown away after it.

    A constructor takes `student` and `data_spec` first; its keywords after them are the guide's entry in a recipe. Its
    errors begin with the keyword: who makes it adds the entry's name, which is a person's own (`training.assemble`).
    Trainable parameters of a guide are trained with the student; a frozen teacher is kept in `models.teachers.Frozen`,
    which hides it from parameters, state dict and DDP.

    Attributes:
        needs: names of the taps it reads (see `models.taps.Taps`), opened only when some guide asks.
        asks: what the method must give; a recipe that pairs it with another method is refused.
        learns_labels: whether a term of its own compares predictions with labels.
        teaches_heads: whether it teaches the student's heads beside the first.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    asks: ClassVar[frozenset[Given]] = frozenset()
    learns_labels: ClassVar[bool] = False
    teaches_heads: ClassVar[bool] = False

    @abstractmethod
    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Named, weighted scalar terms that are added to the method's own.

        Args:
            batch: images by name, see `Batch`.
            readings: logits and tap readings of this very forward pass; gradients flow through them.
        """

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Called before every epoch (0-based) for weights that follow a schedule."""

    def after_backward(self) -> dict[str, Tensor]:
        """Called once a step when all gradients are there, averaged over processes, not yet unscaled or clipped.

        A guide with second parameters on the student's storage combines the two gradients here and clears its own.

        Returns: scalars to log.
        """
        return {}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """What the guide's own network scores on a held-out batch, means over its images."""
        return {}
