# SPDX-License-Identifier: Apache-2.0
"""The agent CNN: a convolutional network with the blocks of a ViT, CONV in place of attention.

Paper [1]: Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552, Sec. 3.2 and Tables 6 and 7. build.py names those of the paper, and builds one for any ViT, to be
trained alongside it; shared_agent.py builds one on the ViT's weights.

    stem -> blocks, some with a 2x2 average pool behind them -> BN -> GELU -> mean over the map -> linear head

Equal to the authors' code. It departs from the paper in two points, and so do we: the res stem's max-pool is 3x3, and
blocks with BatchNorm behind their layers exist. Maps are channels-last, so that 1x1 convolutions are linear layers.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ...keywords import check_fields
from ..cpu.dropout import Dropout
from .generalized_conv import GeneralizedConv

Start = Literal["usual", "published"]


@dataclass(frozen=True)
class AgentShape:
    """Where the agent departs from its ViT.

    Args:
        stem: plain cuts the image into the ViT's patches, res convolves and pools it to twice the ViT's rows and
            columns.
        pool_after: numbers of the blocks, from 0, behind which the map is halved; null is the paper's choice: none
            for the plain stem, else behind the first and the second sixth of the blocks.
        norm: BatchNorm before the layers of a block (pre; the paper's small agent) or behind them (post; its base one).
        dropout: of the hidden units of an MLP, and of the blocks' branches too where the agent shares the student's
            weights; null takes the student's rate.
        start: published draws the plain stem's weights and all biases of res stem and MLP from N(0, 1), as the authors'
            code does; usual sets the biases to 0 and the plain stem by Xavier's rule, as all other weights.
    """

    stem: Literal["plain", "res"] = "res"
    pool_after: list[int] | None = None
    norm: Literal["pre", "post"] = "pre"
    dropout: float | None = None
    start: Start = "usual"

    def __post_init__(self) -> None:
        check_fields("an agent's shape", self)
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"an agent's dropout must lie in [0, 1), got {self.dropout}")

    def pools(self, depth: int) -> list[int]:
        """Return `pool_after` for `depth` blocks. Raises: UserError for a block that does not exist."""
        if self.pool_after is None:
            first = max(1, round(depth / 6))
            second = max(first + 1, round(depth / 3))
            return [] if self.stem == "plain" else [done - 1 for done in (first, second) if done < depth]
        if not set(self.pool_after) <= set(range(depth)):
            raise UserError(f"an agent's pool_after must name blocks from 0 to {depth - 1}, got {self.pool_after}")
        return sorted(set(self.pool_after))


@dataclass(frozen=True)
class Sizes:
    """Sizes that the agent has in common with its ViT; the defaults are those of the paper's ViT-S."""

    patch_size: int = 16  # pixels on a side
    embed_dim: int = 288  # D, channels of every block's map
    depth: int = 6  # number of blocks
    num_heads: int = 9  # kernel positions of CONV
    hidden: int = 1152  # channels inside an MLP
    dropout: float = 0.1  # of these channels


class PlainStem(nn.Conv2d):
    """Cut the image into the ViT's patches. Shape: [B, 3, H, W] -> [B, D, H / P, W / P] for patches of P pixels."""

    def __init__(self, sizes: Sizes, in_chans: int, start: Start) -> None:
        super().__init__(in_chans, sizes.embed_dim, sizes.patch_size, stride=sizes.patch_size)
        if start == "published":
            nn.init.normal_(self.weight)
        else:
            nn.init.xavier_uniform_(self.weight.flatten(1))
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class ResStem(nn.Module):
    """Halve the image until the map has twice the rows and columns of the ViT's.

        conv -> BN -> GELU -> max-pool 3x3, stride 2 -> conv 3x3, stride 2

    For patches of 16 pixels, as published, the first convolution is 7x7 with stride 2. Deviation for other patches: 8
    leaves out the max-pool, 32 has two; 4 and 2 begin with a 3x3 convolution of stride 1, and 2 ends with one.

    Shape: [B, in_chans, H, W] -> [B, D, 2 H / P, 2 W / P] for patches of P pixels, rounded up; `width` channels behind
    the first convolution.
    """

    def __init__(self, sizes: Sizes, width: int, in_chans: int, start: Start) -> None:
        super().__init__()
        halvings = sizes.patch_size.bit_length() - 2
        if halvings < 0 or sizes.patch_size != 2 << halvings:
            raise UserError(
                f"an agent's res stem needs patches of 2, 4, 8, 16 or 32 pixels, got {sizes.patch_size}; "
                "take stem plain, or a student with other patches"
            )
        side, stride = (7, 2) if halvings > 1 else (3, 1)
        self.conv1 = nn.Conv2d(in_chans, width, side, stride, padding=side // 2, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.Sequential(*(nn.MaxPool2d(3, stride=2, padding=1) for _ in range(halvings - 2)))
        self.conv2 = nn.Conv2d(width, sizes.embed_dim, 3, stride=2 if halvings else 1, padding=1)
        for conv in (self.conv1, self.conv2):
            start_layer(conv, start)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv2(self.pool(F.gelu(self.norm(self.conv1(images)))))


class Mlp(nn.Module):
    """Two 1x1 convolutions with a GELU and dropout in between. Shape: [B, D, H, W] -> [B, D, H, W]."""

    def __init__(self, dim: int, hidden: int, dropout: float, start: Start) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.drop = Dropout(dropout)
        for layer in (self.fc1, self.fc2):
            start_layer(layer, start)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc2(self.drop(F.gelu(self.fc1(x.permute(0, 2, 3, 1)))))  # [B, H, W, D]
        return y.permute(0, 3, 1, 2)


def start_layer(layer: nn.Conv2d | nn.Linear, start: Start) -> None:
    """Initialize Xavier-uniform weights; biases 0 or, as published, N(1e-6, 1), where N(0, 1e-6) was meant."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None and start == "published":
        nn.init.normal_(layer.bias, mean=1e-6)
    elif layer.bias is not None:
        nn.init.zeros_(layer.bias)


class AgentBlock(nn.Module, ABC):
    """Two residual branches: one mixes neighbors, one mixes channels. Keeps the shape [B, D, H, W].

    Args:
        dim: D.
        conv: mixes neighbors.
        mlp: mixes channels.
        dropout: of a branch's output.
    """

    def __init__(self, dim: int, conv: nn.Module, mlp: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.conv = nn.BatchNorm2d(dim), conv
        self.norm2, self.mlp = nn.BatchNorm2d(dim), mlp
        self.drop = Dropout(dropout)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...


class PreNorm(AgentBlock):
    """x = x + CONV(BN(x)); x = x + MLP(BN(x))."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.conv(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class PostNorm(AgentBlock):
    """x = x + BN(CONV(x)); x = x + BN(MLP(x))."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.norm1(self.conv(x)))
        return x + self.drop(self.norm2(self.mlp(x)))


BLOCKS: dict[str, type[AgentBlock]] = {"pre": PreNorm, "post": PostNorm}


class AgentCNN(nn.Module):
    """The agent: [B, 3, H, W] -> [B, C], with the interface of timm's models.

    Args:
        sizes: in common with a ViT.
        shape: where it differs from a ViT.
        blocks: its blocks; None builds them with separate weights, whose dropout acts inside the MLP alone.
        num_classes: C; zero leaves the features.
        stem_width: channels inside the res stem.
    """

    def __init__(
        self,
        sizes: Sizes,
        shape: AgentShape = AgentShape(),
        blocks: Iterable[AgentBlock] | None = None,
        num_classes: int = 1000,
        in_chans: int = 3,
        stem_width: int = 64,
    ) -> None:
        super().__init__()
        dim = sizes.embed_dim
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = self.embed_dim = dim
        self.pool_after = frozenset(shape.pools(sizes.depth))
        pixels = sizes.patch_size if shape.stem == "plain" else sizes.patch_size // 2
        self.feature_info: list[dict[str, Any]] = [
            {
                "module": f"blocks.{block}",
                "num_chs": dim,
                "reduction": pixels << sum(pool < block for pool in self.pool_after),
            }
            for block in range(sizes.depth)
        ]
        self.stem: nn.Module
        if shape.stem == "plain":
            self.stem = PlainStem(sizes, in_chans, shape.start)
        else:
            self.stem = ResStem(sizes, stem_width, in_chans, shape.start)
        if blocks is None:
            rate = sizes.dropout if shape.dropout is None else shape.dropout
            blocks = [
                BLOCKS[shape.norm](
                    dim, GeneralizedConv(dim, sizes.num_heads), Mlp(dim, sizes.hidden, rate, shape.start)
                )
                for _ in range(sizes.depth)
            ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.BatchNorm2d(dim)
        self.reset_classifier(num_classes)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        blocks = r"^blocks\.(\d+)" if coarse else [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": r"^stem", "blocks": blocks}

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool not in (None, "avg"):
            raise UserError(f"an agent averages its last map; global_pool must be 'avg', got {global_pool!r}")
        self.num_classes, like = num_classes, self.norm.weight
        linear = (
            nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype) if num_classes else None
        )
        self.head: nn.Module = linear or nn.Identity()

    def maps(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return every block's output before its pool, [B, D, H, W] each, and the last one behind its pool."""
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        maps = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            maps.append(x)
            if number in self.pool_after:
                x = F.avg_pool2d(x, 2)
        return maps, x

    def forward_features(self, images: Tensor) -> Tensor:
        """The last map, normalized, [B, D, H, W]."""
        return F.gelu(self.norm(self.maps(images)[1]))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return logits from the last map, or the features below the head."""
        x = x.mean((2, 3))
        return x if pre_logits else self.head(x)

    def forward_with_features(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return logits [B, C] and every block's output before its pool, [B, D, H, W] each, channels-last."""
        maps, last = self.maps(images)
        return self.forward_head(F.gelu(self.norm(last))), maps

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


OFFICIAL = (
    (r"^input_proj\.", "stem."),
    (r"^layers\.", "blocks."),
    (r"\.cnn_block\.conv\.", ".conv."),
    (r"\.cnn_block\.", ".conv."),
    (r"\.mlp_block\.conv(\d)\.", r".mlp.fc\1."),
    (r"^bn\.", "norm."),
    (r"^linear\.", "head."),
)
"""Names in github.com/zhfeing/Bootstrapping-ViTs-pytorch -> ours."""


def checkpoint_filter_fn(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return a checkpoint's weights, the authors' or ours, as the model names and shapes them.

    From a checkpoint of ViT and agent, the agent is taken.
    """
    agent = {name.removeprefix("models.cnn."): x for name, x in state.items() if name.startswith("models.cnn.")}
    return by_own_names(agent or state)


def by_own_names(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return arrays of the authors' agent, such as weights or gradients, as `AgentCNN` names and shapes them."""
    ours = {}
    for name, x in arrays.items():
        if re.search(r"mlp_block\.conv\d\.weight", name):
            x = x[:, :, 0, 0]  # a 1x1 convolution
        elif name.endswith("cnn_block.conv.weight"):
            x = x.flatten(2)  # kernel positions row by row
        for theirs, own in OFFICIAL:
            name = re.sub(theirs, own, name)
        ours[name] = x
    return ours
