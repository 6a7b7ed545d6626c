# SPDX-License-Identifier: Apache-2.0
"""3x3 convolution whose weight gradient is fast for small images in bfloat16 on a CPU.

    dW = sum over images, rows and columns of dy_(b,r,c) x_(b,r+i,c+j)

torch sums over one row of one image at a time. The processor's bfloat16 units multiply 32 numbers of such a sum at
once, and a row of 4 or 8 pixels leaves most of them idle. Here images are concatenated along their rows, with zeros in
between, so that rows are long; the sum is the same, and a training step of a hybrid ViT takes a tenth less time
(benchmarks/log). The plain form is `F.conv2d`, which is used everywhere else.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .attention import trains_in_bfloat16

MAX_WIDTH = 8  # pixels; longer rows of outputs keep the units busy
MIN_IMAGES, MAX_IMAGES = 4, 16  # concatenated; fewer gain nothing, more no more


def conv3x3(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Compute `F.conv2d(x, weight, stride=stride, padding=1)`: [B, C, H, W] -> [B, D, H / stride, W / stride]."""
    # First, as an exporter traces batches of any size, whose number of images is unknown.
    if trains_in_bfloat16(x):
        images = math.gcd(x.shape[0], MAX_IMAGES)
        width, rest = divmod(x.shape[-1], stride)
        if width <= MAX_WIDTH and not rest and images >= MIN_IMAGES:
            return SideBySide.apply(x.bfloat16(), weight.bfloat16(), stride, images)
    return F.conv2d(x, weight, stride=stride, padding=1)


class SideBySide(torch.autograd.Function):
    """(x, weight, stride, images to concatenate) -> the convolution, on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, images: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.images = stride, images
        return F.conv2d(x, weight, stride=stride, padding=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        stride, images = ctx.stride, ctx.images
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        dx = _gradients(dy, x, weight, stride, (True, False))[0] if needs_x else None
        if not needs_weight:
            return dx, None, None, None
        wide_x, wide_dy = _concatenated(x, images, stride), _concatenated(dy, images, 1)
        return dx, _gradients(wide_dy, wide_x, weight, stride, (False, True))[1], None, None


def _concatenated(x: Tensor, images: int, zeros: int) -> Tensor:
    """[B, C, H, W] -> [B / images, C, H, images * (W + zeros)], channels last; zeros follow each image's rows."""
    count, channels, height, width = x.shape
    wide = x.new_zeros(count // images, height, images, width + zeros, channels)
    wide[:, :, :, :width] = x.permute(0, 2, 3, 1).reshape(-1, images, height, width, channels).transpose(1, 2)
    return wide.flatten(2, 3).permute(0, 3, 1, 2)


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, stride: int, needed: tuple[bool, bool]) -> Any:
    """(dx, dweight, None) of a 3x3 convolution with a border of zeros."""
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride, stride], [1, 1], [1, 1], False, [0, 0], 1, [*needed, False]
    )
