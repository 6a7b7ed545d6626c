# SPDX-License-Identifier: Apache-2.0
"""Mirror an image, with a given probability."""

from torch import Tensor

from .transform import Transform, apply_to_rows, check_share, rows_where


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
        return apply_to_rows(images, rows_where(u[:, 0] < self.probability), lambda some: some.flip(-1))
