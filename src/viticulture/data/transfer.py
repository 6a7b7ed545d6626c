# SPDX-License-Identifier: Apache-2.0
"""From the CPU to a device without waiting for the device."""

import torch
from torch import Tensor


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device unless it is there; to CUDA from pinned memory, so that the copy only joins the queue."""
    if device.type == "cuda" and values.device.type == "cpu" and values.numel():
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
