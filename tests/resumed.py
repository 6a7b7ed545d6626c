# SPDX-License-Identifier: Apache-2.0
"""The same training twice: uninterrupted, and stopped in its second epoch and resumed."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from viticulture.training.run import fit
from viticulture.training.session import Session, reopen


def whole_and_resumed(make: Callable[..., Session], folder: Path, steps: int = 7) -> tuple[Session, Session]:
    """Train sessions made by `make(folder, keys)` to their end: uninterrupted, and stopped after `steps`."""
    whole = make(folder / "whole")
    fit(whole)
    broken = make(folder / "broken", **{"engine.checkpoint_minutes": 1e-9})
    interrupt_fit(broken, steps)
    again = reopen(str(folder / "broken"))
    fit(again)
    return whole, again


def interrupt_fit(session: Session, calls: int) -> None:
    """Train until the losses were computed so many times, then stop as by Ctrl-C."""
    losses, call = session.method.losses, itertools.count()

    def stopped(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        if next(call) == calls:
            raise KeyboardInterrupt
        return losses(batch)

    session.method.losses = stopped  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        fit(session)
    session.run.unlock()


def check_same_bits(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that two dictionaries of tensors are equal, key by key."""
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def check_same_weights(ours: Session, theirs: Session, which: tuple[str, ...]) -> None:
    """Check that weights of two runs are equal, bit for bit; `which` is last, best or ema."""
    for name in which:
        check_same_bits(*(load_file(run.run.weights(name) / "model.safetensors") for run in (ours, theirs)))
