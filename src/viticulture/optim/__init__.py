# SPDX-License-Identifier: Apache-2.0
"""Optimizers, parameter groups and learning rates."""

from .optim import Optim, Schedule, shortened_warmup
from .sam import SAM

__all__ = ["SAM", "Optim", "Schedule", "shortened_warmup"]
