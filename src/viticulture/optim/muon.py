# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum whose singular values are all made one, for matrices; AdamW for everything else.

Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon is Scalable
for LLM Training", 2025, arXiv:2502.16982, for the scale at which AdamW's rate and decay can stay.

Not timm's or torch's Muon, because both always iterate in bfloat16, which a processor without it emulates at a
thirtieth of the speed. Here a training in bfloat16 iterates in it; any other in float32 and on the smaller side alone,
which for kernels of 3 x 3 takes half the time or less. Kernels of equal shape are iterated together.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a x + b x^3 + c x^5, which takes singular values in (0, 1] close to one in few steps."""

ITERATIONS = 5


def orthogonalize(momentum: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """U V^T for matrices U S V^T, roughly: singular values end between about 0.7 and 1.2.

        X <- Y X,    Y = a + b X X^T + c (X X^T)^2,    from X = M / ||M||_F          Newton and Schulz, fifth order

    for M of no more rows than columns, else of its transpose.

    Args:
        momentum: M of N matrices, [N, R, C].
        dtype: in which to iterate.

    Returns: [N, R, C], in M's own type.
    """
    tall = momentum.shape[1] > momentum.shape[2]
    x = momentum.mT if tall else momentum
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    # Squares of half precision round to eigenvalues below zero, which the polynomial drives away from it.
    x = _iterate_on_gram(x) if dtype.itemsize >= 4 else _iterate(x)
    return (x.mT if tall else x).to(momentum.dtype)


def _iterate(x: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # [N, R, R]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _iterate_on_gram(x: Tensor) -> Tensor:
    """The same up to rounding, X X^T <- Y X X^T Y, and X <- Y5 ... Y1 X at the end: all factors commute.

    Source: Zhang, Amsel, Chen, Dao, "Gram Newton-Schulz", 2026.
    """
    gram = x @ x.mT  # [N, R, R]
    product = factor = _factor(gram)
    for _ in range(ITERATIONS - 1):
        gram = gram @ factor @ factor
        factor = _factor(gram)
        product = product @ factor
    return product @ x


def _factor(gram: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor


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
        dtype: of `orthogonalize`.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        momentum: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, fused=True)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
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
                    state["step"] = torch.zeros(())  # AdamW asks for one wherever there is a state
                mean = state["momentum_buffer"]
                mean.lerp_(slope, 1 - self.momentum)
                aims.append(slope.lerp(mean, self.momentum).flatten(1))
                parameter.grad = None  # AdamW's step passes over it
            steps = orthogonalize(torch.stack(aims), self.dtype)
            length = 0.2 * max(steps.shape[1:]) ** 0.5
            for parameter, step in zip(parameters, steps, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(step.view_as(parameter), alpha=-group["lr"] * length)
