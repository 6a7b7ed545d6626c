# SPDX-License-Identifier: Apache-2.0
"""Self-attention that trains faster on a CPU: with dropout of its probabilities, and in bfloat16.

    P = softmax(scale q k^T),    P' = P * keep / (1 - p),    out = P' v

torch's fused kernel for CPUs has no dropout: with it, torch takes several times as long. `DroppedAttend` draws `keep`
cheaply (dropout.py) and writes out the backward pass:

    dv = P'^T do,    dP' = do v^T,    dS = P * (keep dP' / (1 - p) - sum_j do_j out_j),    dq = scale dS k, ...

where the last sum, over one query's output, equals the sum over its keys of dP * P that a softmax subtracts.
In bfloat16 the backward pass of that kernel is slow, too: for 16 to 200 tokens it takes 3 to 15 times as long as
separate matrix products (the log), which `attend` uses there. Plain form of both: `F.scaled_dot_product_attention`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...kernels import fast_kernels
from .dropout import keep_bits


def trains_in_bfloat16(x: Tensor) -> bool:
    """Return whether x is on a CPU and a network trains on it in bfloat16."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return fast_kernels() and x.is_cpu and dtype is torch.bfloat16 and torch.is_grad_enabled()


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(d)) v for [B, h, T, d], in the form that trains fastest."""
    if trains_in_bfloat16(q):
        return (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1) @ v
    return F.scaled_dot_product_attention(q, k, v)


def attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, scale: float, p: float) -> Tensor:
    """Compute out as above for [B, h, T, d] on a CPU, 0 < p < 1; under autocast in the dtype of q."""
    batch = q.shape[0]
    q, k, v = (part.flatten(0, 1).to(q.dtype) for part in (q, k, v))  # [B h, T, d]
    with torch.autocast("cpu", enabled=False):
        return DroppedAttend.apply(q, k, v, scale, p).unflatten(0, (batch, -1))


class DroppedAttend(torch.autograd.Function):
    """(q, k, v, scale, p) -> out, each tensor [N, T, d] for N heads of any images, on a CPU."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, p: float) -> Tensor:
        nothing, amplify = q.new_empty(()), 1 / (1 - p)
        probabilities = torch.baddbmm(nothing, q, k.mT, beta=0, alpha=scale).softmax(-1)  # [N, T, T]
        keep = keep_bits(probabilities.numel(), p).view(probabilities.shape)
        out = torch.baddbmm(nothing, keep.to(q.dtype).mul_(probabilities), v, beta=0, alpha=amplify)
        ctx.save_for_backward(q, k, v, probabilities, keep, out)
        ctx.factors = scale, amplify
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probabilities, bits, out = ctx.saved_tensors
        scale, amplify = ctx.factors
        nothing, keep = q.new_empty(()), bits.to(q.dtype)
        subtracted = (grad * out).sum(-1, keepdim=True)  # [N, T, 1]
        scores = torch.baddbmm(nothing, grad, v.mT, beta=0, alpha=amplify)
        scores = scores.mul_(keep).sub_(subtracted).mul_(probabilities)  # gradient of scale q k^T
        dq = torch.baddbmm(nothing, scores, k, beta=0, alpha=scale)
        dk = torch.baddbmm(nothing, scores.mT, q, beta=0, alpha=scale)
        dv = torch.baddbmm(nothing, keep.mul_(probabilities).mT, grad, beta=0, alpha=amplify)
        return dq, dk, dv, None, None
