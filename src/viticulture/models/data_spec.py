# SPDX-License-Identifier: Apache-2.0
"""The classes and images that a network is built for."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """Properties of a data set that a network must match.

    Args:
        classes: class names in the order of the logits; empty where a method trains without labels; ("value",) where
            it predicts a number.
        image_size: height and width of the network's input, pixels.
        mean: per channel, subtracted from images scaled to [0, 1].
        std: per channel, divides after the mean is subtracted.
        multilabel: whether an image may have any number of the classes instead of exactly one.
        scale: mean and standard deviation of the training images' numbers, by which a method standardizes what it
            predicts; None for classes.
        teacher_size: height and width of the images that teachers read, pixels; None: those of the network's input.
    """

    classes: tuple[str, ...]
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    multilabel: bool = False
    scale: tuple[float, float] | None = None
    teacher_size: tuple[int, int] | None = None

    @property
    def channels(self) -> int:
        """Channels of the network's input."""
        return len(self.mean)

    @property
    def teacher_shape(self) -> tuple[int, ...]:
        """Shape of a batch of one image for teachers, [1, C, H, W]."""
        return 1, self.channels, *(self.teacher_size or self.image_size)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of every class, [B, C]: a softmax over classes in float32, or with several labels a
        sigmoid each in float64, as the probability of absence, 1 - p, would be zero in float32 from a logit of 17. Of a
        network that predicts a number, that number, [B, 1], in the units of the labels."""
        if self.scale is not None:
            return logits.float() * self.scale[1] + self.scale[0]
        return logits.double().sigmoid() if self.multilabel else logits.float().softmax(-1)

    @property
    def output_name(self) -> str:
        """Name of an exported file's output, which `output_of` returns."""
        if self.scale is not None:
            return "value"
        return "features" if not self.classes else "probabilities" if self.multilabel else "logits"

    def output_of(self, logits: Tensor) -> Tensor:
        """Return an exported file's output: logits of classes, probabilities of labels, a number, or features."""
        if self.scale is not None:
            return self.probabilities(logits)
        return logits.sigmoid() if self.multilabel else logits
