# SPDX-License-Identifier: Apache-2.0
"""The mean over all images of what comes batch by batch."""

from torch import Tensor

from ..errors import UserError


class RunningMean:
    """Mean of values that come one an image, whatever the sizes of their batches; memory of one image."""

    def __init__(self) -> None:
        self.images = 0
        self._sum: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Count a batch, [B, ...]."""
        total = values.detach().sum(0).cpu().double()
        self._sum = total if self._sum is None else self._sum + total
        self.images += len(values)

    def value(self) -> Tensor:
        """The mean so far, [...], double precision.

        Raises: UserError before the first image.
        """
        if self._sum is None or self.images == 0:
            raise UserError("there is no mean of no images; add a batch first")
        return self._sum / self.images
