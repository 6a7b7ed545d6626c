# SPDX-License-Identifier: Apache-2.0
"""Our networks under names of timm's, each with all that this package needs to know of it as a student.

A student of the package is one file in agent/, cit/, dhvt/ or vit/ that calls `register`; nothing else lists it.
"""

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import timm
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from ..errors import UserError

FEATURES = MappingProxyType({"out_indices": 3, "feature_cls": "getter"})
"""How timm reads maps of a ViT's blocks (`features_only`). It takes keys out of what it is given: give it a copy."""
TIMM_WEIGHTS = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay")  # keywords by which timm names weights


@dataclass(frozen=True)
class StudentInfo:
    """Properties of a student."""

    purpose: str  # what it is and is for, in a few words for `viticulture models`
    # Image height and width -> patch size, all in pixels; None where the name fixes the patch size.
    fitting_patch: Callable[[tuple[int, int]], int] | None = None
    hybrid: bool = False  # whether convolutions shrink the image to few patches before tokens attend to each other
    # (name, keywords) -> architecture and arguments by which timm alone builds the same network; None where timm needs
    # this package.
    timm_form: Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]] | None = None
    create: Callable[..., nn.Module] | None = None  # the registered function, whose keywords are options as well


def register(
    create: Callable[..., nn.Module],
    names: Collection[str],
    purpose: str,
    config: dict[str, Any] | None = None,
    **properties: Any,
) -> None:
    """Register with timm, under each name, the function that calls `create(name, **keywords)`.

    Args:
        create: a function of the module that the names belong to; it takes the keywords of `timm.create_model`.
        config: timm's metadata, see `timm_config`; None for a `create` that takes none.
    """
    module = sys.modules[create.__module__]
    if config is not None:
        vars(module).setdefault("default_cfgs", {}).update(generate_default_cfgs(dict.fromkeys(names, config)))
    for name in names:
        entry = _entry(create, name)
        vars(entry)["student_info"] = StudentInfo(purpose, create=create, **properties)
        vars(module)[name] = register_model(entry)


def _entry(create: Callable[..., nn.Module], name: str) -> Callable[..., nn.Module]:
    def entry(**keywords: Any) -> nn.Module:
        return create(name, **keywords)

    entry.__name__ = entry.__qualname__ = name
    entry.__module__ = create.__module__
    return entry


def student_info(name: str) -> StudentInfo | None:
    """Return the properties of a student; None for one that no file of the package registered."""
    return getattr(timm.model_entrypoint(name), "student_info", None) if timm.is_model(name) else None


def eight_patches(image_size: tuple[int, int]) -> int:
    """Return the largest patch size of 16, 8, 4 and 2 pixels that leaves at least 8 patches a side, else 2."""
    return next((patch for patch in (16, 8, 4) if min(image_size) >= 8 * patch), 2)


def reject_pretrained(name: str, keywords: dict[str, Any], fix: str) -> dict[str, Any]:
    """Return keywords without those by which timm names weights. Raises: UserError, with the fix, if some are set."""
    if any(keywords.get(key) for key in TIMM_WEIGHTS):
        raise UserError(f"{name} has no pretrained weights; {fix}")
    return {key: value for key, value in keywords.items() if key not in (*TIMM_WEIGHTS, "cache_dir")}


def timm_config(pixels: int = 224, **metadata: Any) -> dict[str, Any]:
    """Return timm's metadata of weights and images, with the usual values of ImageNet networks."""
    return {
        "num_classes": 1000,
        "input_size": (3, pixels, pixels),
        "crop_pct": 224 / 256 if pixels == 224 else 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "classifier": "head",
        **metadata,
    }
