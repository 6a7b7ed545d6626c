# SPDX-License-Identifier: Apache-2.0
"""Load one network's weights into another: copy tensors that fit, resample those that depend on image and patch size.

Position tables are resampled between grids of patches, patch embeddings between patch sizes [1]. A head for other
classes keeps its random weights, one for the same classes in another order has its rows moved if both name them, and
all else that is missing or has another shape keeps its random weights; every case is reported.
On request only the first blocks are taken, with the layers before them. A narrower ViT takes evenly spaced channels and
heads of a wider one, and its first blocks [2].

[1] Beyer et al., "FlexiViT", CVPR 2023, arXiv:2212.08013, the pseudo-inverse resize, as timm has it.
[2] Xu et al., "Initializing Models with Larger Ones", ICLR 2024, arXiv:2311.18823, uniform selection.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers.patch_embed import resample_patch_embed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import adapt_input_conv
from torch import Tensor, nn

from ...errors import UserError, some
from ..vit.patches import PatchGrid

NAMED = 6  # tensors or classes listed of many

State = dict[str, Tensor]

POSITIONS = "pos_embed"
TOKENS = ("cls_token", "dist_token", "reg_token")  # may have rows in a position table, before the patches
QUERIES = "blocks.0.attn.qkv.weight"


def load_matching(student: nn.Module, theirs: State, source: nn.Module | None, blocks: int | None) -> list[str]:
    """Load weights into a student, in place.

    Args:
        source: the network that they are of, for its patches and heads (its own tensors are not read); None takes the
            position table to be square and heads to be as wide as the student's.
        blocks: number of leading blocks to take, with what comes before them; None takes all that fits.

    Returns: warnings for the user: what was loaded, resampled, not loaded, not used.
    Raises: UserError if nothing but the head fits, if their grid is unknown, or if there are no such blocks.
    """
    ours, heads = student.state_dict(), _heads(student)
    keys = list(ours) if blocks is None else leading(student, blocks)
    taken: State = {}
    tokens: State = {}
    grid = None if source is None else grid_of(source)
    theirs, selected = _as_narrow(student, ours, theirs, source)
    theirs, adapted = _as_many_channels(student, ours, theirs)
    warnings = [*selected, *adapted]
    for key in (key for key in keys if key in theirs):
        own, value = ours[key], theirs[key]
        if key == POSITIONS and own.ndim == value.ndim == 3 and own.shape[-1] == value.shape[-1]:
            new = grid_of(student) or _square(ours)
            same = own.shape == value.shape and all((name in ours) == (name in theirs) for name in TOKENS)
            square = _square(theirs, ours, new)
            old = grid or (new if same else None) or square or (new if own.shape == value.shape else None)
            if new is None or old is None:
                raise UserError(
                    f"positions are resampled between grids of patches, and that of a table of {value.shape[1]} rows "
                    "is unknown unless it is square; name the run or the folder that holds its config.json"
                )
            taken[key] = resample_positions(value, own, old, new)
            tokens = _moved_tokens(theirs, taken, math.prod(old), math.prod(new))
            if grid is None and old == new and square not in (None, new):
                warnings.append(f"positions are taken to be of {new[0]}x{new[1]} patches, as here")
            if old != new:
                warnings.append(f"positions resampled from {old[0]}x{old[1]} to {new[0]}x{new[1]} patches")
        elif own.squeeze().shape == value.squeeze().shape:  # a 1x1 convolution there may be a matrix here
            taken[key] = value.reshape(own.shape)
        elif key.endswith("patch_embed.proj.weight") and own.shape[:2] == value.shape[:2]:
            taken[key] = resample_patch_embed(value, list(own.shape[2:]))
            sizes = "{}x{} to {}x{}".format(*value.shape[2:], *own.shape[2:])
            warnings.append(f"patch embedding resampled from {sizes} pixels")
    if not any(key.endswith("weight") and not key.startswith(heads) for key in taken):
        raise UserError(
            f"these weights fit no layer of this {type(student).__name__}: "
            f"they have {some(list(theirs), NAMED)}, it has {some(list(ours), NAMED)}, and no shapes agree"
        )
    taken |= {name: value for name, value in tokens.items() if name in taken}
    student.load_state_dict(taken, strict=False)
    if blocks is not None:
        warnings.append(f"the first {blocks} blocks and what comes before them are loaded, all else is random")
    left = [key for key in keys if key not in taken]
    lists = {
        "the head is new": [key for key in left if key.startswith(heads)],
        "of another shape there, random here": [k for k in left if k in theirs and not k.startswith(heads)],
        "not there, random here": [k for k in left if k not in theirs and not k.startswith(heads)],
        "there but not used": [key for key in theirs if key not in ours],
    }
    named = [f"{words}: {some(keys, NAMED)}" for words, keys in lists.items() if keys]
    return [f"{len(taken)} of {len(ours)} tensors loaded", *warnings, *named]


def for_classes(
    student: nn.Module, theirs: State, known: Sequence[str], wanted: Sequence[str]
) -> tuple[State, list[str]]:
    """Put the rows of the head in the order of the student's classes; drop the head if it has as many other classes,
    which shapes do not show. `known`: class names of their head, in its order; empty where unknown. Returns: tensors,
    and a warning where they differ from `theirs`.
    """
    heads = [name for name in theirs if name.startswith(_heads(student)) and theirs[name].shape[:1] == (len(wanted),)]
    if not heads or not known or len(known) != len(wanted) or tuple(known) == tuple(wanted):
        return theirs, []
    if set(known) != set(wanted):
        others = {name: value for name, value in theirs.items() if name not in heads}
        return others, [f"the head there is of other classes: {some(known, NAMED)}"]
    order = torch.tensor([known.index(name) for name in wanted])
    return {**theirs, **{name: theirs[name][order] for name in heads}}, ["rows of the head put in order of the classes"]


def _as_many_channels(student: nn.Module, ours: State, theirs: State) -> tuple[State, list[str]]:
    """Adapt a first convolution of color images to the student's channels, as timm does: summed for one channel; for
    others repeated, and scaled so that the sum stays. Other cases keep random weights."""
    described: dict[str, Any] = getattr(student, "pretrained_cfg", {})
    first = described.get("first_conv") or "patch_embed.proj"
    for key in (f"{name}.weight" for name in ([first] if isinstance(first, str) else first)):
        own, value = ours.get(key), theirs.get(key)
        if own is None or value is None or own.ndim != 4 or value.ndim != 4:
            continue
        channels = own.shape[1]
        if value.shape[1] == 3 != channels and own.shape[0] == value.shape[0]:
            adapted: Tensor = adapt_input_conv(channels, value)
            how = "summed to one" if channels == 1 else f"repeated for {channels}"
            return {**theirs, key: adapted}, [f"first convolution of three channels {how}"]
    return theirs, []


def _as_narrow(student: nn.Module, ours: State, theirs: State, source: nn.Module | None) -> tuple[State, list[str]]:
    """Select evenly spaced channels of a wider ViT's tensors, i D / d of D for i < d, everywhere the same ones of the
    residual stream; in attention evenly spaced heads, and channels of each, for queries, keys and values alike."""
    own, value, heads = ours.get(QUERIES), theirs.get(QUERIES), _attention_heads(student)
    if heads is None or own is None or value is None or own.ndim != value.ndim or own.shape[1] >= value.shape[1]:
        return theirs, []
    inner, wide = len(own) // 3, len(value) // 3
    width = inner // heads
    wide_heads = _attention_heads(source) or max(wide // width, 1)
    wide_width = wide // wide_heads
    if wide_heads < heads or wide_width < width:  # more heads, or wider ones, than there are: of all channels
        heads, width, wide_heads, wide_width = 1, inner, 1, wide
    channels = (_evenly(wide_heads, heads)[:, None] * wide_width + _evenly(wide_width, width)).flatten()
    narrow: State = {}
    for key in (key for key in ours if key in theirs and ours[key].ndim == theirs[key].ndim):
        if key.startswith(_heads(student)) and len(ours[key]) != len(theirs[key]):
            continue  # of other classes
        narrow[key] = theirs[key]
        for dim, (to, of) in enumerate(zip(ours[key].shape, theirs[key].shape, strict=True)):
            table = dim == 1 and key.startswith(("patch_embed.", POSITIONS))
            pixels = dim > 1 or of == 3 if ours[key].ndim == 4 else table
            if to >= of or pixels:
                continue
            index = _evenly(of, to)
            if ".attn.qkv." in key and dim == 0:
                index = (torch.arange(3)[:, None] * wide + channels).flatten()
            elif key.endswith(".attn.proj.weight") and dim == 1:
                index = channels
            narrow[key] = narrow[key].index_select(dim, index)
    return {**theirs, **narrow}, [f"{own.shape[1]} of {value.shape[1]} channels selected, evenly spaced"]


def _attention_heads(network: nn.Module | None) -> int | None:
    """Return the heads of a ViT's first block; None where it says none."""
    try:
        return getattr(network and network.get_submodule("blocks.0.attn"), "num_heads", None)
    except AttributeError:
        return None


