# SPDX-License-Identifier: Apache-2.0
"""3x3 convolution with a quarter of the multiplications, for training in float32 on a CPU.

    Y = A^T [ sum over channels of (G w G^T) * (B^T d B) ] A        Winograd's F(4x4, 3x3), Lavin and Gray [1]

for every tile d of 6x6 pixels, which overlap by two, and its 4x4 outputs Y. The sum over channels is one matrix product
for each of the 36 pixels of a tile. B^T d B and A^T m A are linear in the tile, so each is one product with a 36-column
matrix over all tiles at once. The plain form is `F.conv2d`; the results differ by rounding, about 3e-6 of their size in
float32, a few times the error of the direct sum.

[1] Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, arXiv:1509.09308, Sec. 4.3.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...kernels import fast_kernels

OUT, IN = 4, 6  # pixels on a side of a tile's output, and of the tile

TILE = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]  # B^T
KERNEL = [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]  # 24 G
RESULT = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]  # A^T


def in_float32_on_cpu(x: Tensor) -> bool:
    """Return whether this form is faster; on other devices, in other dtypes and inside a compiler it is not."""
    eager = fast_kernels() and not torch.compiler.is_compiling()
    return eager and x.is_cpu and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def conv3x3(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Compute `F.conv2d(x, kernel, bias, padding=1)`: [B, I, H, W], [O, I, 3, 3], [O] -> [B, O, H, W]."""
    kernel_weights = kernel.flatten(2).transpose(1, 2)  # [O, 9, I]
    return (Conv3x3.apply(x.permute(0, 2, 3, 1), kernel_weights) + bias).permute(0, 3, 1, 2)


@cache
def transforms(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """B^T, G and A^T for both sides of a tile at once: [36, 36], [36, 9], [16, 36]."""
    one_side = (torch.tensor(matrix, dtype=torch.float64, device="cpu") for matrix in (TILE, KERNEL, RESULT))
    tile, kernel, result = (torch.kron(matrix, matrix) for matrix in one_side)
    return tile.to(dtype), (kernel / 24**2).to(dtype), result.to(dtype)


def tiles(x: Tensor) -> Tensor:
    """View padded maps [B, 4 n + 2, 4 m + 2, D] as their overlapping tiles, [6, 6, B, n, m, D]; nothing is copied."""
    (batch, height, width, dim), (b, r, c, d) = x.shape, x.stride()
    shape = (IN, IN, batch, (height - 2) // OUT, (width - 2) // OUT, dim)
    return x.as_strided(shape, (r, c, b, OUT * r, OUT * c, d))


class Conv3x3(torch.autograd.Function):
    """3x3 convolution with a border of zeros: (x [B, H, W, D], kernel weights [O, 9, D]) -> [B, H, W, O].

    The nine positions of a kernel are in row-major order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel_weights: Tensor) -> Tensor:
        ctx.size = batch, height, width, dim = x.shape
        tile, kernel, result = transforms(x.dtype)
        down, across = -(-height // OUT), -(-width // OUT)
        padded = x.new_zeros(batch, OUT * down + 2, OUT * across + 2, dim)
        padded[:, 1 : height + 1, 1 : width + 1] = x
        inputs = (tile @ tiles(padded).reshape(IN * IN, -1)).view(IN * IN, -1, dim)  # [36, tiles, D]
        weights = (kernel @ kernel_weights).transpose(0, 1)  # [36, O, D]
        ctx.save_for_backward(inputs, weights)
        products = inputs @ weights.mT  # [36, tiles, O]
        y = (result @ products.flatten(1)).view(OUT, OUT, batch, down, across, -1)
        y = y.permute(2, 3, 0, 4, 1, 5).reshape(batch, OUT * down, OUT * across, -1)
        return y[:, :height, :width].contiguous()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weights = ctx.saved_tensors
        batch, height, width, dim = ctx.size
        tile, kernel, result = transforms(grad.dtype)
        down, across = -(-height // OUT), -(-width // OUT)
        if (height, width) != (OUT * down, OUT * across):
            grad = F.pad(grad, (0, 0, 0, OUT * across - width, 0, OUT * down - height))
        y = torch.unflatten(torch.unflatten(grad, 2, (across, OUT)), 1, (down, OUT))  # [B, n, 4, m, 4, O]
        products = (result.T @ y.permute(2, 4, 0, 1, 3, 5).reshape(OUT * OUT, -1)).view(
            IN * IN, -1, grad.shape[-1]
        )  # [36, tiles, O]
        kernel_weights = kernel.T @ (products.mT @ inputs).transpose(0, 1)  # [O, 9, D]
        gradient = tile.T @ (products @ weights).flatten(1)
        gradient = gradient.view(IN, IN, batch, down, across, dim)
        x = grad.new_zeros(batch, OUT * down + 2, OUT * across + 2, dim)
        for rows in (slice(0, OUT), slice(OUT, IN)):  # within a slice of a tile, no two tiles meet
            for columns in (slice(0, OUT), slice(OUT, IN)):
                tiles(x)[rows, columns].add_(gradient[rows, columns])
        return x[:, 1 : height + 1, 1 : width + 1], kernel_weights
