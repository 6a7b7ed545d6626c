# SPDX-License-Identifier: Apache-2.0
"""Dropout whose random numbers are cheap on a CPU: four decisions out of every 64-bit number, not one out of each.

    y = x * keep / (1 - p'),    keep ~ Bernoulli(1 - p'),    p' = round(65536 p) / 65536

p' differs from p by less than 1e-5 (2^-17), and a p below that drops nothing. The scale uses p', so that E[y] = x.
Numbers come from torch's global generator, as those of `torch.nn.Dropout` do: a seed, or a restored random state,
gives the same decisions again. Elsewhere than on a CPU, where torch draws in parallel, this is torch's own dropout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16
"""Values of the 16 bits behind one decision."""


def drop_share(p: float) -> float:
    """p', the probability that is drawn for a wanted p in [0, 1]."""
    return round(p * STEPS) / STEPS


def keep_bits(count: int, p: float) -> Tensor:
    """Independent decisions on a CPU: 1 keep, with probability 1 - p', or 0 drop, [count] int16.

    Args:
        count: how many.
        p: probability of a drop, in [0, 1].
    """
    words = torch.randint(-(2**63), 2**63 - 1, (-(-count // 4),))  # one of 2^64 values never comes
    return decide(words.view(torch.int16)[:count], p)


def decide(numbers: Tensor, p: float) -> Tensor:
    """1 for all but the lowest p' of the 2^16 values that int16 can have, in place."""
    last_dropped = round(p * STEPS) - STEPS // 2 - 1
    if last_dropped < -STEPS // 2:
        return numbers.fill_(1)
    return numbers.gt_(last_dropped)  # written as int16, which torch does in a vectorised kernel


def dropout(x: Tensor, p: float) -> Tensor:
    """y as above; gradients pass where x was kept, with the same factor. Shape and dtype are those of x."""
    if not x.is_cpu:
        return F.dropout(x, p)
    share = drop_share(p)
    if share in (0, 1):
        return x if share == 0 else x * 0
    wide = torch.promote_types(x.dtype, torch.float32)  # bfloat16 would round 1 / (1 - p')
    mask = torch.empty_like(x, dtype=wide)  # dense, in the memory order of x
    mask.as_strided((x.numel(),), (1,)).copy_(keep_bits(x.numel(), p)).mul_(1 / (1 - share))
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
