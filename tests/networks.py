# SPDX-License-Identifier: Apache-2.0
"""Small networks away from their initialization, and distances between results."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from viticulture.models.agent.generalized_conv import kernel_positions
from viticulture.models.data_spec import DataSpec
from viticulture.models.dhvt.dhvt import DHVT, Shape

BACKENDS = ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)]
"""Of `torch.compile`: the first one already fails at a graph break; the second one also traces the backward pass."""


class Constant(nn.Module):
    """A network with preset logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def data_spec(classes: int = 3, height: int = 32, width: int = 32) -> DataSpec:
    """Describe numbered classes of images of some pixels."""
    return DataSpec(tuple(map(str, range(classes))), (height, width), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def tiny(patch_size: int = 4, **options: Any) -> DHVT:
    return DHVT(Shape(patch_size, embed_dim=16, depth=2, num_heads=4), num_classes=7, **options)


def randomized(module: nn.Module, seed: int = 0, scale: float = 1.0) -> nn.Module:
    """Move every parameter and buffer away from the values that hide mistakes (ones, zeros, tiny weights)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                noise = scale * (torch.rand(tensor.shape, generator=generator) - 0.5)
                tensor.copy_(1 + noise if name.endswith(("running_var", "alpha")) else noise)
    return module


def random_images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def error(ours: Tensor, theirs: Tensor) -> float:
    """Return the distance as a share of the reference's length."""
    return float((ours.detach() - theirs.detach()).norm() / theirs.detach().norm())


def check_one_graph(
    network: nn.Module, x: Tensor, backend: str, rtol: float | None = None, atol: float | None = None
) -> None:
    """Check that `fullgraph` works, and that random decisions, outputs and gradients are those of eager mode."""
    results = []
    for run in (network, torch.compile(network, fullgraph=True, backend=backend)):
        network.zero_grad()
        torch.manual_seed(0)
        y = run(x)
        y.square().sum().backward()
        results.append([y.detach(), *(parameter.grad for parameter in network.parameters())])
    for eager, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, eager, rtol=rtol, atol=atol)


def check_gradients(weights: Iterable[Tensor]) -> None:
    """Check that each parameter has a finite float32 gradient."""
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in weights)


def neighbor_matrices(heads: int, rows: int, columns: int) -> Tensor:
    """Return Phi_h of Eq. (13) and (15), [H, n, n]: 1 where token p is the h-th neighbor of token q."""
    matrices = torch.zeros(heads, rows * columns, rows * columns, dtype=torch.float64)
    for h, (down, right) in enumerate(kernel_positions(heads)):
        for q in range(rows * columns):
            row, column = q // columns + down, q % columns + right
            if 0 <= row < rows and 0 <= column < columns:
                matrices[h, q, row * columns + column] = 1
    return matrices


def train(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor], steps: int = 10) -> list[float]:
    """Take some steps; return the loss of each."""
    losses = []
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses
