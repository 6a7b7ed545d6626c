# SPDX-License-Identifier: Apache-2.0
"""Whether a layer keeps detail or smooths it away: Fourier amplitude of its tokens laid out as an image.

    mean = RunningMean()
    for images in batches:
        mean.add(relative_log_amplitude(patch_tokens(taps(images).blocks[layer], taps.layout), grid))
    mean.value()[-1]                        # the layer's delta log amplitude

Source: Park and Kim, "How Do Vision Transformers Work?", ICLR 2022, arXiv:2202.06709, Figure 2; its notebook defines
what Wang et al., arXiv:2205.14443, plot.
"""

import math

import torch
from torch import Tensor

from ..errors import UserError
from ..models.vit.patches import PatchGrid

EPSILON = 1e-6  # keeps the logarithm finite; the authors'


def relative_log_amplitude(tokens: Tensor, grid: PatchGrid) -> Tensor:
    """Amplitude along the diagonal of frequencies, relative to that of frequency zero.

        A(f) = mean over channels of log(|F(f, f)| + 1e-6) - the same of F(0, 0)

    The last value is the delta log amplitude of [Park and Kim]: the more negative, the more the layer smooths.

    Args:
        tokens: patch tokens row by row, [B, P, D]; no class token.
        grid: rows and columns of patches, equally many.

    Returns: [B, K], natural logarithm, at the frequencies of `frequencies`; the first value is 0.
    Raises: UserError for a grid that is not square or has another number of patches.
    """
    if grid[0] != grid[1] or tokens.shape[1] != math.prod(grid):
        raise UserError(
            f"the diagonal of frequencies needs a square grid and all of its patches, got {tokens.shape[1]} patches "
            f"and a grid of {grid[0]}x{grid[1]}; show the student square images"
        )
    maps = torch.unflatten(tokens.float(), 1, grid)  # [B, rows, columns, D]
    spectrum = torch.fft.fft2(maps, dim=(1, 2))
    half = torch.arange((grid[0] + 1) // 2)
    amplitude = (spectrum[:, half, half].abs() + EPSILON).log().mean(-1)  # [B, K]
    return amplitude - amplitude[:, :1]


def frequencies(grid: PatchGrid) -> list[float]:
    """Of `relative_log_amplitude`, in units of pi a patch, from 0 to the last one below 1.

    The authors label the last one 1.0 pi, whatever the grid.
    """
    return [2 * k / grid[0] for k in range((grid[0] + 1) // 2)]
