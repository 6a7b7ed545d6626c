# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose images are laid out side by side in the backward pass."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.grad import conv2d_weight

from viticulture.models.cpu import convolution
from viticulture.models.cpu.convolution import SideBySide
from viticulture.models.vit.hybrid_vit import Convolution


@pytest.mark.parametrize(
    ("stride", "height", "width", "together"), [(1, 5, 4, 4), (2, 6, 8, 8), (2, 5, 6, 4), (1, 1, 1, 8)]
)
def test_gradients_are_those_of_torch_s_convolution(stride: int, height: int, width: int, together: int) -> None:
    """In float64."""
    torch.manual_seed(0)
    x = torch.randn(8, 3, height, width, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(x, weight, stride=stride, padding=1)
    out = SideBySide.apply(x, weight, stride, together)
    assert torch.equal(out, expected)
    dy = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(out, (x, weight), dy), torch.autograd.grad(expected, (x, weight), dy), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)  # sums of up to 160 products in another order


def test_images_are_side_by_side_only_in_bfloat16_training_of_narrow_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def counted(x: torch.Tensor, weight: torch.Tensor, stride: int, together: int) -> torch.Tensor:
        used.append(together)
        return F.conv2d(x, weight, stride=stride, padding=1)

    monkeypatch.setattr(convolution.SideBySide, "apply", counted)
    layer = Convolution(4, 6, stride=2)
    narrow, wide = torch.zeros(32, 4, 16, 16), torch.zeros(32, 4, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(narrow).dtype is torch.bfloat16
        assert used == [16]
        layer(wide), layer(narrow[:3])
        with torch.no_grad():
            layer(narrow)
    layer(narrow)
    assert used == [16]


def test_a_step_in_bfloat16_is_as_exact_as_torch_s() -> None:
    """Against the gradient in float64."""
    torch.manual_seed(0)
    layer, x = Convolution(8, 8), torch.randn(64, 8, 4, 4).bfloat16().float()
    layer.weight.data = layer.weight.data.bfloat16().float()
    dy = torch.randn(64, 8, 4, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        (ours,) = torch.autograd.grad(layer(x), layer.weight, dy)
        (theirs,) = torch.autograd.grad(F.conv2d(x, layer.weight, padding=1), layer.weight, dy)
    exact = conv2d_weight(x.double(), layer.weight.shape, dy.double(), padding=1)
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()