def _evenly(there: int, here: int) -> Tensor:
    return torch.arange(here) * there // here


def leading(student: nn.Module, blocks: int) -> list[str]:
    """Return the names of the tensors of the leading blocks, and of what comes before them: patches, tokens, positions.

    Raises: UserError for a student without `blocks`, or with fewer.
    """
    modules = getattr(student, "blocks", None)
    if not isinstance(modules, nn.Sequential | nn.ModuleList):
        raise UserError(f"student.init_blocks needs a student with blocks, and a {type(student).__name__} has none")
    if not 0 <= blocks <= len(modules):
        raise UserError(f"student.init_blocks must lie between 0 and the student's {len(modules)} blocks, got {blocks}")
    names = list(student.state_dict())
    first = next(position for position, name in enumerate(names) if name.startswith("blocks."))
    prefixes = tuple(f"blocks.{number}." for number in range(blocks))
    return names[:first] + [name for name in names[first:] if name.startswith(prefixes)]


def resample_positions(theirs: Tensor, ours: Tensor, old: PatchGrid, new: PatchGrid) -> Tensor:
    """Resample a position table to another grid, [1, T, D]; rows of prefix tokens that both have are copied."""
    prefix, own = theirs.shape[1] - math.prod(old), ours.shape[1] - math.prod(new)
    both, patches = min(prefix, own), theirs[:, prefix:]
    if old != new:
        patches = resample_abs_pos_embed(patches, new_size=list(new), old_size=list(old), num_prefix_tokens=0)
    return torch.cat([theirs[:, :both], ours[:, both:own], patches], dim=1)


