# SPDX-License-Identifier: Apache-2.0
"""Take an image's colour away, at the toss of a coin."""

from torch import Tensor

from .color import luma
from .kernels import to_bytes
from .transform import Transform, alter, check_share, rows_where


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


def grey(images: Tensor) -> Tensor:
    """The grey value in all three channels."""
    return to_bytes(luma(images))[:, None].expand(-1, 3, -1, -1)
