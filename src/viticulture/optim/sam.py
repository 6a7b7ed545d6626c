# SPDX-License-Identifier: Apache-2.0
"""Sharpness-aware minimization around any optimizer: the gradient is taken uphill, the step where the weights were.

    w' = w + rho g(w) / ||g(w)||,   then the optimizer's step on w with g(w')        SAM [1], Eq. (2) for p = 2

[1] Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR 2021, arXiv:2010.01412.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class SAM(Optimizer):
    """Call the closure twice a step; state and parameter groups are those of the base optimizer.

    Buffers are restored with the weights, so that BatchNorm counts a batch once.

    Args:
        rho: Euclidean distance that all weights together move uphill.
        module: whose buffers are restored.
    """

    def __init__(self, base: Optimizer, rho: float, module: nn.Module) -> None:
        super().__init__(base.param_groups, base.defaults)
        self.base, self.rho, self.module = base, rho, module
        self.perturbed = False  # whether gradients are those of w'
        self._step_supports_amp_scaling = False
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step once; `closure` clears the gradients, computes the loss and its gradients. Returns: the loss at w.

        The scale of the first gradient does not matter. A parameter without a gradient does not move.
        """
        assert closure is not None, "SAM takes two gradients a step"
        with torch.enable_grad():
            loss = closure()
            slopes = [(p, p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]
            foot = [(t, t.detach().clone()) for t in (*(weight for weight, _ in slopes), *self.module.buffers())]
            try:
                self.perturbed = True
                self._perturb(slopes)
                closure()
            finally:
                self.perturbed = False
                with torch.no_grad():
                    for tensor, value in foot:
                        tensor.copy_(value)
        self.base.step()
        return loss

    @torch.no_grad()
    def _perturb(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        factor = self.rho / (nn.utils.get_total_norm([slope for _, slope in slopes]) + 1e-12)  # as in the authors' code
        for weight, slope in slopes:
            weight.addcmul_(slope, factor.to(weight))

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self.base.param_groups, self.base.state
