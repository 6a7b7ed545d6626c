# SPDX-License-Identifier: Apache-2.0
"""Changes that a coin decides for each image: flip, gray, solarize."""

import torch
from torch import Tensor

from ...errors import UserError
from .colour import luma
from .levels import solarize
from .transform import Transform, alter, check_share, rows_where


class Flip(Transform):
    """Mirror left and right. Leave it out where sides mean something: digits, letters.

    Args:
        probability: of mirroring an image.
    """

    columns = 1

    def __init__(self, probability: float = 0.5) -> None:
        check_share("flip", "probability", probability)
        self.probability = probability

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return alter(images, rows_where(u[:, 0] < self.probability), lambda some: some.flip(-1))


class Gray(Transform):
    """Replace the three channels by the grey value.

    Args:
        probability: of greying an image.
    """

    columns = 1

    def __init__(self, probability: float = 0.2) -> None:
        check_share("gray", "probability", probability)
        self.probability = probability

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return alter(images, rows_where(u[:, 0] < self.probability), grey)


class Solarize(Transform):
    """Invert the bright levels.

    Args:
        probability: of solarizing an image.
        threshold: grey level, 0 to 255, from which on levels are inverted.
    """

    columns = 1

    def __init__(self, probability: float = 0.2, threshold: int = 128) -> None:
        check_share("solarize", "probability", probability)
        if not 0 <= threshold <= 255:
            raise UserError(f"solarize.threshold must be a grey level from 0 to 255, got {threshold}")
        self.probability, self.threshold = probability, threshold

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return alter(images, rows_where(u[:, 0] < self.probability), lambda some: solarize(some, self.threshold))


def grey(images: Tensor) -> Tensor:
    """The grey value in all three channels."""
    return luma(images).to(torch.uint8)[:, None].expand(-1, 3, -1, -1)
