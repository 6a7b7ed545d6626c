# SPDX-License-Identifier: Apache-2.0
"""CONV, the generalized convolution: as many kernel positions as a ViT has heads, one matrix each.

    Y = sum_h Phi_h X W_h                                   Eq. (3) of [1]

X holds n tokens in rows; Phi_h is the 0/1 matrix that assigns every token its h-th neighbor, or nothing beyond the
border. Neighbors are taken from a window of ceil(sqrt(H)) on a side, row by row, the first H of them: the whole 3x3
window for 9 heads, its upper two rows for 6.

Deviation: a window with an even side has no center, and the authors' code stops. Here such head counts (2 to 4, 10 to
16, ...) take the H positions nearest to the center of the next odd window; of equal ones the first row by row.

[1] Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552; Appendix A derives the matrices.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ..cpu.winograd import conv3x3, in_float32_on_cpu

Margins = tuple[int, int, int, int]
"""Reach of the kernel from its center: columns to the left and right, rows up and down, as for `F.pad`."""


def kernel_positions(heads: int) -> list[tuple[int, int]]:
    """Return each head's kernel position: rows down and columns to the right of the center, in row-major order."""
    if heads < 1:
        raise UserError(f"a generalized convolution needs at least one head, got {heads}")
    side = math.ceil(math.sqrt(heads))
    half = side // 2
    window = [(row, column) for row in range(-half, half + 1) for column in range(-half, half + 1)]
    if side % 2 == 0:
        window.sort(key=lambda position: position[0] ** 2 + position[1] ** 2)
    return sorted(window[:heads])


def square(heads: int) -> Margins:
    """Margins of the whole window."""
    reach = max(max(map(abs, position)) for position in kernel_positions(heads))
    return (reach,) * 4


def tight(heads: int) -> Margins:
    """Margins of the smallest kernel that holds all positions: 2 rows of 3 for 6 heads."""
    rows, columns = zip(*kernel_positions(heads), strict=True)
    return -min(columns), max(columns), -min(rows), max(rows)


def kernel(matrices: Tensor, margins: Margins) -> Tensor:
    """Return CONV as an ordinary kernel: [O, I, H] -> [O, I, height, width], unused entries zero."""
    left, right, up, down = margins
    height, width, heads = up + 1 + down, left + 1 + right, matrices.shape[-1]
    rows = matrices.transpose(1, 2)  # [O, H, I]
    if heads < height * width:  # stacked, as an index would be copied to the device in every pass
        head_at = {position: head for head, position in enumerate(kernel_positions(heads))}
        unused = torch.zeros_like(rows[:, 0])
        window = [(row, column) for row in range(-up, down + 1) for column in range(-left, right + 1)]
        rows = torch.stack([rows[:, head_at[place]] if place in head_at else unused for place in window], 1)
    return torch.unflatten(rows, 1, (height, width)).permute(0, 3, 1, 2)


class GeneralizedConv(nn.Module):
    """CONV with a trainable matrix for every position. [B, D, H, W] -> [B, D, H, W], zeros beyond the border. `dim`: D.
    `heads`: number of kernel positions.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.tight, self.square = tight(heads), square(heads)
        memory = torch.empty(dim, heads, dim)  # in the memory order of channels-last kernels
        self.weight = nn.Parameter(memory.transpose(1, 2))  # [to, from, position]
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.square == (1, 1, 1, 1) and in_float32_on_cpu(x):
            return conv3x3(x, kernel(self.weight, self.square), self.bias)
        left, right, up, down = self.tight
        if left == right and up == down:
            return F.conv2d(x, kernel(self.weight, self.tight), self.bias, padding=(up, left))
        return F.conv2d(F.pad(x, self.tight), kernel(self.weight, self.tight), self.bias)
