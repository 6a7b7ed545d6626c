# SPDX-License-Identifier: Apache-2.0
"""The classes whose constructors' keywords are the keys of a recipe, and the help text made from them."""

import re
from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentParser

from ..data.dataset import ImageSettings, Selection
from ..data.transforms.transform import Transform
from ..data.transforms.view import TRANSFORMS
from ..guides.guide import Guide
from ..methods.method import Method
from ..optim import Optim, Schedule
from ..user_code import class_of
from .keys import VIEWS, nested
from .sections import Engine, Student, Train

METHODS = {
    "supervised": "viticulture.methods.supervised.Supervised",
    "multilabel": "viticulture.methods.multilabel.Multilabel",
    "mae": "viticulture.methods.mae.MAE",
    "simmim": "viticulture.methods.simmim.SimMIM",
    "moco_v3": "viticulture.methods.moco_v3.MoCoV3",
    "dino": "viticulture.methods.dino.DINO",
    "seed": "viticulture.methods.seed.Seed",
    "detection": "viticulture.methods.detection.Detection",
    "segmentation": "viticulture.methods.segmentation.Segmentation",
}
GUIDES = {
    "logits": "viticulture.guides.logits.Logits",
    "attention_distillation": "viticulture.guides.attention_distillation.AttentionDistillation",
    "attention_link": "viticulture.guides.attention_link.AttentionLink",
    "bootstrap": "viticulture.guides.bootstrap.Bootstrap",
    "co_advise": "viticulture.guides.co_advise.CoAdvise",
}
"""Short names of what ships with the package."""
SECTIONS: dict[str, type] = {
    "student": Student,
    "data": Selection,
    "images": ImageSettings,
    "optim": Optim,
    "schedule": Schedule,
    "train": Train,
    "engine": Engine,
}
LEARNING = ("student", "augment", "optim", "schedule", "train")
"""Sections whose defaults are no good guess for any images."""
METHOD_GIVEN, GUIDE_GIVEN = ("setup",), ("student", "data_spec")  # constructors' arguments that no recipe sets
GIVEN = {*METHOD_GIVEN, *GUIDE_GIVEN}


def reference() -> str:
    """Every key of every section with type, default and meaning, for `--help`."""
    every = {
        "method": {"name": "supervised"},
        "guides": {name: {} for name in GUIDES},
        "augment": {cls_name(transform): {} for transform in TRANSFORMS},
    }
    text = _parser_of(tuple(constructors_of(nested(every)).items())).format_help()
    for name in (name for name in METHODS if name != "supervised"):
        of_method = _parser_of((("method", find_method(name)),)).format_help()
        _, _, *sections = re.split(r"\n\n(?=\S)", of_method.rstrip())  # its usage and its name go first
        text += "".join(f"\nwith --method.name {name}: {section}\n" for section in sections)
    return re.sub(r"^  --\S+ CONFIG\s+Path to a configuration file\.\n", "", text, flags=re.MULTILINE)


def cls_name(cls: type) -> str:
    """ResizedCrop -> resized_crop: the name of a transform in a recipe."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def find_method(name: str) -> type[Method]:
    """The class of a method by its short name or dotted path."""
    return class_of("method", name, METHODS, Method, METHOD_GIVEN)


def guide_class(name: str, keywords: Mapping[str, Any] | None = None) -> type[Guide]:
    """The class of a guide: what its keywords say, else its name does."""
    return class_of("guide", (keywords or {}).get("class", name), GUIDES, Guide, GUIDE_GIVEN)


def of_class(section: Mapping[str, Any], *names: str) -> dict[str, dict[str, Any]]:
    """Entries of guides or of an augmentation that are of some shipped classes, by the names that the recipe gives."""
    return {key: entry for key, entry in section.items() if entry.get("class", key) in names}


def _parser_of(constructors: tuple[tuple[str, type], ...]) -> ArgumentParser:
    """Return a parser of the keywords of (place, class), for its help."""
    parser = ArgumentParser(exit_on_error=False, add_help=False, prog="viticulture train DATA")
    for place, made in constructors:
        if place == "method":
            about = f"{', '.join(METHODS)}, or MODULE.CLASS"
            parser.add_argument("--method.name", type=str, default="supervised", help=about)
        parser.add_class_arguments(made, place, skip=GIVEN)
    return parser


def constructors_of(values: dict[str, Any]) -> dict[str, type]:
    """Dotted place -> the class that takes the keywords that stand there."""
    constructors: dict[str, type] = dict(SECTIONS)
    constructors["method"] = find_method(values["method"].get("name", "supervised"))
    constructors |= {f"guides.{name}": guide_class(name, made) for name, made in values["guides"].items()}
    return constructors | {
        f"{view}.{name}": transform_class(name, made) for view in VIEWS for name, made in values[view].items()
    }


def transform_class(name: str, keywords: Mapping[str, Any]) -> type:
    """The class of an augmentation: what its keywords say, else its name does."""
    named = {cls_name(cls): f"{cls.__module__}.{cls.__name__}" for cls in TRANSFORMS}
    return class_of("augmentation", keywords.get("class", name), named, Transform)


def transforms(section: dict[str, Any]) -> list[Any]:
    """The transforms of a view, as its section of a recipe describes them."""
    return [transform_class(name, made)(**settings(made)) for name, made in section.items()]


def settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's keywords in an entry of a recipe: all but what names its class."""
    return {key: value for key, value in entry.items() if key != "class"}
