# SPDX-License-Identifier: Apache-2.0
"""Attention in bfloat16 on a CPU: matrix products in training, timm's fused kernel elsewhere."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from networks import error
from viticulture.models.cpu.attention import attend, trains_in_bfloat16
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.vit.attention import DroppedAttention

EPSILON = 2.0**-8
"""Relative rounding error of bfloat16."""


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
