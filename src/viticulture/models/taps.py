# SPDX-License-Identifier: Apache-2.0
"""Read a student's blocks and attention during its forward pass.

    taps = Taps(student, needs=frozenset({"blocks", "attention"}))
    readings = taps(images)                     # one ordinary forward pass, same bits as student(images)
    readings.blocks[-1]                         # [B, T, D]
    readings.attention[-1].class_maps()         # [B, h, rows, columns], computed in this call

The student is not changed: hooks exist during the call alone and copy nothing. What other students need is in
layout.py. The scores of a bottleneck transformer's attention (timm's BottleneckAttn) include its relative positions.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.bottleneck_attn import BottleneckAttn
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import UserError, unknown
from .compiled_blocks import compile_blocks
from .heads import token_logits
from .layout import Layout, layout
from .vit.patches import PatchGrid

READINGS = ("blocks", "attention", "class_attention", "norms", "features")


def first_norms(student: nn.Module, blocks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the module names of the norms of each block's input, `norm1` in timm's ViTs.

    Raises: UserError unless every block has one and the student a last norm.
    """
    modules = dict(student.named_modules())
    names = tuple(f"{block}.norm1" for block in blocks)
    if not {*names, "norm"} <= modules.keys():
        raise UserError(
            f"{type(student).__name__} has no norm before each block to read; set `blocks` to read its blocks' outputs"
        )
    return names


def last_norm(student: nn.Module, x: Tensor) -> Tensor:
    """Apply the norms after the last block to its output [B, T, D]."""
    for name in ("norm", "fc_norm"):
        x = getattr(student, name, nn.Identity())(x)
    return x


@dataclass(frozen=True)
class AttentionReading:
    """Queries and keys of one attention layer in one forward pass; nothing is computed before a method is called."""

    qkv: Tensor  # output of the layer's projection, [B, T, 3 h d]; not a copy
    layer: Any  # the attention module
    prefix: int  # tokens before the patches
    patches: int  # P, number of patch tokens after them; further tokens are no patches
    grid: PatchGrid  # rows and columns of all patches of the image
    class_token: bool  # whether the first token is the class token

    def _part(self, which: int) -> Tensor:
        """Return queries (0) or keys (1), [B, h, T, d], before their normalization."""
        return torch.unflatten(self.qkv, -1, (3, self.layer.num_heads, -1))[:, :, which].transpose(1, 2)

    def queries(self) -> Tensor:
        """Return queries, [B, h, T, d], normalized where the layer does so."""
        return _normalized(self.layer, "q_norm", self._part(0))

    def keys(self) -> Tensor:
        """Return keys, [B, h, T, d], normalized where the layer does so."""
        return _normalized(self.layer, "k_norm", self._part(1))

    def scores(self) -> Tensor:
        """Return q k^T / sqrt(d) before the softmax, [B, h, T, T], row: query; with a layer's relative positions."""
        queries = self.queries()
        scores = self.layer.scale * queries @ self.keys().transpose(-2, -1)
        if isinstance(self.layer, BottleneckAttn):
            scores = scores + self.layer.pos_embed(queries.flatten(0, 1)).view_as(scores)
        return scores

    def class_scores(self) -> Tensor:
        """Return the class token's row of `scores` over the patches alone, [B, h, P]; its cost is linear in P.

        Its softmax is attention among patches: it sums to 1 without prefix tokens. The heads' queries lie on a block
        diagonal, so that keys are read in place: nothing of their size is copied or stored for the backward pass.

        Raises: UserError for a student without class token.
        """
        if not self.class_token:
            raise UserError("the student has no class token, whose attention is to be read")
        heads = self.layer.num_heads
        parts = torch.unflatten(self.qkv, -1, (3, heads, -1))  # [B, T, 3, h, d]
        query = _normalized(self.layer, "q_norm", parts[:, 0, 0])  # [B, h, d]
        keys = _normalized(self.layer, "k_norm", parts[:, self.prefix : self.prefix + self.patches, 1])  # [B, P, h, d]
        diagonal = torch.eye(heads, dtype=query.dtype, device=query.device).unsqueeze(-1)  # [h, h, 1]
        spread = (self.layer.scale * query.unsqueeze(1) * diagonal).flatten(2)  # [B, h, h d], zero in other heads
        return spread @ keys.flatten(2).transpose(1, 2)

    def class_maps(self) -> Tensor:
        """Return the class token's attention among the patches, softmax of `class_scores`, [B, h, rows, columns]."""
        return torch.unflatten(self.class_scores().softmax(-1), -1, self.grid)


Reader = Callable[[Tensor], AttentionReading]


def _normalized(layer: Any, name: str, heads: Tensor) -> Tensor:
    norm: Callable[[Tensor], Tensor] | None = getattr(layer, name, None)
    return heads if norm is None else norm(heads)


