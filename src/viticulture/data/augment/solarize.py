# SPDX-License-Identifier: Apache-2.0
"""Invert bright pixels, with a given probability."""

from torch import Tensor

from ...errors import UserError
from .pixelwise import solarize
from .transform import Transform, apply_to_rows, check_share, rows_where


class Solarize(Transform):
    """Invert the bright levels.

    Args:
        probability: of solarizing an image.
        threshold: gray level, 0 to 255, from which on levels are inverted.
    """

    columns = 1

    def __init__(self, probability: float = 0.2, threshold: int = 128) -> None:
        check_share("solarize", "probability", probability)
        if not 0 <= threshold <= 255:
            raise UserError(f"solarize.threshold must be a gray level from 0 to 255, got {threshold}")
        self.probability, self.threshold = probability, threshold

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return apply_to_rows(
            images, rows_where(u[:, 0] < self.probability), lambda some: solarize(some, self.threshold)
        )