def _moved_tokens(theirs: State, taken: State, old: int, new: int) -> State:
    """Return tokens with the positions that only they have, [1, n, D] each, where the student adds positions to patches
    alone; in the reverse case set the positions of theirs to zero in `taken`, in place. `old`, `new`: patches."""
    table, value = taken[POSITIONS], theirs[POSITIONS]
    prefix, own = value.shape[1] - old, table.shape[1] - new
    tokens: State = {}
    start, names = 0, [name for name in TOKENS if name in theirs]
    if sum(theirs[name].shape[1] for name in names) != (prefix or own):
        return tokens  # some of them have no position anywhere
    for name in names:
        rows = slice(start, start := start + theirs[name].shape[1])
        if prefix and not own:
            tokens[name] = theirs[name] + value[:, rows]
        elif own and not prefix:
            table[:, rows] = 0
    return tokens


def grid_of(network: nn.Module) -> PatchGrid | None:
    """Return rows and columns of a network's patches; None where it has no such attribute."""
    return getattr(getattr(network, "patch_embed", None), "grid_size", None)


def _square(state: State, like: State | None = None, grid: PatchGrid | None = None) -> PatchGrid | None:
    """Return the square grid of a position table without the rows of its tokens."""
    rows = state[POSITIONS].shape[1]
    others = [sum(state[name].shape[1] for name in TOKENS if name in state), 0]
    if like is not None and grid is not None:
        others.insert(1, like[POSITIONS].shape[1] - math.prod(grid))
    for patches in (rows - count for count in others):
        side = math.isqrt(patches)
        if side**2 == patches:
            return side, side
    return None


def _heads(student: nn.Module) -> tuple[str, ...]:
    """Prefixes of the classifier's tensors."""
    described: dict[str, Any] = getattr(student, "pretrained_cfg", {})
    named = described.get("classifier") or "head"
    return tuple(f"{name}." for name in (*([named] if isinstance(named, str) else named), *classifiers(student)))


def classifiers(student: nn.Module) -> list[str]:
    """Return the names of the layers that compute scores; timm lists only those of an architecture's default."""
    heads: Any = getattr(student, "get_classifier", tuple)()
    layers = {id(layer) for head in (heads if isinstance(heads, tuple) else (heads,)) for layer in head.modules()}
    linear = {name: layer for name, layer in student.named_modules() if isinstance(layer, nn.Linear)}
    classes = getattr(student, "num_classes", 0)
    return [name for name, layer in linear.items() if id(layer) in layers and layer.out_features == classes]
