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
    losses, step = broken.method.losses, itertools.count()

    def stopped(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        if next(step) == steps:
            raise KeyboardInterrupt
        return losses(batch)

    broken.method.losses = stopped  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        fit(broken)
    broken.run.unlock()
    again = reopen(str(folder / "broken"))
    fit(again)
    return whole, again


def check_same_bits(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that two dictionaries of tensors are equal, key by key."""
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def check_same_weights(ours: Session, theirs: Session, which: tuple[str, ...]) -> None:
    """Check that weights of two runs are equal, bit for bit; `which` is last, best or ema."""
    for name in which:
        check_same_bits(*(load_file(run.run.weights(name) / "model.safetensors") for run in (ours, theirs)))
