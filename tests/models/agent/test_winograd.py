# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolution is the ordinary one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from viticulture.models.cpu.winograd import Conv3x3, in_float32_on_cpu


def ordinary(x: Tensor, taps: Tensor) -> Tensor:
    """Compute the same by `F.conv2d`: [B, H, W, D] and [O, 9, D] -> [B, H, W, O]."""
    kernel = taps.transpose(1, 2).unflatten(2, (3, 3))
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, padding=1).permute(0, 2, 3, 1)


def with_gradients(convolution: object, x: Tensor, taps: Tensor) -> list[Tensor]:
    """Return output and both gradients."""
    inputs = [tensor.clone().requires_grad_() for tensor in (x, taps)]
    y = convolution(*inputs)  # type: ignore[operator]
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * cotangent).sum(), inputs)]


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (4, 4), (5, 8), (7, 7), (8, 13), (12, 4)])
def test_values_and_gradients_are_those_of_the_ordinary_convolution(size: tuple[int, int]) -> None:
    """F(4x4, 3x3) within 1e-10 in float64, for maps that tiles cover exactly and others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, *size, 5, generator=generator, dtype=torch.float64)
    taps = torch.randn(3, 9, 5, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(with_gradients(Conv3x3.apply, x, taps), with_gradients(ordinary, x, taps), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_rounding_stays_below_the_tolerance_of_single_modules() -> None:
    """In float32, with the width of ViT-S, output and gradients are within 1e-5 of the exact ones (measured: 3e-6)."""
    generator = torch.Generator().manual_seed(0)
    x, taps = torch.randn(2, 14, 14, 288, generator=generator), torch.randn(288, 9, 288, generator=generator)
    for ours, exact in zip(
        with_gradients(Conv3x3.apply, x, taps), with_gradients(ordinary, x.double(), taps.double()), strict=True
    ):
        assert float((ours - exact).norm() / exact.norm()) < 1e-5


def test_any_memory_order_is_supported() -> None:
    generator = torch.Generator().manual_seed(0)
    x, taps = torch.randn(2, 5, 9, 6, generator=generator), torch.randn(4, 5, 9, generator=generator)
    before = x.clone()
    torch.testing.assert_close(
        Conv3x3.apply(x.permute(0, 3, 2, 1), taps.mT), ordinary(x.permute(0, 3, 2, 1), taps.mT), rtol=1e-4, atol=1e-4
    )
    assert torch.equal(x, before)


def test_only_float32_in_eager_mode_on_a_cpu_uses_it() -> None:
    x = torch.randn(1, 4, 4, 2)
    assert in_float32_on_cpu(x)
    assert not in_float32_on_cpu(x.double())
    assert not in_float32_on_cpu(x.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not in_float32_on_cpu(x)
    exported = torch.export.export(Traced(), (x,))
    assert not exported.module()(x)


class Traced(torch.nn.Module):
    """Stands for a tensor under tracing."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_ones(()) if in_float32_on_cpu(x) else x.new_zeros(())
