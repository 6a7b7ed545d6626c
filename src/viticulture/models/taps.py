# SPDX-License-Identifier: Apache-2.0
"""A read-only view of a student's inside; the only file that knows how timm's ViTs are laid out.

    taps = Taps(student, needs=frozenset({"blocks", "attention"}))
    seen = taps(images)                         # one ordinary forward pass, same bits as student(images)
    seen.blocks[-1]                             # [B, T, D]
    seen.attention[-1].class_scores()           # [B, h, P], computed when asked for

The student is not changed: hooks are there during the call alone and copy nothing. Students of another layout join by
following timm's habits: a `feature_info` that names their blocks, `num_prefix_tokens`, and in each block an attention
module with `qkv`, `num_heads` and `scale`. An attention of ours whose scores are scale * q k^T and nothing more says
so with an attribute `plain_scores = True`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import UserError, unknown
from .students import token_logits

READINGS = ("blocks", "attention")


@dataclass(frozen=True)
class Layout:
    """Facts about a student.

    Args:
        blocks: module names of its blocks, or of a CNN's stages, first to last.
        attention: module names of its attention layers, first to last; empty in a CNN.
        heads: heads of each attention layer.
        prefix: how many tokens come before the patches: class, distillation and register tokens.
        patch: pixels between neighbouring tokens of the first block.
    """

    blocks: tuple[str, ...]
    attention: tuple[str, ...]
    heads: tuple[int, ...]
    prefix: int
    patch: int

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patch tokens in the first block, for an image of so many pixels."""
        return math.ceil(image_size[0] / self.patch), math.ceil(image_size[1] / self.patch)


def layout(student: nn.Module) -> Layout:
    """Read the facts off a student that follows timm's habits.

    Raises: UserError for a network without `feature_info`.
    """
    info = getattr(student, "feature_info", None)
    stages = getattr(info, "info", info)  # a list, or timm's object around it
    if not stages:
        raise UserError(
            f"{type(student).__name__} does not name its blocks (timm's feature_info), so nothing can be tapped"
        )
    attention = {name: module for name, module in student.named_modules() if _scores_are_plain(module)}
    return Layout(
        blocks=tuple(stage["module"] for stage in stages),
        attention=tuple(attention),
        heads=tuple(module.num_heads for module in attention.values()),
        prefix=getattr(student, "num_prefix_tokens", 0),
        patch=_pixels(stages[0]["reduction"]),
    )


def _scores_are_plain(module: Any) -> bool:
    return type(module) is Attention or getattr(module, "plain_scores", False) is True


def _pixels(reduction: int | tuple[int, int]) -> int:
    if isinstance(reduction, int):
        return reduction
    if reduction[0] != reduction[1]:
        raise UserError(f"taps need square patches, got {reduction[0]}x{reduction[1]} pixels")
    return reduction[0]


@dataclass(frozen=True)
class AttentionReading:
    """Queries and keys of one attention layer in one forward pass; nothing is computed before it is asked for.

    Args:
        qkv: output of the layer's projection, [B, T, 3 h d]; not a copy.
        layer: the attention module.
        prefix: tokens before the patches.
        patches: P, how many patch tokens follow them; what comes after is no patch.
    """

    qkv: Tensor
    layer: Any
    prefix: int
    patches: int

    def _part(self, which: int) -> Tensor:
        """Queries (0) or keys (1), [B, h, T, d], before any normalisation of theirs."""
        return torch.unflatten(self.qkv, -1, (3, self.layer.num_heads, -1))[:, :, which].transpose(1, 2)

    def queries(self) -> Tensor:
        """[B, h, T, d], normalised where the layer normalises them."""
        return _normalised(self.layer, "q_norm", self._part(0))

    def keys(self) -> Tensor:
        """[B, h, T, d], normalised where the layer normalises them."""
        return _normalised(self.layer, "k_norm", self._part(1))

    def scores(self) -> Tensor:
        """q k^T / sqrt(d) before the softmax, [B, h, T, T], row: query."""
        return self.layer.scale * self.queries() @ self.keys().transpose(-2, -1)

    def class_scores(self) -> Tensor:
        """The class token's row of `scores` over the patches alone, [B, h, P]; costs T times less than all of them.

        Its softmax is attention among patches: it sums to 1 and leaves out what the class token pays prefix tokens.
        """
        query = _normalised(self.layer, "q_norm", self._part(0)[:, :, :1])  # [B, h, 1, d]
        keys = self._part(1)[:, :, self.prefix : self.prefix + self.patches]  # [B, h, P, d]
        return (self.layer.scale * query @ _normalised(self.layer, "k_norm", keys).transpose(-2, -1)).squeeze(2)


