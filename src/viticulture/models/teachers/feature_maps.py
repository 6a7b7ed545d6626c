# SPDX-License-Identifier: Apache-2.0
"""Activation maps of a frozen CNN, channel by channel, on the grid of a student's patches.

    teacher = load_maps("efficientnet_b3.ra2_in1k", data_spec, {(14, 14)})
    teacher.channels                            # {"blocks.0": 24, ..., "blocks.6": 384}
    teacher.frozen(images)[14, 14]              # one [B, C, 14, 14] a stage

A map is resized (bicubic) as soon as its stage returns it, so that no map of the CNN's sizes stays in memory.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError, unknown
from ..data_spec import DataSpec
from ..vit.patches import PatchGrid
from ..weights.sources import open_network
from .frozen import Frozen, adapted, check_reads

CHUNKS = 4  # of a batch, one after the other

Maps = dict[PatchGrid, list[Tensor]]  # grid -> one [B, C, rows, columns] float32 per stage


@dataclass(frozen=True)
class TeacherMaps:
    """A frozen CNN and the widths of its maps."""

    frozen: Frozen  # the student's images, [B, 3, H, W] -> `Maps`
    channels: dict[str, int]  # name of a stage -> its number of maps, first stage first


def load_maps(
    source: str,
    data_spec: DataSpec,
    grids: Collection[PatchGrid],
    image_size: int | None = None,
    stages: Sequence[str] | None = None,
) -> TeacherMaps:
    """Load a frozen CNN that returns its stages' outputs. Its classes do not matter.

    Args:
        source: a run or a folder of weights; a timm name with pretrained weights, such as efficientnet_b3.ra2_in1k; or
            ARCHITECTURE=FILE, a timm architecture and its .safetensors or .pth.
        grids: sizes to which every map is resized.
        image_size: side of the teacher's input, pixels; None: that of the images for teachers where the recipe makes
            some, else of the student's.
        stages: names of the modules whose outputs are read; None: those of `stage_names`.

    Raises: UserError if the teacher cannot be read, or a stage returns no maps.
    """
    net, spec, _ = open_network(source)
    names = stage_names(net) if stages is None else list(stages)
    modules = dict(net.named_modules())
    for name in names:
        if name not in modules:
            raise unknown(f"module of {source}", name, modules)
    as_they_are = replace(spec, image_size=data_spec.image_size)
    frozen = adapted(source, Stages(net, names, tuple(grids)), as_they_are, data_spec, image_size)
    maps = next(iter(check_reads(source, frozen, data_spec).values()))
    return TeacherMaps(frozen, {name: of_name.shape[1] for name, of_name in zip(names, maps, strict=True)})


def stage_names(net: nn.Module) -> list[str]:
    """Return the modules whose outputs are those of a CNN's stages, first to last.

    They are the modules that timm's `feature_info` names, without stem and head, which differ in class from most of
    them; and in a sequence, such as EfficientNet's blocks, their neighbors of the same class: timm names the last stage
    of each resolution alone.

    Raises: UserError for a network without `feature_info`.
    """
    info = getattr(net, "feature_info", None)
    named = [stage["module"] for stage in getattr(info, "info", info) or []]
    modules = dict(net.named_modules())
    kinds = Counter(type(modules[name]) for name in named if name in modules)
    if not kinds:
        raise UserError(f"{type(net).__name__} does not name its stages; name the modules to read")
    kind = kinds.most_common(1)[0][0]
    chosen = set(named)
    for name in named:
        parent = name.rpartition(".")[0]
        within = modules.get(parent)
        if isinstance(within, nn.Sequential | nn.ModuleList):
            chosen |= {f"{parent}.{child}" for child, _ in within.named_children()}
    return [name for name, module in modules.items() if name in chosen and type(module) is kind]


class Stages(nn.Module):
    """The outputs of a CNN's stages, resized; until then in bfloat16 on a GPU that computes in it.

    A batch is split into chunks, because the student's activations fill the memory while its teacher computes.

    Shape: [B, 3, H, W] -> `Maps`.

    Args:
        names: its modules whose outputs are read.
        grids: sizes to resize to.
    """

    def __init__(self, net: nn.Module, names: Sequence[str], grids: Sequence[PatchGrid]) -> None:
        super().__init__()
        self.net, self.names, self.grids = net, tuple(names), tuple(grids)
        self._found: dict[str, list[Tensor]] = {name: [] for name in names}
        for name in names:  # once, so that a compiler sees them
            net.get_submodule(name).register_forward_hook(partial(self._keep, name))

    def _keep(self, name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or output.ndim != 4:
            raise UserError(f"a stage must return maps [B, C, H, W], but {name} does not")
        self._found[name] += [resized(output, grid) for grid in self.grids]

    def forward(self, images: Tensor) -> Maps:
        half: AbstractContextManager[Any] = nullcontext()
        if images.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False):
            half = torch.autocast("cuda", torch.bfloat16)
        for maps in self._found.values():
            maps.clear()
        with half:
            for chunk in images.chunk(CHUNKS):
                self._run(chunk)
        step = len(self.grids)
        found = {
            grid: [torch.cat(maps[place::step]) for maps in self._found.values()]
            for place, grid in enumerate(self.grids)
        }
        for maps in self._found.values():
            maps.clear()  # no map outlives its step
        return found

    def _run(self, images: Tensor) -> None:
        """Run to the end of the last stage; without the classifier where timm can."""
        until_last_stage = getattr(self.net, "forward_intermediates", None)
        if until_last_stage is None:
            self.net(images)
        else:
            until_last_stage(images, indices=1, intermediates_only=True)


def resized(maps: Tensor, grid: PatchGrid) -> Tensor:
    """[B, C, H, W] -> [B, C, rows, columns] float32; bicubic, corners not aligned, not antialiased."""
    return F.interpolate(maps, grid, mode="bicubic", align_corners=False).float()
