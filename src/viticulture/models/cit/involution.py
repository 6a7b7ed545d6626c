# SPDX-License-Identifier: Apache-2.0
"""Involution: a kernel of its own for every pixel of the image, made from what is there and shared by channels.

Paper: Li et al., "Involution: Inverting the Inherence of Convolution for Visual Recognition", CVPR 2021,
arXiv:2103.06255. RedNet (rednet.py) and the involution stem of CiT (cit.py) are made of it.

The product of kernels and neighborhoods, K * K times the output, is never there as a whole: it is summed position by
position, in float32 (float64 for float64), also under autocast. Equal to the authors' code; besides, a stride need not
divide the image.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.conv_bn_act import ConvNormAct
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import UserError

BLOCK = 2**20
"""Kernel entries laid out at once on a CPU: what its caches hold."""


@dataclass(frozen=True)
class Field:
    """Memory layout in which the pixels under one kernel position are one stretch of one line.

    A zero-padded image is dealt into s x s lanes, pixel (i, j) to lane (i mod s, j mod s). Outputs form a line whose
    rows are as wide as a lane's; then the pixels under one kernel position are a stretch of a lane, as long as
    that line. What stands in the columns too many is cut off in the end.

    Args:
        kernel_size: K, odd.
        stride: s.
        size: height and width of the input, pixels.
    """

    kernel_size: int
    stride: int
    size: tuple[int, int]

    @property
    def out(self) -> tuple[int, int]:
        """Height H' and width W' of the output: the input's, divided by s and rounded up."""
        return -(-self.size[0] // self.stride), -(-self.size[1] // self.stride)

    @property
    def lane(self) -> tuple[int, int]:
        """Rows and columns of a lane: the last row is there for the columns too many."""
        reach = (self.kernel_size - 1) // self.stride
        return self.out[0] + reach + 1, self.out[1] + reach

    @property
    def length(self) -> int:
        """N, length of the line of outputs."""
        return self.out[0] * self.lane[1]

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Of the input: left, right, top, bottom; negative cuts pixels off that no kernel position reaches."""
        before = self.kernel_size // 2
        rows, columns = self.stride * self.lane[0], self.stride * self.lane[1]
        return before, columns - self.size[1] - before, before, rows - self.size[0] - before

    def positions(self) -> Iterator[tuple[int, int, slice]]:
        """Lane row, lane column and stretch of every kernel position, row by row."""
        for position in range(self.kernel_size**2):
            (down, row), (right, column) = (divmod(steps, self.stride) for steps in divmod(position, self.kernel_size))
            start = down * self.lane[1] + right
            yield row, column, slice(start, start + self.length)

    def deal(self, x: Tensor, groups: int) -> Tensor:
        """[B, C, H, W] -> lanes, [s, s, B, G, C / G, lane]."""
        x = torch.unflatten(F.pad(x, self.padding), 3, (-1, self.stride))
        x = torch.unflatten(x, 2, (-1, self.stride)).permute(3, 5, 0, 1, 2, 4)  # [s, s, B, C, rows, columns]
        return torch.unflatten(x.contiguous().flatten(4), 3, (groups, -1))

    def collect(self, lanes: Tensor) -> Tensor:
        """The transpose of `deal`."""
        x = torch.unflatten(lanes.flatten(3, 4), 4, self.lane).permute(2, 3, 4, 0, 5, 1)  # [B, C, rows, s, columns, s]
        return F.pad(x.flatten(4, 5).flatten(2, 3), [-pixels for pixels in self.padding])

    def widen(self, y: Tensor) -> Tensor:
        """Outputs on their line, zeros in the columns too many: [..., H', W'] -> [..., N]."""
        return F.pad(y, (0, self.lane[1] - self.out[1])).contiguous().flatten(-2)

    def narrow(self, line: Tensor) -> Tensor:
        """The transpose of `widen`."""
        return torch.unflatten(line, -1, (-1, self.lane[1]))[..., : self.out[1]]


def _involve(x: Tensor, kernels: Tensor, field: Field, groups: int) -> Tensor:
    """y, [B, C, H', W']."""
    lanes, weights = field.deal(x, groups), field.widen(kernels)
    y = lanes.new_zeros(*lanes.shape[2:5], field.length)  # [B, G, C / G, N]
    for position, (row, column, stretch) in enumerate(field.positions()):
        y.addcmul_(lanes[row, column, ..., stretch], weights[:, :, None, position])
    return field.narrow(y).flatten(1, 2)


def _spread(kernels: Tensor, grad: Tensor, field: Field, groups: int) -> Tensor:
    """The gradient of x, [B, C, H, W]: an output's gradient goes to all pixels under its kernel."""
    weights, line = field.widen(kernels), torch.unflatten(field.widen(grad), 1, (groups, -1))
    lanes = line.new_zeros(field.stride, field.stride, *line.shape[:3], math.prod(field.lane))
    for position, (row, column, stretch) in enumerate(field.positions()):
        lanes[row, column, ..., stretch].addcmul_(line, weights[:, :, None, position])
    return field.collect(lanes)


def _correlate(x: Tensor, grad: Tensor, field: Field, groups: int) -> Tensor:
    """The gradient of kernels, [B, G, K * K, H', W']: the output's gradient times the pixel under each position.

    All positions that share a lane are one view of it; the loop is over the channels of a group, which are summed.
    """
    lanes, line = field.deal(x, groups), torch.unflatten(field.widen(grad), 1, (groups, -1))
    size, step = field.kernel_size, field.stride
    weights = line.new_zeros(*line.shape[:2], size, size, field.length)
    for row in range(min(step, size)):
        for column in range(min(step, size)):
            lane, part = lanes[row, column], weights[:, :, row::step, column::step]
            shape = (*lane.shape[:3], *part.shape[2:])  # [B, G, C / G, positions down, positions to the right, N]
            seen = lane.as_strided(shape, (*lane.stride()[:3], field.lane[1], 1, 1))
            for channel in range(line.shape[2]):
                part.addcmul_(seen[:, :, channel], line[:, :, channel, None, None])
    return field.narrow(weights.flatten(2, 3))


Bilinear = Callable[[Tensor, Tensor, Field, int], Tensor]


def _summed(product: Bilinear, left: Tensor, right: Tensor, field: Field, groups: int) -> Tensor:
    """The product in the precision of sums; on a CPU a few images at a time."""
    exact = torch.float64 if left.dtype == torch.float64 else torch.float32
    if left.device.type != "cpu" or torch.compiler.is_compiling():
        return product(left.to(exact), right.to(exact), field, groups).contiguous()
    images = max(1, BLOCK // (groups * field.kernel_size**2 * field.length))
    parts = zip(torch.split(left, images), torch.split(right, images), strict=True)
    return torch.cat([product(first.to(exact), second.to(exact), field, groups) for first, second in parts])


def _laid_out_as(x: Tensor, y: Tensor) -> Tensor:
    """y with x's dtype and memory format."""
    channels_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return y.to(x.dtype, memory_format=torch.channels_last if channels_last else torch.contiguous_format)


class _Involve(torch.autograd.Function):
    """y(x, kernels) and its two gradients; there is no second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Tensor, field: Field, groups: int) -> Tensor:
        ctx.save_for_backward(x, kernels)
        ctx.rest = field, groups
        return _laid_out_as(x, _summed(_involve, x, kernels, field, groups))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, kernels), (grad,), wanted = ctx.saved_tensors, grads, ctx.needs_input_grad
        to_x = _laid_out_as(grad, _summed(_spread, kernels, grad, *ctx.rest)) if wanted[0] else None
        to_kernels = _summed(_correlate, x, grad, *ctx.rest).to(x.dtype) if wanted[1] else None
        return to_x, to_kernels, None, None


def involve(x: Tensor, kernels: Tensor, stride: int = 1) -> Tensor:
    """Weigh each pixel's neighborhood with that pixel's kernel.

        y[c, i, j] = sum over positions (u, v) of kernels[g(c), (u, v), i, j] * x[c, s i + u - K // 2, s j + v - K // 2]

    Channels are cut into G equal groups of neighbors; g(c) is the group of channel c. Outside the image x is zero.

    Args:
        x: [B, C, H, W].
        kernels: [B, G, K * K, H / s, W / s], sizes rounded up, positions row by row; K is odd.
        stride: s.

    Returns: [B, C, H / s, W / s], of x's dtype.
    Raises: ValueError if the shapes do not fit.
    """
    groups, positions = kernels.shape[1:3]
    field = Field(math.isqrt(positions), stride, (x.shape[2], x.shape[3]))
    if kernels.shape[3:] != field.out or x.shape[1] % groups or field.kernel_size**2 != positions or positions % 2 == 0:
        raise ValueError(
            f"kernels must be [B, G, K * K, {field.out[0]}, {field.out[1]}] with odd K and G a divisor of "
            f"{x.shape[1]} channels, got {tuple(kernels.shape)}"
        )
    return _Involve.apply(x, kernels, field, groups)


class Involution(nn.Module):
    """Make a kernel at every pixel from its channels, and apply it.

        kernels = W2 ReLU(BN(W1 pool(x))) + b,    y = involve(x, kernels)

    pool averages s x s pixels, W1 maps C to C / 4. Shape: [B, C, H, W] -> [B, C, H / s, W / s], rounded up.

    Args:
        channels: C, a multiple of group_width.
        kernel_size: K, odd.
        stride: s.
        group_width: how many neighboring channels share a kernel.
    """

    def __init__(self, channels: int, kernel_size: int = 7, stride: int = 1, group_width: int = 16) -> None:
        super().__init__()
        if channels % group_width:
            raise UserError(
                f"channels must be a multiple of an involution's group_width, got {channels} and {group_width}"
            )
        if kernel_size % 2 == 0:
            raise UserError(f"kernel_size of an involution must be odd, got {kernel_size}")
        self.groups, self.stride = channels // group_width, stride
        narrow = max(1, channels // 4)
        self.conv1 = ConvNormAct(channels, narrow, 1)
        self.conv2 = nn.Conv2d(narrow, kernel_size**2 * self.groups, 1)
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    def pool(self, x: Tensor) -> Tensor:
        """Means of s x s pixels; at the lower and right edge the last pixels stand for those that lack."""
        if self.stride == 1:
            return x
        down, right = -x.shape[2] % self.stride, -x.shape[3] % self.stride
        if down or right:
            x = F.pad(x, (0, right, 0, down), mode="replicate")
        return F.avg_pool2d(x, self.stride)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.conv2(self.conv1(self.pool(x)))
        return involve(x, torch.unflatten(kernels, 1, (self.groups, -1)), self.stride)
