# SPDX-License-Identifier: Apache-2.0
"""Which parameters are updated how, and how fast."""

from .optim import Optim, Schedule, shortened_warmup
from .sam import SAM

__all__ = ["SAM", "Optim", "Schedule", "shortened_warmup"]
