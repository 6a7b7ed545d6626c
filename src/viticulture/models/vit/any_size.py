# SPDX-License-Identifier: Apache-2.0
"""A student that looks at images smaller or larger than its own."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import VisionTransformer
from torch import Tensor, nn

from ...errors import UserError
from .patches import PatchGrid, begin, check, patchify, position_tables, project


def at_any_size(student: nn.Module) -> Callable[[Tensor], Any] | None:
    """A plain ViT as a function of images of any size; None for other networks, which are called as they are."""
    try:
        return partial(forward_at_any_size, check(student))
    except UserError:
        return None


def forward_at_any_size(student: VisionTransformer, images: Tensor) -> Tensor:
    """The student's output, [B, C]; its positions are resampled (bicubic) where the grid of patches is another one.

    Equal to `student(images)` for images of its own size.
    """
    patch = student.patch_embed.patch_size
    prefix_table, table = position_tables(student)
    grid = images.shape[-2] // patch[0], images.shape[-1] // patch[1]
    if grid != student.patch_embed.grid_size:
        table = stretched(table, student.patch_embed.grid_size, grid)
    x = begin(student, project(student, patchify(images, patch)) + table, prefix_table)
    return student.forward_head(student.norm(student.blocks(x)))


# Not compiled: for sizes that vary, torch 2.15 fails on the backward pass.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def stretched(table: Tensor, grid: PatchGrid, wanted: PatchGrid) -> Tensor:
    """Positions of patches, [1, P, D], for another grid (bicubic)."""
    return resample_abs_pos_embed(table, list(wanted), list(grid), num_prefix_tokens=0)


def check_size(student: nn.Module, side: int, channels: int) -> None:
    """Raises: UserError, said of `method.local_crops.size`, if the student cannot look at squares of this side."""
    tried, reason = copy.deepcopy(student).to("meta").eval(), ""
    run = at_any_size(tried)
    if run is not None:
        patch = check(student).patch_embed.patch_size
        reason = (
            f"it must be a multiple of the patch, {patch[0]}x{patch[1]}"
            if side < 1 or any(side % p for p in patch)
            else ""
        )
    else:
        try:
            with torch.no_grad():
                tried(torch.zeros(1, channels, side, side, device="meta"))
        except Exception as error:  # whatever a network may raise
            first = (str(error) or repr(error)).splitlines()[0]
            reason = f"{type(student).__name__} does not take it ({first})"
    if reason:
        raise UserError(
            f"method.local_crops.size is {side} pixels, but {reason}; method.local_crops.count 0 goes without them"
        )
