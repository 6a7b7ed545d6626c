# SPDX-License-Identifier: Apache-2.0
"""Dropout with cheap random numbers on a CPU: eight decisions from every 64-bit number, where torch draws one each.

    y = x * keep / (1 - p),    keep ~ Bernoulli(1 - p)

A byte below 256 a drops, for the largest multiple a of 1/256 up to p. The rest of p comes from a second, rare event of
probability (p - a) / (1 - a), whose occurrences are found by drawing the gaps between them. So p is exact and decisions
are independent. Numbers come from torch's global generator, as for `torch.nn.Dropout`: a seed, or a restored random
state, repeats the decisions. The plain form is `F.dropout`, which is used on other devices.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...kernels import fast_kernels

BYTE = 2**8  # values of a byte


def keep_bits(count: int, p: float) -> Tensor:
    """Draw independent decisions on a CPU, [count] int8: 1 (keep) with probability 1 - p, else 0; p in [0, 1)."""
    words = torch.randint(-(2**63), 2**63 - 1, (count // 8 + 1,))  # one of 2^64 values is never drawn
    low = math.floor(p * BYTE)
    keep = words.view(torch.int8).ge_(low - BYTE // 2)  # written as int8, which torch does in a vectorized kernel
    rest = (p - low / BYTE) / (1 - low / BYTE)
    return (keep.index_fill_(0, occurrences(count, rest), 0) if rest else keep)[:count]


def occurrences(count: int, p: float) -> Tensor:
    """Draw the places, ascending, where an event of probability p occurs in `count` independent trials; `count` pads.

    Gaps between events are geometric: 1 + floor(log(u) / log(1 - p)). Enough are drawn to pass the end, except with a
    probability below 1e-12.
    """
    expected = count * p
    u = 1 - torch.rand(int(expected + 8 * math.sqrt(expected) + 16), dtype=torch.float64)  # in (0, 1]
    gaps = u.log_().div_(math.log1p(-p)).floor_().add_(1)
    return gaps.cumsum(0).sub_(1).clamp_(max=count).long()


def dropout(x: Tensor, p: float) -> Tensor:
    """Compute y as above, in the shape and dtype of x; gradients pass where x was kept, with the same factor."""
    if not (x.is_cpu and fast_kernels()):
        return F.dropout(x, p)
    if p in (0, 1):
        return x if p == 0 else x * 0
    wide = torch.promote_types(x.dtype, torch.float32)  # bfloat16 would round 1 / (1 - p)
    mask = torch.empty_like(x, dtype=wide)  # dense, in the memory order of x
    mask.as_strided((x.numel(),), (1,)).copy_(keep_bits(x.numel(), p)).mul_(1 / (1 - p))
    return (x.to(wide) * mask).to(x.dtype)


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` by `dropout`; `inplace` has no effect."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input


def replace_dropout(module: nn.Module) -> None:
    """Replace every `nn.Dropout` with p > 0 inside a module by `Dropout`, in place; state-dict keys stay."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout and child.p:
            setattr(module, name, Dropout(child.p).train(child.training))
        else:
            replace_dropout(child)
