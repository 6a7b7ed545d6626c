# SPDX-License-Identifier: Apache-2.0
"""Layers on the storage of another module's parameters, with gradients of their own."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Loan:
    """A parameter of another module, or its last rows.

    Args:
        owner: the module.
        name: the parameter's name in it.
        first: number of the first row that is lent.
    """

    owner: nn.Module
    name: str
    first: int = 0

    def parameter(self) -> nn.Parameter:
        return getattr(self.owner, self.name)

    def tensor(self) -> Tensor:
        """What is lent, on the owner's storage."""
        return self.parameter().detach()[self.first :]

    def gradient(self) -> Tensor:
        """The same rows of the owner's gradient, to be changed in place; zeros are put where there is none yet."""
        parameter = self.parameter()
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad[self.first :]


class Borrowed(nn.Module):
    """A layer with second parameters on another module's storage.

    They have gradients of their own and follow wherever the owner's go, if the owner moves first. They are no part of
    the state dict, and no optimizer's: the owner's are saved and stepped.

    Args:
        loans: what is borrowed, by the name that it gets here.
    """

    def __init__(self, loans: dict[str, Loan]) -> None:
        super().__init__()
        self.loans = loans
        self.tie()

    def tie(self) -> None:
        """Borrow what the owner has now; gradients of what was borrowed before are dropped."""
        for name, loan in self.loans.items():
            self.register_parameter(name, nn.Parameter(loan.tensor(), loan.parameter().requires_grad))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        borrowed, self._parameters = self._parameters, {}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._parameters = borrowed
        self.tie()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:  # a copy borrows from the copied owner
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.tie()

    def _save_to_state_dict(self, *_: Any) -> None: ...

    def _load_from_state_dict(self, *_: Any) -> None: ...
