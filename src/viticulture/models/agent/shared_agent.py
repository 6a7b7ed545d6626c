# SPDX-License-Identifier: Apache-2.0
"""An agent CNN on the ViT's weights: whatever one of the two is trained on changes the other.

Paper [1]: Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552, Sec. 3.2.2, "Weight Sharing". Stem, norms and head are not shared.

    CONV  Y = sum_h Phi_h X W^V_h W^O_h + b^O                       Eq. (4); W^V and W^O of the ViT's attention
    MLP   the ViT's, pixel by pixel

Queries, keys and the value bias are not used, as in the authors' code. W^V_h W^O_h has the rank of one head, so CONV is
computed without its kernel: project to values, shift every head's share to its neighbor, project back. That takes
2 D^2 products a pixel in place of h D^2, and the result is the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from timm.layers.mlp import Mlp as ViTMlp
from timm.models.vision_transformer import Block as ViTBlock
from torch import Tensor, nn

from ...errors import UserError
from ..cpu.dropout import Dropout
from ..data_spec import DataSpec
from ..vit.attention import is_plain
from .agent_cnn import BLOCKS, AgentCNN, AgentShape
from .build import check_maps, rate_of, sizes_of
from .generalized_conv import kernel, square


@dataclass(frozen=True)
class SharedParameter:
    """A parameter of another module, or its last rows."""

    owner: nn.Module  # the module
    name: str  # of the parameter in it
    first: int = 0  # number of the first shared row

    def parameter(self) -> nn.Parameter:
        return getattr(self.owner, self.name)

    def tensor(self) -> Tensor:
        """The shared rows, on the owner's storage."""
        return self.parameter().detach()[self.first :]

    def gradient(self) -> Tensor:
        """The same rows of the owner's gradient, to be changed in place; zeros where there is none yet."""
        parameter = self.parameter()
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad[self.first :]


class SharedLayer(nn.Module):
    """A layer whose parameters lie on another module's storage, with separate gradients. They follow the owner's to any
    device, if the owner moves first. They are in no state dict and no optimizer: the owner's are saved and stepped.
    `shared`: the parameters, by their name in this layer.
    """

    def __init__(self, shared: dict[str, SharedParameter]) -> None:
        super().__init__()
        self.shared = shared
        self.tie()

    def tie(self) -> None:
        """Point to the owner's current storage; gradients are dropped."""
        for name, source in self.shared.items():
            self.register_parameter(name, nn.Parameter(source.tensor(), source.parameter().requires_grad))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        parameters, self._parameters = self._parameters, {}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._parameters = parameters
        self.tie()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:  # a copy shares with the copied owner
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.tie()

    def _save_to_state_dict(self, *_: Any) -> None: ...

    def _load_from_state_dict(self, *_: Any) -> None: ...


