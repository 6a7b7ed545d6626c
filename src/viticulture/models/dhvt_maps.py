# SPDX-License-Identifier: Apache-2.0
"""Where a DHVT looks: attention of its blocks, computed again from queries and keys, so that training stays fused.

Paper: Lu et al., NeurIPS 2022, arXiv:2210.05958, supplement [S], Figures 3 to 5 and 7.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from .dhvt import DHVT, HIMHSA, Block, Grid


@torch.no_grad()
def attention_maps(model: DHVT, images: Tensor, blocks: Sequence[int]) -> list[Tensor]:
    """Attention of chosen blocks, in the order of the network; [S] shows the 2nd, 5th, 8th and 11th.

    Args:
        model: with head tokens, in the mode it is in; call `eval()` first.
        images: [B, C, H, W].
        blocks: numbers of blocks; the first is 0.

    Returns: for each block [B, h, S, S], row: query, rows sum to 1; S counts prefix tokens, patches, head tokens.
        Their mean over heads is part (a) of the figures.
    Raises: UserError for a block that does not exist or has no head tokens.
    """
    missing = [number for number in blocks if not 0 <= number < len(model.blocks)]
    if missing:
        raise UserError(f"blocks are numbered 0 to {len(model.blocks) - 1}, got {missing[0]}")
    x, grid = model.embed(images)
    found = []
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if number in blocks:
            if not isinstance(block.attn, HIMHSA):
                raise UserError("attention maps need head tokens; build the model with attention=hi_mhsa")
            found.append(block.attn.attention(block.norm1(x)))
        x = block(x, grid)
    return found


def head_token_maps(attention: Tensor, grid: Grid) -> Tensor:
    """What each head token attends to in its own head: part (b) of the figures.

    Args:
        attention: [B, h, S, S] as `attention_maps` gives it.
        grid: height and width of the map of patches.

    Returns: [B, h, H, W]; the rest of each token's attention went to prefix and head tokens.
    """
    heads, tokens = attention.shape[1:3]
    start = tokens - heads - grid[0] * grid[1]
    queries = attention[:, :, -heads:, start:-heads]  # [B, head, head token, H * W]
    own = queries.diagonal(dim1=1, dim2=2).mT  # [B, h, H * W]
    return torch.unflatten(own, -1, grid)
