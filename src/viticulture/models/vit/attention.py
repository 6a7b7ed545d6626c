# SPDX-License-Identifier: Apache-2.0
"""Plain self-attention: softmax(scale q k^T) v, timm's layer, and which layers compute it."""

from timm.layers.attention import Attention
from timm.models.convit import MHSA
from torch import Tensor

from ...kernels import fast_kernels
from ..cpu.attention import attend, attend_with_dropout, trains_in_bfloat16


def is_plain(layer: object) -> bool:
    """Return whether a layer computes softmax(scale * q k^T) and nothing more, with `qkv`, `num_heads` and `scale`.

    The one rule for all code that reads attention or shares its weights. Our layers declare it, `plain_scores = True`;
    of timm's, those that do are listed. A subclass may change anything and is not taken for plain.
    """
    return type(layer) in (Attention, MHSA) or getattr(layer, "plain_scores", False) is True


class DroppedAttention(Attention):
    """timm's attention, with its keywords and state-dict keys; on a CPU it trains faster. [B, T, D] -> [B, T, D]."""

    plain_scores = True

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        p = self.attn_drop.p if self.training else 0.0
        unusual = attn_mask is not None or is_causal or getattr(self, "gate", None) is not None
        fast = x.is_cpu and fast_kernels() and not unusual and (0 < p < 1 or (p == 0 and trains_in_bfloat16(x)))
        if not fast:
            causal = {"is_causal": True} if is_causal else {}
            return super().forward(x, attn_mask=attn_mask, **causal)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x [B, h, T, d]
        q, k = self.q_norm(q), self.k_norm(k)
        out = attend_with_dropout(q, k, v, self.scale, p) if p else attend(q, k, v)
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))
