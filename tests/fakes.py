# SPDX-License-Identifier: Apache-2.0
"""Networks with fake tensors, which have a shape, a type and a device, and no numbers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from viticulture.guides.guide import Batch
from viticulture.methods.method import Method


def fake(mode: FakeTensorMode, device: str) -> Callable[[Tensor], Tensor]:
    """Return a function that makes a fake of a tensor, on another device."""

    def make(tensor: Tensor) -> Tensor:
        with mode:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    return make


def fake_module(module: nn.Module, mode: FakeTensorMode, device: str) -> None:
    """Replace parameters and buffers, frozen teachers' included, by fakes on a device."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        module._apply(fake(mode, device))
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def fake_method(method: Method, mode: FakeTensorMode, device: str) -> Optimizer:
    """Move a method to a fake device; return its optimizer, grouped before, since a fake has no storage."""
    others = nn.ModuleDict({**method.guides, **method.auxiliary})
    groups = method.optim.groups(method.student, others)
    fake_module(method, mode, device)
    moved = dict(method.student.named_parameters())
    moved |= {f"guides.{name}": parameter for name, parameter in others.named_parameters()}
    for group in groups:
        group["params"] = [(name, moved[name]) for name, _ in group["params"]]
    optimizer = method.optim.build(groups)
    for group in optimizer.param_groups:
        group["fused"] = False
    return optimizer


def fake_batch(batch: Batch, mode: FakeTensorMode, device: str) -> Batch:
    """Return a fake batch."""
    return {name: fake(mode, device)(value) for name, value in batch.items()}
