# SPDX-License-Identifier: Apache-2.0
"""Which parameters are updated how, and how fast."""

from .optim import Optim, Place, Schedule, climb, come_back, shortened_warmup

__all__ = ["Optim", "Place", "Schedule", "climb", "come_back", "shortened_warmup"]
