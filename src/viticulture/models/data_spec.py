# SPDX-License-Identifier: Apache-2.0
"""What a network is asked to do: the classes it tells apart and the images it is shown."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """The part of a data set that a network must agree with.

    Args:
        classes: class names in the order of the logits; empty where a method learns without labels.
        image_size: height and width of the network's input, pixels.
        mean: per channel, subtracted from images scaled to [0, 1].
        std: per channel, divides after the mean is subtracted.
        several: whether an image may show any number of the classes, each told by itself, instead of one of them.
    """

    classes: tuple[str, ...]
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    several: bool = False

    @property
    def channels(self) -> int:
        """Of the network's input."""
        return len(self.mean)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of every class, [B, C]: a softmax over classes in float32, or of several an image a sigmoid each in float64,
        as that a class is not shown is what is left to 1, and of a float32 nothing is left from a logit of 17 on."""
        return logits.double().sigmoid() if self.several else logits.float().softmax(-1)
