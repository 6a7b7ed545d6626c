# SPDX-License-Identifier: Apache-2.0
"""Dropout whose random numbers are cheap on a CPU: eight decisions out of every 64-bit number, not one out of each.

    y = x * keep / (1 - p),    keep ~ Bernoulli(1 - p)

A byte below 256 a drops, for the largest multiple a of 1/256 up to p. What is missing to p comes from a second, rare
event of probability (p - a) / (1 - a), whose occurrences are found by drawing the gaps between them. So p is exact and
decisions are independent. Numbers come from torch's global generator, as those of `torch.nn.Dropout` do: a seed, or a
restored random state, gives the same decisions again. Elsewhere than on a CPU, where torch draws in parallel, this is
torch's own dropout.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VALUES = 2**8
"""Of a byte."""


def keep_bits(count: int, p: float) -> Tensor:
    """Independent decisions on a CPU: 1 keep, with probability 1 - p, or 0 drop, [count] int8.

    Args:
        count: how many.
        p: probability of a drop, in [0, 1).
    """
    words = torch.randint(-(2**63), 2**63 - 1, (count // 8 + 1,))  # one of 2^64 values never comes
    low = math.floor(p * VALUES)
    keep = words.view(torch.int8).ge_(low - VALUES // 2)  # written as int8, which torch does in a vectorized kernel
    rest = (p - low / VALUES) / (1 - low / VALUES)
    return (keep.index_fill_(0, occurrences(count, rest), 0) if rest else keep)[:count]


def occurrences(count: int, p: float) -> Tensor:
    """Where an event of probability p happens in `count` independent trials: ascending places, then `count` repeated.

    Gaps between events are geometric: 1 + floor(log(u) / log(1 - p)). Enough are drawn to pass the end, but for a
    chance of less than 1e-12.
    """
    expected = count * p
    u = 1 - torch.rand(int(expected + 8 * math.sqrt(expected) + 16), dtype=torch.float64)  # in (0, 1]
    gaps = u.log_().div_(math.log1p(-p)).floor_().add_(1)
    return gaps.cumsum(0).sub_(1).clamp_(max=count).long()


def dropout(x: Tensor, p: float) -> Tensor:
    """y as above; gradients pass where x was kept, with the same factor. Shape and dtype are those of x."""
    if not x.is_cpu:
        return F.dropout(x, p)
    if p in (0, 1):
        return x if p == 0 else x * 0
    wide = torch.promote_types(x.dtype, torch.float32)  # bfloat16 would round 1 / (1 - p)
    mask = torch.empty_like(x, dtype=wide)  # dense, in the memory order of x
    mask.as_strided((x.numel(),), (1,)).copy_(keep_bits(x.numel(), p)).mul_(1 / (1 - p))
    return (x.to(wide) * mask).to(x.dtype)


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with `dropout` above; the identity outside training. `inplace` changes nothing."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input


def cheapen(module: nn.Module) -> None:
    """Exchange every dropout layer inside that ever drops, in place; state-dict keys stay."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout and child.p:
            setattr(module, name, Dropout(child.p).train(child.training))
        else:
            cheapen(child)
