# SPDX-License-Identifier: Apache-2.0
"""CONV, the generalised convolution: as many taps as a ViT has heads, one matrix a tap.

    Y = sum_h Phi_h X W_h                                   Eq. (3) of [1]

X holds n tokens in rows; Phi_h is the 0/1 matrix that gives every token its h-th neighbour, or nothing beyond the
border. Neighbours are taken from a window of ceil(sqrt(H)) on a side, row by row, the first H of them: the whole 3x3
window for 9 heads, its upper two rows for 6.

Deviation: a window with an even side has no centre, and the authors' code stops. Here such head counts (2 to 4, 10 to
16, ...) take the H places nearest to the centre of the next odd window, the first row by row where distances are equal.

Paper [1]: Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552; Appendix A derives the matrices.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from .winograd import Conv3x3, in_float32_on_cpu


def window(heads: int) -> tuple[int, list[int]]:
    """The window of CONV and which of its places are used.

    Args:
        heads: H.

    Returns: side of the window, and the H places, counted row by row from the upper left corner, in rising order.
    """
    if heads < 1:
        raise UserError(f"a generalised convolution needs at least one head, got {heads}")
    side = math.ceil(math.sqrt(heads))
    if side % 2:
        return side, list(range(heads))
    side += 1
    centre = side // 2

    def distance(place: int) -> int:
        row, column = divmod(place, side)
        return (row - centre) ** 2 + (column - centre) ** 2

    return side, sorted(sorted(range(side * side), key=distance)[:heads])


def kernel(taps: Tensor) -> Tensor:
    """The kernel of the ordinary convolution that CONV is: [O, I, H] -> [O, I, side, side], unused places zero."""
    side, places = window(taps.shape[-1])
    rows = taps.transpose(1, 2)  # [O, H, I]
    if len(places) < side * side:
        index = torch.tensor(places, device=taps.device)
        rows = rows.new_zeros(rows.shape[0], side * side, rows.shape[2]).index_copy(1, index, rows)
    return torch.unflatten(rows, 1, (side, side)).permute(0, 3, 1, 2)


def convolve(x: Tensor, taps: Tensor, bias: Tensor | None = None) -> Tensor:
    """CONV of a map with a border of zeros: [B, I, H, W] and taps [O, I, heads] -> [B, O, H, W]."""
    weight = kernel(taps)
    if weight.shape[-1] == 3 and in_float32_on_cpu(x):
        y = Conv3x3.apply(x.permute(0, 2, 3, 1), weight.flatten(2).transpose(1, 2)).permute(0, 3, 1, 2)
        return y if bias is None else y + bias[:, None, None]
    return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)


class GeneralizedConv(nn.Module):
    """CONV with a free matrix for every tap. Shape: [B, D, H, W] -> [B, D, H, W], zeros beyond the border.

    Args:
        dim: D.
        heads: how many taps.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        memory = torch.empty(dim, heads, dim)  # lies as channels-last kernels do
        self.weight = nn.Parameter(memory.transpose(1, 2))  # [to, from, tap]
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias)