class SharedConv(SharedLayer):
    """CONV with the weights of a timm attention layer, Eq. (4). Shape: [B, D, H, W] -> [B, D, H, W]."""

    moves: Tensor

    def __init__(self, attn: nn.Module) -> None:
        layer: Any = attn
        heads, width, like = layer.num_heads, layer.proj.in_features, layer.proj.weight
        shared = {
            "values": SharedParameter(layer.qkv, "weight", first=2 * width),
            "weight": SharedParameter(layer.proj, "weight"),
        }
        if layer.proj.bias is not None:
            shared["bias"] = SharedParameter(layer.proj, "bias")
        super().__init__(shared)
        self.padding = square(heads)[0]
        phi = kernel(torch.eye(heads, device=like.device, dtype=like.dtype).unsqueeze(1), square(heads))
        self.register_buffer("moves", phi.repeat_interleave(width // heads, 0))  # shifts each head's channels

    def forward(self, x: Tensor) -> Tensor:
        values = F.linear(x.permute(0, 2, 3, 1), self.get_parameter("values")).permute(0, 3, 1, 2)
        shifted = F.conv2d(values, self.moves, padding=self.padding, groups=len(self.moves))  # Phi_h X W^V_h
        bias = self.get_parameter("bias") if "bias" in self.shared else None
        return F.linear(shifted.permute(0, 2, 3, 1), self.get_parameter("weight"), bias).permute(0, 3, 1, 2)


class SharedMlp(SharedLayer):
    """A ViT's MLP on every pixel. Shape: [B, D, H, W] -> [B, D, H, W]. `mlp`: timm's MLP with a GELU. `dropout`: of its
    hidden units.
    """

    def __init__(self, mlp: nn.Module, dropout: float) -> None:
        shared = {}
        for layer in ("fc1", "fc2"):
            linear = mlp.get_submodule(layer)
            shared[f"{layer}_weight"] = SharedParameter(linear, "weight")
            if linear.bias is not None:
                shared[f"{layer}_bias"] = SharedParameter(linear, "bias")
        super().__init__(shared)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self._linear("fc1", x.permute(0, 2, 3, 1)))  # [B, H, W, hidden]
        return self._linear("fc2", self.drop(y)).permute(0, 3, 1, 2)

    def _linear(self, layer: str, x: Tensor) -> Tensor:
        bias = self.get_parameter(f"{layer}_bias") if f"{layer}_bias" in self.shared else None
        return F.linear(x, self.get_parameter(f"{layer}_weight"), bias)


class SharedAgent(AgentCNN):
    """The agent whose blocks share a plain ViT's weights. Build it after the student; move the student first.

    One backward pass computes the student's gradient and the agent's separately; `gradients` gives access to both.
    """

    def gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (student's, agent's) gradient of every shared weight, to be changed in place.

        Weights that the agent's losses have not reached are left out.
        """
        for source, parameter in self._shared():
            if parameter.grad is not None:
                yield source.gradient(), parameter.grad

    def forget_gradients(self) -> None:
        """Clear the agent's gradients of shared weights, which no optimizer does."""
        for _, parameter in self._shared():
            parameter.grad = None

    def _shared(self) -> Iterator[tuple[SharedParameter, nn.Parameter]]:
        for layer in self.modules():
            if isinstance(layer, SharedLayer):
                yield from ((source, layer.get_parameter(name)) for name, source in layer.shared.items())


def shared_agent_for(student: nn.Module, data_spec: DataSpec, shape: AgentShape = AgentShape()) -> SharedAgent:
    """Build an agent on a plain ViT's weights ("shared" training).

    Dropout acts inside the MLP and on both branches of a block, with the student's rates if the shape sets none.

    Args:
        student: timm's `VisionTransformer` or DeiT of any size, ours included.

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
    """Raises: UserError unless MSA and MLP are plain, with nothing between the weights and the branch."""
    attn, mlp = getattr(block, "attn", None), getattr(block, "mlp", None)
    act = getattr(mlp, "act", None)
    reasons = {
        f"its blocks are {type(block).__name__}": isinstance(block, ViTBlock),
        f"its attention is {type(attn).__name__}": is_plain(attn),
        f"its MLP is {type(mlp).__name__}": type(mlp) is ViTMlp,
        "its attention has a gate": getattr(attn, "gate", None) is None,
        "its attention normalizes its output": isinstance(getattr(attn, "norm", None), nn.Identity),
        "its MLP has a norm": isinstance(getattr(mlp, "norm", None), nn.Identity),
        f"its MLP has {type(act).__name__}, no GELU": isinstance(act, nn.GELU),
        "it has LayerScale": all(isinstance(getattr(block, name, None), nn.Identity) for name in ("ls1", "ls2")),
    }
    for reason, fine in reasons.items():
        if not fine:
            raise UserError(
                f"an agent cannot share the weights of {type(student).__name__}: {reason}; "
                "give the agent separate weights, or take a plain ViT such as vit_small"
            )
