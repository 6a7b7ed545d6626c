# SPDX-License-Identifier: Apache-2.0
"""From the CPU to a device without waiting for the device."""

import torch
from torch import Tensor


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; from pinned memory on CUDA, so that the copy only joins the queue."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