@dataclass
class Readings:
    """Results of one forward pass.

    Args:
        output: what the pass returned: of the student's pass logits [B, C], several of a student with several heads; of
            another pass its result, such as tokens [B, T, D].
        blocks: output of every block in order, [B, T, D] with prefix tokens first (or [B, D, H, W]), if tapped.
        attention: one reading per layer in order, if tapped.
        class_attention: the class token's attention in every layer, [B, h, rows, columns], if tapped. It is computed
            within the layer, so that the backward pass holds one layer's gradient at a time.
        norms: output of each block's first norm, then the last norm applied to the last block's output, if tapped.
        features: what the first classifier reads, the pooled features, [B, D], if tapped.
        as_map: from a block's output to its patches as a map, if blocks are tapped.
    """

    output: Any
    blocks: list[Tensor] = field(default_factory=list)
    attention: list[AttentionReading] = field(default_factory=list)
    class_attention: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    as_map: Callable[[Tensor], Tensor] | None = None

    @property
    def maps(self) -> list[Tensor]:
        """The patches of every block as a map, [B, D, rows, columns], of a pass over whole images."""
        assert self.as_map is not None, "blocks are tapped"
        return [self.as_map(block) for block in self.blocks]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The student's logits, one [B, C] per token head, class token first."""
        return token_logits(self.output)


class Taps:
    """Run a student and return the readings that guides need.

    It is no module: it has no weights and is in no state dict. Outputs are bit for bit those of
    `student(images)`, gradients flow through every reading.

    Args:
        student: any timm classifier; attention needs a ViT of timm's layout.
        needs: readings to take, of `READINGS`; none costs nothing.
        forward: another pass over the student's layers, of images and further arguments; None: the student's.

    Raises: UserError if a reading does not exist or the student cannot give it.
    """

    def __init__(
        self, student: nn.Module, needs: frozenset[str] = frozenset(), forward: Callable[..., Any] | None = None
    ) -> None:
        for name in needs - set(READINGS):
            raise unknown("tap", name, READINGS)
        self.student, self.needs, self.forward = student, needs, forward
        self.layout = layout(student) if needs - {"features"} else None
        self._classifier = _classifier(student) if "features" in needs else None
        if self.layout and needs & {"attention", "class_attention"} and not self.layout.attention:
            raise UserError(f"it reads attention, which {type(student).__name__} lacks or computes differently")
        self._norms = first_norms(student, self.layout.blocks) if self.layout and "norms" in needs else ()
        self._found: dict[str, list[Tensor]] = {name: [] for name in READINGS}
        self._collected: Callable[..., Any] = self._collect
        self.compiled = False

    def compile(self, by_block: bool = False, **options: Any) -> None:
        """Compile the student in place, and the pass with open taps as well. Options are `torch.compile`'s.

        After `student.compile()` alone the taps return the same readings from an uncompiled pass.

        Args:
            by_block: compile one block for all; the whole pass nevertheless where blocks differ or are read inside.
        """
        self.compiled = True
        if by_block and self.needs <= {"blocks", "features"} and compile_blocks(self.student, **options):
            return
        if self.forward is None:
            self.student.compile(**options)
        elif not self.needs:
            self.forward = torch.compile(self.forward, **options)
        if self.needs:
            self._collected = torch.compile(self._collect, **options)

    def output(self, images: Tensor, *more: Tensor) -> Any:
        """Run the pass without readings."""
        return (self.forward or self.student)(images, *more)

    def __call__(self, images: Tensor, *more: Tensor) -> Readings:
        """Run the pass on images [B, channels, H, W] and further arguments of `forward`."""
        if not self.needs:
            return Readings(self.output(images, *more))
        size = images.shape[-2], images.shape[-1]
        readers = self._readers(self.layout, size) if self.layout else []
        handles = self._open(self.layout, readers) if self.layout else []
        if self._classifier is not None:
            found = self._found["features"]
            handles.append(self._classifier.register_forward_pre_hook(lambda _, inputs: found.append(_pooled(*inputs))))
        try:
            output, blocks, qkv, attended, norms, pooled = self._collected(images, *more)
        finally:
            for handle in handles:
                handle.remove()
        attention = [reader(tensor) for reader, tensor in zip(readers, qkv, strict=True)] if qkv else []
        as_map = partial(self.layout.as_map, image_size=size) if self.layout else None
        return Readings(output, blocks, attention, attended, norms, pooled, as_map)

    def _collect(self, images: Tensor, *more: Tensor) -> tuple[Any, *tuple[list[Tensor], ...]]:
        """Run one pass with open hooks; their lists are emptied, so that no tensor outlives its step."""
        for of_kind in self._found.values():
            of_kind.clear()
        output = (self.forward or self.student.forward)(images, *more)
        readings = [list(of_kind) for of_kind in self._found.values()]
        for of_kind in self._found.values():
            of_kind.clear()
        return output, *readings

    def _open(self, where: Layout, readers: list[Reader]) -> list[RemovableHandle]:
        handles = []
        if "blocks" in self.needs:
            readings = self._found["blocks"]
            handles += [_hook(self.student.get_submodule(name), readings, _tensor) for name in where.blocks]
        projections = [self.student.get_submodule(f"{name}.qkv") for name in where.attention] if readers else []
        if "attention" in self.needs:
            handles += [_hook(module, self._found["attention"], _tensor) for module in projections]
        if "class_attention" in self.needs:
            readings = self._found["class_attention"]
            takes = [lambda qkv, reader=reader: reader(qkv).class_maps() for reader in readers]
            handles += [_hook(module, readings, take) for module, take in zip(projections, takes, strict=True)]
        if "norms" in self.needs:
            readings = self._found["norms"]
            handles += [_hook(self.student.get_submodule(name), readings, _tensor) for name in self._norms]
            last = self.student.get_submodule(where.blocks[-1])
            handles.append(_hook(last, readings, lambda x: last_norm(self.student, _tensor(x))))
        return handles

    def _readers(self, where: Layout, image_size: tuple[int, int]) -> list[Reader]:
        """Return for every attention layer the function from its projection to a reading; [] if none is read."""
        if not self.needs & {"attention", "class_attention"}:
            return []
        return [
            partial(_reading, self.student.get_submodule(name), where, grid)
            for name, grid in zip(where.attention, where.grids(image_size), strict=True)
        ]