def _normalised(layer: Any, name: str, heads: Tensor) -> Tensor:
    norm: Callable[[Tensor], Tensor] | None = getattr(layer, name, None)
    return heads if norm is None else norm(heads)


@dataclass
class Seen:
    """What one forward pass showed.

    Args:
        logits: one [B, C] per token head, class token first; of another pass than the student's own, what it returned.
        blocks: output of every block in order, [B, T, D] with prefix tokens first (or [B, D, H, W]), if tapped.
        attention: one reading a layer in order, if tapped.
    """

    logits: tuple[Tensor, ...]
    blocks: list[Tensor] = field(default_factory=list)
    attention: list[AttentionReading] = field(default_factory=list)


class Taps:
    """Runs a student once and shows what guides asked for.

    It is no module: it owns no weights and appears in no state dict. Logits are bit for bit those of `student(images)`,
    gradients flow through every reading.

    Args:
        student: any timm classifier; attention needs a ViT of timm's layout.
        needs: which readings to take, of "blocks" and "attention"; none costs nothing.
        run: another pass over the student's layers, of images and whatever else a call hands on; None: the student's.

    Raises: UserError if a reading does not exist or the student cannot give it.
    """

    def __init__(
        self, student: nn.Module, needs: frozenset[str] = frozenset(), run: Callable[..., Any] | None = None
    ) -> None:
        for name in needs - set(READINGS):
            raise unknown("tap", name, READINGS)
        self.student, self.needs, self.run = student, needs, run
        self.layout = layout(student) if needs else None
        if self.layout and "attention" in needs and not self.layout.attention:
            raise UserError(f"this guide reads attention, which {type(student).__name__} lacks or lays out differently")
        self._blocks: list[Tensor] = []
        self._qkv: list[Tensor] = []
        self._forward: Callable[..., Any] = self._collect

    def compile(self, **options: Any) -> None:
        """Compile the student in place, and the pass with open taps likewise. Options are `torch.compile`'s.

        After a bare `student.compile()` the taps give the same readings from an uncompiled pass.
        """
        if self.run is None:
            self.student.compile(**options)
        elif not self.needs:
            self.run = torch.compile(self.run, **options)
        if self.needs:
            self._forward = torch.compile(self._collect, **options)

    def __call__(self, images: Tensor, *more: Tensor) -> Seen:
        """Readings of one forward pass, [B, 3, H, W] and what `run` takes besides -> `Seen`."""
        if self.layout is None:
            return Seen(token_logits((self.run or self.student)(images, *more)))
        handles = self._open(self.layout)
        try:
            output, blocks, qkv = self._forward(images, *more)
        finally:
            for handle in handles:
                handle.remove()
        return Seen(token_logits(output), blocks, self._readings(self.layout, qkv, images))

    def _collect(self, images: Tensor, *more: Tensor) -> tuple[Any, list[Tensor], list[Tensor]]:
        """One pass with open hooks; the lists that these fill are emptied, so that no tensor outlives its step."""
        self._blocks.clear()
        self._qkv.clear()
        output = (self.run or self.student.forward)(images, *more)
        blocks, qkv = list(self._blocks), list(self._qkv)
        self._blocks.clear()
        self._qkv.clear()
        return output, blocks, qkv

    def _open(self, where: Layout) -> list[RemovableHandle]:
        handles = []
        if "blocks" in self.needs:
            handles += [_hook(self.student.get_submodule(name), self._blocks) for name in where.blocks]
        if "attention" in self.needs:
            handles += [_hook(self.student.get_submodule(f"{name}.qkv"), self._qkv) for name in where.attention]
        return handles

    def _readings(self, where: Layout, qkv: list[Tensor], images: Tensor) -> list[AttentionReading]:
        rows, columns = where.grid((images.shape[-2], images.shape[-1]))
        layers = [self.student.get_submodule(name) for name in where.attention] if qkv else []
        return [
            AttentionReading(tensor, layer, where.prefix, min(rows * columns, tensor.shape[1] - where.prefix))
            for tensor, layer in zip(qkv, layers, strict=True)
        ]


def _hook(module: nn.Module, found: list[Tensor]) -> RemovableHandle:
    return module.register_forward_hook(lambda _module, _inputs, output: found.append(output))
