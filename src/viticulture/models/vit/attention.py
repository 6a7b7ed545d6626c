# SPDX-License-Identifier: Apache-2.0
"""Plain self-attention: which layers it is in, and one whose dropout of probabilities is fast on a CPU.

    P = softmax(scale q k^T),    P' = P * keep / (1 - p),    out = P' v

timm hands this to `scaled_dot_product_attention`, whose fast kernel for CPUs knows no dropout: with it, torch takes
several times as long. Here the dropped entries are drawn cheaply (dropout.py) and the backward pass is written out:

    dv = P'^T do,    dP' = do v^T,    dS = P * (keep dP' / (1 - p) - sum_j do_j out_j),    dq = scale dS k, ...

where the last sum, over one query's output, equals the sum over its keys of dP * P that a softmax takes away.
In bfloat16 on a CPU the backward pass of that kernel is slow, too: for 16 to 200 tokens it takes 3 to 15 times as long
as matrix products one after the other (LOG.md), which `attend` does there while it trains. Everywhere else
(evaluation, export, accelerators, float32 without dropout, masks) this is timm's own code.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.convit import MHSA
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dropout import keep_bits


def is_plain(layer: object) -> bool:
    """Whether a layer attends by the softmax of scale * q k^T and nothing more, with `qkv`, `num_heads` and `scale`.

    The one rule for all that reads attention or borrows its weights. A layer of ours says so by `plain_scores = True`;
    of timm's, those that do are known. A subclass may do anything, and is not taken for plain.
    """
    return type(layer) in (Attention, MHSA) or getattr(layer, "plain_scores", False) is True


def in_products(x: Tensor) -> bool:
    """Whether matrix products, one after the other, are faster than torch's fused attention: see above."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return x.is_cpu and dtype is torch.bfloat16 and torch.is_grad_enabled()


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v for [B, h, T, d], in the way that trains fastest."""
    if in_products(q):
        return (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1) @ v
    return F.scaled_dot_product_attention(q, k, v)


class Attend(torch.autograd.Function):
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
        taken_away = (grad * out).sum(-1, keepdim=True)  # [N, T, 1]
        scores = torch.baddbmm(nothing, grad, v.mT, beta=0, alpha=amplify)
        scores = scores.mul_(keep).sub_(taken_away).mul_(probabilities)  # gradient of scale q k^T
        dq = torch.baddbmm(nothing, scores, k, beta=0, alpha=scale)
        dk = torch.baddbmm(nothing, scores.mT, q, beta=0, alpha=scale)
        dv = torch.baddbmm(nothing, keep.mul_(probabilities).mT, grad, beta=0, alpha=amplify)
        return dq, dk, dv, None, None


class DroppedAttention(Attention):
    """timm's attention, with the same keywords and state-dict keys. Shape: [B, T, D] -> [B, T, D]."""

    plain_scores = True  # see `is_plain`

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        p = self.attn_drop.p if self.training else 0.0
        unusual = attn_mask is not None or is_causal or getattr(self, "gate", None) is not None
        if not x.is_cpu or unusual or not (0 < p < 1 or (p == 0 and in_products(x))):
            causal = {"is_causal": True} if is_causal else {}
            return super().forward(x, attn_mask=attn_mask, **causal)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x [B, h, T, d]
        q, k = self.q_norm(q), self.k_norm(k)
        if p:
            q, k, v = (part.flatten(0, 1).to(q.dtype) for part in (q, k, v))  # [B h, T, d]
            with torch.autocast("cpu", enabled=False):
                out = Attend.apply(q, k, v, self.scale, p).unflatten(0, (x.shape[0], -1))
        else:
            out = attend(q, k, v)
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))
