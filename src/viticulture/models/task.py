# SPDX-License-Identifier: Apache-2.0
"""What a network is asked to do: the classes it tells apart and the images it is shown."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """The part of a data set that a network must agree with.

    Args:
        classes: class names in the order of the logits; empty where a method learns without labels.
        image_size: height and width of the network's input, pixels.
        mean: per channel, subtracted from images scaled to [0, 1].
        std: per channel, divides after the mean is subtracted.
    """

    classes: tuple[str, ...]
    image_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
