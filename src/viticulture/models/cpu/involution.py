# SPDX-License-Identifier: Apache-2.0
"""The product of involution's kernels and neighborhoods, without unfolding the neighborhoods in memory.

K * K times the output are never stored at once: the product is summed one kernel position at a time, in float32
(float64 for float64), also under autocast. `plain_involve` is the definition, by `F.unfold`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...kernels import fast_kernels

BLOCK = 2**20  # kernel entries processed at once on a CPU, which fit its caches


def involve(x: Tensor, kernels: Tensor, stride: int = 1) -> Tensor:
    """Weight each pixel's neighborhood by that pixel's kernel.

        y[c, i, j] = sum over positions (u, v) of kernels[g(c), (u, v), i, j] * x[c, s i + u - K // 2, s j + v - K // 2]

    Channels are split into G equal groups of neighbors; g(c) is the group of channel c. Outside the image x is zero.

    Args:
        x: [B, C, H, W].
        kernels: [B, G, K * K, H / s, W / s], sizes rounded up, positions row by row; K is odd.

    Returns: [B, C, H / s, W / s], of x's dtype.
    Raises: ValueError if the shapes do not fit.
    """
    groups, positions = kernels.shape[1:3]
    layout = Layout(math.isqrt(positions), stride, (x.shape[2], x.shape[3]))
    out, size = layout.out, layout.kernel_size
    if kernels.shape[3:] != out or x.shape[1] % groups or size**2 != positions or positions % 2 == 0:
        raise ValueError(
            f"kernels must be [B, G, K * K, {out[0]}, {out[1]}] with odd K and G a divisor of "
            f"{x.shape[1]} channels, got {tuple(kernels.shape)}"
        )
    return Involve.apply(x, kernels, layout, groups) if fast_kernels() else plain_involve(x, kernels, stride)


def plain_involve(x: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """Compute `involve` by its definition: neighborhoods [B, G, C / G, K * K, H', W'] times kernels, summed."""
    (groups, positions), out = kernels.shape[1:3], kernels.shape[3:]
    size = math.isqrt(positions)
    neighborhoods = F.unfold(x, size, padding=size // 2, stride=stride).view(len(x), groups, -1, positions, *out)
    return (kernels.unsqueeze(2) * neighborhoods).sum(3).flatten(1, 2)


@dataclass(frozen=True)
class Layout:
    """Memory layout in which the pixels under one kernel position are one slice of one line.

    A zero-padded image is split into s x s lanes, pixel (i, j) goes to lane (i mod s, j mod s). Outputs form a line
    whose rows are as wide as a lane's; then the pixels under one kernel position are a slice of a lane, as long as that
    line. The surplus columns are cut off at the end.
    """

    kernel_size: int  # K, odd
    stride: int  # s
    size: tuple[int, int]  # height and width of the input, pixels

    @property
    def out(self) -> tuple[int, int]:
        """Height H' and width W' of the output: the input's, divided by s and rounded up."""
        return -(-self.size[0] // self.stride), -(-self.size[1] // self.stride)

    @property
    def lane(self) -> tuple[int, int]:
        """Rows and columns of a lane; the last row serves the surplus columns."""
        reach = (self.kernel_size - 1) // self.stride
        return self.out[0] + reach + 1, self.out[1] + reach

    @property
    def length(self) -> int:
        """N, length of the line of outputs."""
        return self.out[0] * self.lane[1]

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Padding of the input: left, right, top, bottom; negative values cut off pixels that no position reaches."""
        before = self.kernel_size // 2
        rows, columns = self.stride * self.lane[0], self.stride * self.lane[1]
        return before, columns - self.size[1] - before, before, rows - self.size[0] - before

    def positions(self) -> Iterator[tuple[int, int, slice]]:
        """Yield lane row, lane column and slice of every kernel position, row by row."""
        for position in range(self.kernel_size**2):
            (down, row), (right, column) = (divmod(steps, self.stride) for steps in divmod(position, self.kernel_size))
            start = down * self.lane[1] + right
            yield row, column, slice(start, start + self.length)

    def to_lanes(self, x: Tensor, groups: int) -> Tensor:
        """[B, C, H, W] -> lanes, [s, s, B, G, C / G, lane]."""
        x = torch.unflatten(F.pad(x, self.padding), 3, (-1, self.stride))
        x = torch.unflatten(x, 2, (-1, self.stride)).permute(3, 5, 0, 1, 2, 4)  # [s, s, B, C, rows, columns]
        return torch.unflatten(x.contiguous().flatten(4), 3, (groups, -1))

    def from_lanes(self, lanes: Tensor) -> Tensor:
        """The transpose of `to_lanes`."""
        x = torch.unflatten(lanes.flatten(3, 4), 4, self.lane).permute(2, 3, 4, 0, 5, 1)  # [B, C, rows, s, columns, s]
        return F.pad(x.flatten(4, 5).flatten(2, 3), [-pixels for pixels in self.padding])

    def to_line(self, y: Tensor) -> Tensor:
        """Outputs on their line, zeros in the surplus columns: [..., H', W'] -> [..., N]."""
        return F.pad(y, (0, self.lane[1] - self.out[1])).contiguous().flatten(-2)

    def from_line(self, line: Tensor) -> Tensor:
        """The transpose of `to_line`."""
        return torch.unflatten(line, -1, (-1, self.lane[1]))[..., : self.out[1]]


def _product(x: Tensor, kernels: Tensor, layout: Layout, groups: int) -> Tensor:
    """y, [B, C, H', W']."""
    lanes, weights = layout.to_lanes(x, groups), layout.to_line(kernels)
    y = lanes.new_zeros(*lanes.shape[2:5], layout.length)  # [B, G, C / G, N]
    for position, (row, column, part) in enumerate(layout.positions()):
        y.addcmul_(lanes[row, column, ..., part], weights[:, :, None, position])
    return layout.from_line(y).flatten(1, 2)


def _gradient_of_x(kernels: Tensor, grad: Tensor, layout: Layout, groups: int) -> Tensor:
    """[B, C, H, W]: an output's gradient goes to all pixels under its kernel."""
    weights, line = layout.to_line(kernels), torch.unflatten(layout.to_line(grad), 1, (groups, -1))
    lanes = line.new_zeros(layout.stride, layout.stride, *line.shape[:3], math.prod(layout.lane))
    for position, (row, column, part) in enumerate(layout.positions()):
        lanes[row, column, ..., part].addcmul_(line, weights[:, :, None, position])
    return layout.from_lanes(lanes)


def _gradient_of_kernels(x: Tensor, grad: Tensor, layout: Layout, groups: int) -> Tensor:
    """[B, G, K * K, H', W']: the output's gradient times the pixel under each position.

    All positions that share a lane are one view of it; the loop is over the channels of a group, which are summed.
    """
    lanes, line = layout.to_lanes(x, groups), torch.unflatten(layout.to_line(grad), 1, (groups, -1))
    size, step = layout.kernel_size, layout.stride
    weights = line.new_zeros(*line.shape[:2], size, size, layout.length)
    for row in range(min(step, size)):
        for column in range(min(step, size)):
            lane, part = lanes[row, column], weights[:, :, row::step, column::step]
            shape = (*lane.shape[:3], *part.shape[2:])  # [B, G, C / G, positions down, positions to the right, N]
            pixels = lane.as_strided(shape, (*lane.stride()[:3], layout.lane[1], 1, 1))
            for channel in range(line.shape[2]):
                part.addcmul_(pixels[:, :, channel], line[:, :, channel, None, None])
    return layout.from_line(weights.flatten(2, 3))


Bilinear = Callable[[Tensor, Tensor, Layout, int], Tensor]


def _in_blocks(product: Bilinear, left: Tensor, right: Tensor, layout: Layout, groups: int) -> Tensor:
    """Compute a product in the precision of sums; on a CPU a few images at a time."""
    exact = torch.float64 if left.dtype == torch.float64 else torch.float32
    if left.device.type != "cpu" or torch.compiler.is_compiling():
        return product(left.to(exact), right.to(exact), layout, groups).contiguous()
    images = max(1, BLOCK // (groups * layout.kernel_size**2 * layout.length))
    parts = zip(torch.split(left, images), torch.split(right, images), strict=True)
    return torch.cat([product(first.to(exact), second.to(exact), layout, groups) for first, second in parts])


def _like(x: Tensor, y: Tensor) -> Tensor:
    """y with x's dtype and memory format."""
    channels_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return y.to(x.dtype, memory_format=torch.channels_last if channels_last else torch.contiguous_format)


class Involve(torch.autograd.Function):
    """y(x, kernels) and its two gradients; there is no second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Tensor, layout: Layout, groups: int) -> Tensor:
        ctx.save_for_backward(x, kernels)
        ctx.rest = layout, groups
        return _like(x, _in_blocks(_product, x, kernels, layout, groups))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, kernels), (grad,), needed = ctx.saved_tensors, grads, ctx.needs_input_grad
        to_x = _like(grad, _in_blocks(_gradient_of_x, kernels, grad, *ctx.rest)) if needed[0] else None
        to_kernels = _in_blocks(_gradient_of_kernels, x, grad, *ctx.rest).to(x.dtype) if needed[1] else None
        return to_x, to_kernels, None, None
