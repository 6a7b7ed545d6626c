# SPDX-License-Identifier: Apache-2.0
"""Mirror an image, at the toss of a coin."""

from torch import Tensor

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
