# SPDX-License-Identifier: Apache-2.0
"""An agent CNN made of the ViT's own weights: what the ViT learns, the agent has learnt, and the reverse.

Paper [1]: Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552, Sec. 3.2.2, "Weight Sharing". Stem, norms and head are the agent's own.

    CONV  Y = sum_h Phi_h X W^V_h W^O_h + b^O                       Eq. (4); W^V and W^O of the ViT's attention
    MLP   the ViT's, pixel by pixel

Queries, keys and the value bias are not used, as in the authors' code. W^V_h W^O_h has the rank of one head, so CONV is
computed without its kernel: project to values, move every head's share to its neighbor, project back. That takes
2 D^2 products a pixel in place of h D^2, and the result is the same.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.mlp import Mlp as ViTMlp
from timm.models.vision_transformer import Block as ViTBlock
from torch import Tensor, nn

from ...errors import UserError
from ..data_spec import DataSpec
from ..vit.attention import is_plain
from ..vit.dropout import Dropout
from .agent_cnn import BLOCKS, AgentCNN, AgentShape
from .borrowed import Borrowed, Loan
from .for_student import check_maps, rate_of, sizes_of
from .generalized_conv import kernel, square


class SharedConv(Borrowed):
    """CONV with the weights of a ViT's attention, Eq. (4). Shape: [B, D, H, W] -> [B, D, H, W].

    Args:
        attn: a timm attention layer.
    """

    moves: Tensor

    def __init__(self, attn: nn.Module) -> None:
        known: Any = attn
        heads, width, like = known.num_heads, known.proj.in_features, known.proj.weight
        loans = {"values": Loan(known.qkv, "weight", first=2 * width), "weight": Loan(known.proj, "weight")}
        if known.proj.bias is not None:
            loans["bias"] = Loan(known.proj, "bias")
        super().__init__(loans)
        self.padding = square(heads)[0]
        phi = kernel(torch.eye(heads, device=like.device, dtype=like.dtype).unsqueeze(1), square(heads))
        self.register_buffer("moves", phi.repeat_interleave(width // heads, 0))

    def forward(self, x: Tensor) -> Tensor:
        values = F.linear(x.permute(0, 2, 3, 1), self.get_parameter("values")).permute(0, 3, 1, 2)
        moved = F.conv2d(values, self.moves, padding=self.padding, groups=len(self.moves))  # Phi_h X W^V_h
        bias = self.get_parameter("bias") if "bias" in self.loans else None
        return F.linear(moved.permute(0, 2, 3, 1), self.get_parameter("weight"), bias).permute(0, 3, 1, 2)


class SharedMlp(Borrowed):
    """A ViT's MLP on every pixel. Shape: [B, D, H, W] -> [B, D, H, W].

    Args:
        mlp: timm's MLP with a GELU.
        dropout: share of the units inside that is dropped.
    """

    def __init__(self, mlp: nn.Module, dropout: float) -> None:
        loans = {}
        for layer in ("fc1", "fc2"):
            linear = mlp.get_submodule(layer)
            loans[f"{layer}_weight"] = Loan(linear, "weight")
            if linear.bias is not None:
                loans[f"{layer}_bias"] = Loan(linear, "bias")
        super().__init__(loans)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self._linear("fc1", x.permute(0, 2, 3, 1)))  # [B, H, W, hidden]
        return self._linear("fc2", self.drop(y)).permute(0, 3, 1, 2)

    def _linear(self, layer: str, x: Tensor) -> Tensor:
        bias = self.get_parameter(f"{layer}_bias") if f"{layer}_bias" in self.loans else None
        return F.linear(x, self.get_parameter(f"{layer}_weight"), bias)


class SharedAgent(AgentCNN):
    """The agent whose blocks are a plain ViT's own. Make it after the student; move the student first.

    One backward pass leaves the student's gradient and the agent's apart, until `gradients` brings them together.
    """

    def gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(student's, agent's) gradient of every weight that both use, to be changed in place.

        Weights that the agent's losses have not reached are left out.
        """
        for name, parameter in self._borrowed():
            if parameter.grad is not None:
                yield name.gradient(), parameter.grad

    def forget_gradients(self) -> None:
        """Clear the agent's gradients of shared weights, which no optimizer does."""
        for _, parameter in self._borrowed():
            parameter.grad = None

    def _borrowed(self) -> Iterator[tuple[Loan, nn.Parameter]]:
        for layer in self.modules():
            if isinstance(layer, Borrowed):
                yield from ((loan, layer.get_parameter(name)) for name, loan in layer.loans.items())


def shared_agent_for(student: nn.Module, data_spec: DataSpec, shape: AgentShape = AgentShape()) -> SharedAgent:
    """An agent made of a plain ViT's weights ("shared" training).

    Dropout acts inside the MLP and on both branches of a block, with the student's rates if the shape names none.

    Args:
        student: timm's `VisionTransformer` or DeiT of any size, ours included.
        data_spec: classes and image size of the student.
        shape: what is the agent's own.

    Raises: UserError for a student whose layers do more than the agent can repeat, naming what, or where the maps do
        not fit the student's grid.
    """
    sizes = sizes_of(student)
    blocks = []
    for block in student.blocks:  # type: ignore[union-attr]
        _check_block(block, student)
        inside, branches = (
            (rate_of(block.mlp.drop1), rate_of(block.attn.proj_drop)) if shape.dropout is None else [shape.dropout] * 2
        )
        conv, mlp = SharedConv(block.attn), SharedMlp(block.mlp, inside)
        blocks.append(BLOCKS[shape.norm](sizes.embed_dim, conv, mlp, branches))
    agent = SharedAgent(sizes, shape, blocks, len(data_spec.classes), in_chans=data_spec.channels)
    check_maps(agent, sizes, data_spec)
    return agent


def _check_block(block: nn.Module, student: nn.Module) -> None:
    """Raise a UserError unless MSA and MLP are the plain ones, with nothing between the weights and the branch."""
    attn, mlp = getattr(block, "attn", None), getattr(block, "mlp", None)
    reasons = {
        f"its blocks are {type(block).__name__}": isinstance(block, ViTBlock),
        f"its attention is {type(attn).__name__}": is_plain(attn),
        f"its MLP is {type(mlp).__name__}": type(mlp) is ViTMlp,
        "its attention has a gate": getattr(attn, "gate", None) is None,
        "its attention normalizes what it mixed": isinstance(getattr(attn, "norm", None), nn.Identity),
        "its MLP has a norm": isinstance(getattr(mlp, "norm", None), nn.Identity),
        f"its MLP has {type(getattr(mlp, 'act', None)).__name__}, no GELU": isinstance(
            getattr(mlp, "act", None), nn.GELU
        ),
        "it has LayerScale": all(isinstance(getattr(block, name, None), nn.Identity) for name in ("ls1", "ls2")),
    }
    for reason, fine in reasons.items():
        if not fine:
            raise UserError(
                f"an agent cannot be made of the weights of {type(student).__name__}: {reason}; "
                "give the agent weights of its own, or take a plain ViT such as vit_small"
            )
