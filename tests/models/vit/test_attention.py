# SPDX-License-Identifier: Apache-2.0
"""Attention in bfloat16 on a CPU: matrix products in training, timm's fused kernel elsewhere; convolutions whose images
are laid out side by side in the backward pass.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from networks import error
from viticulture.models.cpu import convolution
from viticulture.models.cpu.attention import attend, trains_in_bfloat16
from viticulture.models.cpu.convolution import SideBySide
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.vit.attention import DroppedAttention
from viticulture.models.vit.hybrid_vit import Convolution

EPSILON = 2.0**-8  # relative rounding error of bfloat16


def test_products_equal_the_fused_kernel_within_bfloat16s_rounding() -> None:
    """Values and gradients, against float64; three roundings in a row are allowed."""
    torch.manual_seed(0)
    exact = [torch.randn(2, 3, 9, 16, dtype=torch.float64).bfloat16().double().requires_grad_() for _ in range(3)]
    rounded = [part.detach().bfloat16().requires_grad_() for part in exact]
    outs = [F.scaled_dot_product_attention(*exact), attend(*rounded)]
    for out in outs:
        out.square().sum().backward()
    assert outs[1].dtype is torch.bfloat16
    assert error(outs[1].double(), outs[0]) < 3 * EPSILON
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert error(ours.grad.double(), theirs.grad) < 6 * EPSILON


@pytest.mark.parametrize("student", ["vit_nano", "hybrid_nano", "dhvt_nano", "cit_tiny", "mae_tiny"])
@pytest.mark.parametrize(
    ("mixed", "training", "fused"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_students_use_products_for_training_in_mixed_precision_alone(
    student: str, mixed: bool, training: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Tensor] = []
    kernel = F.scaled_dot_product_attention

    def counted(q: Tensor, *args: Tensor, **kwargs: Tensor) -> Tensor:
        calls.append(q)
        return kernel(q, *args, **kwargs)  # type: ignore[arg-type]

    options = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    network = create_student(student, DataSpec(("a", "b"), (16, 16), (0.5,) * 3, (0.2,) * 3), 8, options).train(
        training
    )
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed), torch.set_grad_enabled(training):
        network(torch.zeros(2, 3, 16, 16))
    assert bool(calls) is fused


def test_dropped_attention_without_dropout_agrees_with_timms_in_both_precisions() -> None:
    torch.manual_seed(0)
    layer, x = DroppedAttention(32, 4, qkv_bias=True).train(), torch.randn(2, 9, 32)
    plain = super(DroppedAttention, layer).forward(x)
    assert torch.equal(layer(x), plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert trains_in_bfloat16(x)
        assert error(layer(x).float(), plain) < 6 * EPSILON


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