def _reading(layer: nn.Module, where: Layout, grid: PatchGrid, qkv: Tensor) -> AttentionReading:
    if qkv.ndim == 4:  # of maps, [B, 3 h d, H, W]
        qkv = qkv.flatten(2).mT
    patches = min(math.prod(grid), qkv.shape[1] - where.prefix)
    return AttentionReading(qkv, layer, where.prefix, patches, grid, where.class_token)


def _hook(module: nn.Module, readings: list[Tensor], take: Callable[[Any], Tensor]) -> RemovableHandle:
    """Append `take` of a module's output to a list."""
    return module.register_forward_hook(lambda _module, _inputs, output: readings.append(take(output)))


def _tensor(output: Any) -> Tensor:
    """Return a module's output; of a PiT's stage the map, without the class token."""
    tensor: Tensor = output if isinstance(output, Tensor) else output[0]
    return tensor


def _classifier(student: nn.Module) -> nn.Module:
    """Return the first layer that computes scores, an identity where there are no classes."""
    classifier = getattr(student, "get_classifier", lambda: None)()
    first = classifier[0] if isinstance(classifier, tuple) else classifier
    if not isinstance(first, nn.Module):
        raise UserError(f"{type(student).__name__} does not name its classifier (get_classifier), whose input is read")
    return first


def _pooled(features: Tensor) -> Tensor:
    """[B, D] or [B, D, 1, 1] -> [B, D]."""
    if features.ndim != 2 and features.shape[2:] != (1, 1):
        raise UserError(
            f"its classifier reads {list(features.shape[1:])} numbers an image, which are no pooled features"
        )
    return features.flatten(1)


def feature_width(student: nn.Module, image_size: tuple[int, int], channels: int) -> int:
    """Return the length of the pooled features that a student's classifier reads, or returns where it has none."""
    copied = copy.deepcopy(student).to("meta").eval()
    with torch.no_grad():
        images = torch.zeros(1, channels, *image_size, device="meta")
        return Taps(copied, frozenset({"features"}))(images).features[0].shape[1]


def relations(maps: Tensor) -> Tensor:
    """Return the cosines between all pairs of P patches, x x^T of rows x of length 1: [B, D, rows, columns] ->
    [B, P, P] float32."""
    x = F.normalize(maps.float().flatten(2).mT, dim=-1)  # [B, P, D]
    return x @ x.mT


def features(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return a timm classifier's features before its head for images [B, channels, H, W], [B, D] each, by name.

        class   the class token after the last norm
        mean    the mean of the patch tokens after the last norm; without tokens, the classifier's input

    A norm after the pooling (`fc_norm`) is applied there. The network is in inference mode.
    """
    net: Any = network
    tokens = net.forward_features(images)
    if not isinstance(tokens, Tensor) or tokens.ndim != 3:
        return {"mean": net.forward_head(tokens, pre_logits=True)}
    where = layout(network)
    patches = tokens[:, where.prefix : where.prefix + math.prod(where.grid((images.shape[-2], images.shape[-1])))]
    vectors = {"class": tokens[:, 0]} if where.class_token else {}
    vectors |= {"mean": patches.mean(1)} if patches.shape[1] else {}
    norm = getattr(net, "fc_norm", nn.Identity())
    return {name: norm(vector) for name, vector in vectors.items()}
