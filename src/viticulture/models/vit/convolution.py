# SPDX-License-Identifier: Apache-2.0
"""A 3x3 convolution whose weights' gradient is fast for small images in bfloat16 on a CPU.

    dW = sum over images, rows and columns of dy_(b,r,c) x_(b,r+i,c+j)

torch sums over one row of one image at a time. The processor's bfloat16 units multiply 32 numbers of such a sum at
once, and a row of 4 or 8 pixels leaves most of them idle. Here images stand side by side, zeros between them, so that
rows are long; the sum is the same, and a training step of a hybrid takes a tenth less time (LOG.md). Everywhere else
this is torch's convolution.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .attention import in_products

NARROW = 8
"""Pixels; rows of outputs that are longer keep the processor busy by themselves."""
FEWEST, MOST = 4, 16
"""Images that stand side by side: with fewer nothing is gained, with more no more."""


class Convolution(nn.Conv2d):
    """3x3, zeros around, no bias, as a norm follows. Shape: [B, C, H, W] -> [B, D, H / stride, W / stride].

    Args:
        width: C.
        wider: D.
        stride: 1, or 2 for an even height and width.
    """

    def __init__(self, width: int, wider: int, stride: int = 1) -> None:
        super().__init__(width, wider, kernel_size=3, stride=stride, padding=1, bias=False)
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        # asked first: an exporter traces batches of any size, and of these no number of images is known
        if in_products(x):
            side_by_side = math.gcd(x.shape[0], MOST)
            narrow, rest = divmod(x.shape[-1], self.stride[0])
            if narrow <= NARROW and not rest and side_by_side >= FEWEST:
                return SideBySide.apply(x.bfloat16(), self.weight.bfloat16(), self.stride[0], side_by_side)
        return super().forward(x)


class SideBySide(torch.autograd.Function):
    """(x, weight, stride, images side by side) -> the convolution, on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, together: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.together = stride, together
        return F.conv2d(x, weight, stride=stride, padding=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        stride, together = ctx.stride, ctx.together
        wanted_x, wanted_weight, *_ = ctx.needs_input_grad
        dx = _gradients(dy, x, weight, stride, (True, False))[0] if wanted_x else None
        if not wanted_weight:
            return dx, None, None, None
        wide_x, wide_dy = _beside(x, together, stride), _beside(dy, together, 1)
        return dx, _gradients(wide_dy, wide_x, weight, stride, (False, True))[1], None, None


def _beside(images: Tensor, together: int, zeros: int) -> Tensor:
    """[B, C, H, W] -> [B / together, C, H, together * (W + zeros)], channels last; zeros follow each image's rows."""
    count, channels, height, width = images.shape
    wide = images.new_zeros(count // together, height, together, width + zeros, channels)
    wide[:, :, :, :width] = images.permute(0, 2, 3, 1).reshape(-1, together, height, width, channels).transpose(1, 2)
    return wide.flatten(2, 3).permute(0, 3, 1, 2)


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, stride: int, wanted: tuple[bool, bool]) -> Any:
    """(dx, dweight, None) of a 3x3 convolution with zeros around."""
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride, stride], [1, 1], [1, 1], False, [0, 0], 1, [*wanted, False]
    )
