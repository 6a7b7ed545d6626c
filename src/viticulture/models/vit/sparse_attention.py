# SPDX-License-Identifier: Apache-2.0
"""Self-attention that assigns most keys a weight of exactly zero: entmax for a softmax, with a trained sparsity.

    p = argmax_p <p, s> + H_alpha(p)  =  [(alpha - 1) s - tau]_+ ^ (1 / (alpha - 1)),   tau such that p sums to 1   [1]

alpha -> 1 is a softmax, alpha = 2 a projection onto the simplex. It is ViT-Sparse of Bootstrapping ViTs: one alpha a
layer, initially 1.5. Students: plain_vit.py.

Deviations from [1] and that paper's code: tau is found by Newton's method on a norm, which takes a handful of steps
where bisection takes 50; alpha = 1.5 + r tanh(a / r) for a parameter a, r = 0.45, so that it stays in (1.05, 1.95),
where the formulas hold in float32. Initially a moves alpha as fast as alpha itself would; weight decay pulls alpha
to 1.5. `FreeSparseAttention` is the authors' form: alpha is the parameter, weight decay pulls it to 0, and tau is
bisected, for which alpha may lie anywhere but at 1, where it divides by zero.

[1] Correia, Niculae and Martins, "Adaptively Sparse Transformers", EMNLP 2019, arXiv:1909.00015.
"""

from typing import Any, ClassVar

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import UserError

CENTER, REACH = 1.5, 0.45
STEPS = 8
HALVINGS = 50


def threshold(z: Tensor, alpha: Tensor) -> Tensor:
    """Find tau, [..., 1], with sum_i [z_i - tau]_+^m = 1 for m = 1 / (alpha - 1); z <= 0, the largest of a row is 0.

    Newton's method for ||[z - tau]_+||_m = 1. A norm is convex and falls in tau, so steps from tau = -1, where it is at
    least 1, rise towards the solution and never pass it; where all z agree, the first step is exact.
    """
    tau = -torch.ones_like(z[..., :1])
    for _ in range(STEPS):
        above = (z - tau).clamp_(min=0)
        power = above.pow(1 / (alpha - 1) - 1)
        total = power.sum(-1, keepdim=True)
        norm = above.mul_(power).sum(-1, keepdim=True)  # to the power m
        tau = tau + (norm - norm.pow(2 - alpha)) / total
    return tau


def bisected(z: Tensor, alpha: Tensor) -> Tensor:
    """Find the same tau for any alpha but 1: the sum is at least 1 at tau = -1, at most 1 at -n^(1 - alpha) for n keys.
    z <= 0 for alpha > 1 and z >= 0 below, 0 for the key with the largest score."""
    low = -torch.ones_like(z[..., :1])
    step = 1 - z.new_full((), z.shape[-1]).pow(1 - alpha)  # towards the other end, downwards for alpha < 1
    for _ in range(HALVINGS):
        step = step / 2
        above = (z - low - step).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low = torch.where(above, low + step, low)
    return low


class Entmax(torch.autograd.Function):
    """(s, alpha) -> p along the last axis, in float32 or wider; alpha is a scalar tensor in (1, 2), or with `bisect`
    any but 1.

    Gradients, with q_i = p_i^(2 - alpha) / sum_j p_j^(2 - alpha):                               [1, Prop. 1]

        dp / ds = diag(p^(2 - alpha)) - p^(2 - alpha) q^T
        dp / dalpha = (p - q) / (alpha - 1)^2 - (p log p - q sum_j p_j log p_j) / (alpha - 1)
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: Tensor, bisect: bool = False) -> Tensor:
        z = (scores - scores.amax(-1, keepdim=True)) * (alpha - 1)
        tau = bisected(z, alpha) if bisect else threshold(z, alpha)
        p = z.sub_(tau).clamp_(min=0).pow(1 / (alpha - 1))
        p /= p.sum(-1, keepdim=True)
        ctx.save_for_backward(p, alpha)
        return p

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        p, alpha = ctx.saved_tensors
        slope = torch.where(p > 0, p.pow(2 - alpha), 0.0)  # alpha may exceed 2
        share = slope / slope.sum(-1, keepdim=True)
        to_scores = slope * (grad - (share * grad).sum(-1, keepdim=True))
        surprise = torch.xlogy(p, p)
        to_alpha = (p - share) / (alpha - 1) ** 2
        to_alpha -= (surprise - share * surprise.sum(-1, keepdim=True)) / (alpha - 1)
        return to_scores, (grad * to_alpha).sum(), None


class SparseAttention(Attention):
    """timm's attention with entmax, the same keywords, and one more parameter. Shape: [B, T, D] -> [B, T, D]."""

    free: ClassVar[bool] = False

    def __init__(self, dim: int, num_heads: int = 8, **settings: Any) -> None:
        super().__init__(dim, num_heads, **settings)
        if getattr(self, "gate", None) is not None:
            raise UserError("sparse attention has no gate, got gated=True")
        if self.free:
            self.free_alpha = nn.Parameter(torch.tensor(CENTER))
        else:
            self.alpha_offset = nn.Parameter(torch.zeros(()))

    def alpha(self) -> Tensor:
        """alpha, a scalar, in (1.05, 1.95) unless it is free."""
        if self.free:
            return self.free_alpha.float()
        return CENTER + REACH * torch.tanh(self.alpha_offset.float() / REACH)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise NotImplementedError("sparse attention supports no masks")
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x [B, h, T, d]
        scores = self.scale * self.q_norm(q) @ self.k_norm(k).mT  # [B, h, T, T]
        probabilities = Entmax.apply(scores.float(), self.alpha(), self.free).to(v.dtype)
        out = self.attn_drop(probabilities) @ v
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))


class FreeSparseAttention(SparseAttention):
    """The same with alpha itself as its parameter, as in the authors' code."""

    free: ClassVar[bool] = True
