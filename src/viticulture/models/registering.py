# SPDX-License-Identifier: Apache-2.0
"""Networks of ours under names of timm's: the one way in which people of this field ask for a network."""

import sys
from collections.abc import Callable, Collection
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from ..errors import UserError


def register(create: Callable[..., nn.Module], names: Collection[str], config: dict[str, Any] | None = None) -> None:
    """Register with timm, under each name, the function that calls `create(name, **keywords)`.

    Args:
        create: a function of the module that the names belong to; it takes the keywords of `timm.create_model`.
        names: what `timm.create_model` shall know.
        config: timm's facts about them, see `timm_config`; None for a `create` that asks for none.
    """
    module = sys.modules[create.__module__]
    if config is not None:
        known = vars(module).setdefault("default_cfgs", {})
        known.update(generate_default_cfgs(dict.fromkeys(names, config)))
    for name in names:
        vars(module)[name] = register_model(_entry(create, name))


def _entry(create: Callable[..., nn.Module], name: str) -> Callable[..., nn.Module]:
    def entry(**keywords: Any) -> nn.Module:
        return create(name, **keywords)

    entry.__name__ = entry.__qualname__ = name
    entry.__module__ = create.__module__
    return entry


def without_pretrained(name: str, keywords: dict[str, Any], mend: str) -> dict[str, Any]:
    """Keywords without those by which timm names weights. Raises: UserError, with what to do instead, if some do."""
    about_weights = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay")
    if any(keywords.get(key) for key in about_weights):
        raise UserError(f"{name} has no pretrained weights; {mend}")
    return {key: value for key, value in keywords.items() if key not in (*about_weights, "cache_dir")}


def timm_config(pixels: int = 224, **facts: Any) -> dict[str, Any]:
    """What timm wants to know of a network's weights and images: as most networks of ImageNet have it, but for `facts`.

    Args:
        pixels: side of the images.
        facts: further keys of timm's `PretrainedCfg`, or other values of those here.
    """
    return {
        "num_classes": 1000,
        "input_size": (3, pixels, pixels),
        "crop_pct": 224 / 256 if pixels == 224 else 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "classifier": "head",
        **facts,
    }
