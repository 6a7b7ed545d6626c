# SPDX-License-Identifier: Apache-2.0
"""Weights of one network in another: copy what fits, resample what depends on image and patch size.

Position tables are resampled between grids of patches, patch embeddings between patch sizes [1]. A head for other
classes starts anew, and so does all else that is missing or has another shape; nothing of this happens silently.

[1] Beyer et al., "FlexiViT", CVPR 2023, arXiv:2212.08013, the pseudo-inverse resize, as timm has it.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from timm.layers.patch_embed import resample_patch_embed
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from ..errors import UserError

State = dict[str, Tensor]
Grid = tuple[int, int]


def transplant(student: nn.Module, theirs: State, grid: Grid | None = None) -> list[str]:
    """Put weights into a student, in place.

    Args:
        student: any network.
        theirs: tensors by name.
        grid: rows and columns of patches for which their position table was made; None takes it to be square.

    Returns: remarks for a person: what was taken, resampled, left as it was, left unused.
    Raises: UserError if nothing but the head fits.
    """
    ours, heads = student.state_dict(), _heads(student)
    taken: State = {}
    remarks: list[str] = []
    for key in (key for key in ours if key in theirs):
        own, value = ours[key], theirs[key]
        if own.squeeze().shape == value.squeeze().shape:  # a 1x1 convolution there may be a matrix here
            taken[key] = value.reshape(own.shape)
        elif key == "pos_embed" and own.shape[-1] == value.shape[-1]:
            old, new = grid or _square(value), _grid(student) or _square(own)
            taken[key] = resample_positions(value, own, old, new)
            remarks.append(f"positions resampled from {old[0]}x{old[1]} to {new[0]}x{new[1]} patches")
        elif key.endswith("patch_embed.proj.weight") and own.shape[:2] == value.shape[:2]:
            taken[key] = resample_patch_embed(value, list(own.shape[2:]))
            sizes = "{}x{} to {}x{}".format(*value.shape[2:], *own.shape[2:])
            remarks.append(f"patch embedding resampled from {sizes} pixels")
    if not any(key.endswith("weight") and not key.startswith(heads) for key in taken):
        raise UserError(
            f"these weights fit no layer of this {type(student).__name__}: "
            f"they have {_some(theirs)}, it has {_some(ours)}, and no shapes agree"
        )
    student.load_state_dict(taken, strict=False)
    left = [key for key in ours if key not in taken]
    lists = {
        "the head starts anew": [key for key in left if key.startswith(heads)],
        "of another shape there, started anew": [k for k in left if k in theirs and not k.startswith(heads)],
        "not there, started anew": [k for k in left if k not in theirs and not k.startswith(heads)],
        "there but not used": [key for key in theirs if key not in ours],
    }
    named = [f"{words}: {_some(keys)}" for words, keys in lists.items() if keys]
    return [f"{len(taken)} of {len(ours)} tensors taken", *remarks, *named]


def resample_positions(theirs: Tensor, ours: Tensor, old: Grid, new: Grid) -> Tensor:
    """A position table for another grid, [1, T, D]; rows of prefix tokens that both have are copied, else ours stay."""
    prefix, own = theirs.shape[1] - math.prod(old), ours.shape[1] - math.prod(new)
    both = min(prefix, own)
    patches = resample_abs_pos_embed(theirs[:, prefix:], new_size=list(new), old_size=list(old), num_prefix_tokens=0)
    return torch.cat([theirs[:, :both], ours[:, both:own], patches], dim=1)


def _square(table: Tensor) -> Grid:
    """The largest square grid that a table can hold; what is left over are prefix tokens."""
    side = math.isqrt(table.shape[1])
    return side, side


def _grid(student: nn.Module) -> Grid | None:
    grid: Grid | None = getattr(getattr(student, "patch_embed", None), "grid_size", None)
    return grid


def _heads(student: nn.Module) -> tuple[str, ...]:
    """Beginnings of the names of the classifier's tensors."""
    described: dict[str, Any] = getattr(student, "pretrained_cfg", {})
    named = described.get("classifier") or "head"
    return tuple(f"{name}." for name in ([named] if isinstance(named, str) else named))


def _some(keys: Iterable[str], most: int = 6) -> str:
    names = list(keys)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
