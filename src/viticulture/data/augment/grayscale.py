# SPDX-License-Identifier: Apache-2.0
"""Take an image's color away, with a given probability."""

from torch import Tensor

from .color import luma
from .kernels import to_bytes
from .transform import Transform, apply_to_rows, check_share, rows_where


class Gray(Transform):
    """Replace every channel by the gray value.

    Args:
        probability: of graying an image.
    """

    columns = 1

    def __init__(self, probability: float = 0.2) -> None:
        check_share("gray", "probability", probability)
        self.probability = probability

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return apply_to_rows(images, rows_where(u[:, 0] < self.probability), to_gray)


def to_gray(images: Tensor) -> Tensor:
    """The gray value in every channel."""
    return to_bytes(luma(images))[:, None].expand(-1, images.shape[1], -1, -1)
