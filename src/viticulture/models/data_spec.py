# SPDX-License-Identifier: Apache-2.0
"""The classes and images that a network is built for."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """Properties of a data set that a network must match.

    Args:
        classes: class names in the order of the logits; empty where a method trains without labels.
        image_size: height and width of the network's input, pixels.
        mean: per channel, subtracted from images scaled to [0, 1].
        std: per channel, divides after the mean is subtracted.
        multilabel: whether an image may have any number of the classes instead of exactly one.
    """

    classes: tuple[str, ...]
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    multilabel: bool = False

    @property
    def channels(self) -> int:
        """Channels of the network's input."""
        return len(self.mean)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of every class, [B, C]: a softmax over classes in float32, or with several labels a
        sigmoid each in float64, as the probability of absence, 1 - p, would be zero in float32 from a logit of 17."""
        return logits.double().sigmoid() if self.multilabel else logits.float().softmax(-1)
