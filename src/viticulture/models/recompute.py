# SPDX-License-Identifier: Apache-2.0
"""Trade time for memory: run a layer again in the backward pass instead of keeping what it computed."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute(layer: nn.Module, *inputs: Any) -> Any:
    """The layer's output; only its inputs are kept for the backward pass.

    The second forward pass draws the same random numbers and leaves BatchNorm's running statistics alone, so that
    outputs, gradients and buffers are those of `layer(*inputs)`.
    """
    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _statistics_kept(layer)))


@contextmanager
def _statistics_kept(layer: nn.Module) -> Iterator[None]:
    norms = [module for module in layer.modules() if isinstance(module, _BatchNorm)]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches
