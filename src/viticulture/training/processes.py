# SPDX-License-Identifier: Apache-2.0
"""Which devices and processes a run has: checked before it starts."""

import os

import torch

from ..errors import UserError
from .settings import Engine


def is_leader() -> bool:
    """Whether this process writes the run: the first of those that torchrun, SLURM or Lightning started."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


def check_devices(engine: Engine) -> None:
    """Raises: UserError if the devices asked for are not there."""
    if engine.device == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device is cuda, but torch sees no GPU; use --device cpu, or check the driver")
    if engine.device == "mps" and not torch.backends.mps.is_available():
        raise UserError("engine.device is mps, but torch sees no Apple GPU; use --device cpu")
    on_gpu = engine.device == "cuda" or (engine.device == "auto" and torch.cuda.is_available())
    if on_gpu and engine.devices > torch.cuda.device_count():
        raise UserError(f"engine.devices is {engine.devices}, but torch sees {torch.cuda.device_count()} GPU(s)")
