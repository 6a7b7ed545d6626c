# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum with all singular values set to one, for matrices; AdamW for everything else.

Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon is Scalable
for LLM Training", 2025, arXiv:2502.16982, for the scale at which AdamW's rate and decay still fit.

Not timm's or torch's Muon: both begin from the Frobenius norm and take five iterations on the whole matrix, in
bfloat16, which a processor without it emulates at a thirtieth of the speed. Here, with a tighter norm that costs
nothing, three suffice, on the smaller side alone, in float32. Kernels of equal shape are iterated together.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from ..kernels import fast_kernels

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a x + b x^3 + c x^5, which moves singular values in (0, 1] close to one in few steps."""

ITERATIONS = 3


def orthogonalize(momentum: Tensor) -> Tensor:
    """U V^T for matrices U S V^T, roughly: singular values end between about 0.7 and 1.2, but for the smallest.

        X <- Y X,    Y = a + b X X^T + c (X X^T)^2,    from X = M / ||M||_8          Newton and Schulz, fifth order

        G = X X^T,    G <- Y G Y,    X <- Y3 Y2 Y1 X at the end                      the same, as all factors commute

    for M of no more rows than columns, else of its transpose. ||M||_8, the root of the eighth degree of the sum of
    (singular values)^8, is no less than the largest of them and, on the momentum of two trainings, 1.5 to 3.7 times
    less than Frobenius's norm, about what an iteration gains; (X X^T)^2, which the first has to compute, gives
    it. M is divided by its largest entry first: squares of a momentum that has faded would be zero in float32, and the
    step without bound. One that has faded below float32's normal range has no direction left, and its step is zero.

    Sources: Jordan et al. for the polynomial; Zhang, Amsel, Chen, Dao, "Gram Newton-Schulz", 2026, for the smaller
    side.

    Args:
        momentum: M, of one matrix or of many, [..., R, C] float32.

    Returns: [..., R, C].
    """
    tall = momentum.shape[-2] > momentum.shape[-1]
    x = momentum.mT if tall else momentum
    tiny = torch.finfo(x.dtype).tiny
    largest = x.abs().amax((-2, -1), keepdim=True)
    x = x * torch.where(largest < tiny, 0, 1 / largest)
    gram = x @ x.mT  # [..., R, R]
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=tiny)[..., None, None]
    gram = gram / trace  # so that eighth powers stay within float32
    square = gram @ gram
    norm = square.norm(dim=(-2, -1), keepdim=True).add(1e-30) ** 0.25
    gram, square = gram / norm**2, square / norm**4
    product = factor = _factor(gram, square)
    for _ in range(ITERATIONS - 1):
        gram = gram @ factor @ factor
        factor = _factor(gram, gram @ gram)
        product = product @ factor
    x = product / (norm * trace.sqrt()) @ x
    return x.mT if tall else x


def _factor(gram: Tensor, square: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    factor = torch.add(b * gram, square, alpha=c)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor


@contextmanager
def _by_onednn() -> Iterator[None]:
    """Compute float32 products by oneDNN instead of MKL, on processors with bfloat16.

    On an AMD EPYC they are as exact and take half the time. A processor with matrix units (AMX) rounds factors
    to bfloat16, which moves singular values by up to 0.05. Inside `plain_kernels` torch's setting stays.
    """
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16" if fast_kernels() else before
    try:
        yield
    finally:
        settings.fp32_precision = before


class Muon(AdamW):
    """One step, t at a learning rate lr:

        M <- beta M + (1 - beta) G,    N = beta M + (1 - beta) G                      Nesterov's momentum
        W <- (1 - lr decay) W - lr 0.2 sqrt(max(R, C)) orthogonalize(N)               2502.16982, Eq. (4)

    for W of R rows and C columns (a kernel's are its outputs and all else), so that a step is as long as AdamW's usual
    ones. Groups without `use_muon` get AdamW's step. The gradients of matrices are freed.

    Args:
        groups: parameter groups; `use_muon` marks those of matrices and kernels.
        lr: learning rate of groups that name none.
        betas: AdamW's.
        momentum: beta.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], momentum: float) -> None:
        super().__init__(groups, lr=lr, betas=betas, fused=True)
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group.get("use_muon"):
                self._step_matrices(group)
        super().step()
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                alike.setdefault(tuple(parameter.shape), []).append(parameter)
        for parameters in alike.values():
            aims = []
            for parameter in parameters:
                state, slope = self.state[parameter], parameter.grad
                assert slope is not None
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                    state["step"] = torch.zeros(())  # AdamW expects one in every state
                mean = state["momentum_buffer"]
                mean.lerp_(slope, 1 - self.momentum)
                aims.append(slope.lerp(mean, self.momentum).flatten(1))
                parameter.grad = None  # AdamW's step skips it
            with _by_onednn():
                steps = orthogonalize(torch.stack(aims) if len(aims) > 1 else aims[0])
            length = 0.2 * max(steps.shape[-2:]) ** 0.5
            for parameter, step in zip(parameters, steps if len(aims) > 1 else [steps], strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                if isinstance(group["lr"], Tensor):  # of a CUDA graph, to which no number is read back
                    parameter.addcmul_(step.view_as(parameter), group["lr"], value=-length)
                else:
                    parameter.add_(step.view_as(parameter), alpha=-group["lr"] * length)
