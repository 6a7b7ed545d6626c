# SPDX-License-Identifier: Apache-2.0
"""The classes whose constructors' keywords are the keys of a recipe, and the help text made from them."""

import re
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from jsonargparse import ArgumentParser

from .. import guides, methods
from ..data.dataset import DataSettings, ImageSettings
from ..data.transforms.transform import Transform
from ..data.transforms.view import TRANSFORMS
from ..errors import UserError
from ..guides.guide import Guide
from ..methods.method import Method
from ..optim import Optim, Schedule
from ..user_code import class_of
from .keys import VIEWS, nested
from .sections import Engine, Student, Train


def shipped(package: ModuleType, base: type) -> dict[str, str]:
    """Return short name -> module of every method or guide of the package: those of their files."""
    modules = [module.name for module in iter_modules(package.__path__, f"{package.__name__}.")]
    return {name.rpartition(".")[2]: name for name in modules if name != base.__module__}


METHODS, GUIDES = shipped(methods, Method), shipped(guides, Guide)
SECTIONS: dict[str, type] = {
    "student": Student,
    "data": DataSettings,
    "images": ImageSettings,
    "optim": Optim,
    "schedule": Schedule,
    "train": Train,
    "engine": Engine,
}
LEARNING = ("student", "augment", "optim", "schedule", "train")
"""Sections whose defaults do not suit any particular images."""
METHOD_GIVEN, GUIDE_GIVEN = ("setup",), ("student", "data_spec")  # constructors' arguments that no recipe sets
GIVEN = {*METHOD_GIVEN, *GUIDE_GIVEN}


def reference() -> str:
    """Return every key of every section with type, default and meaning, for `--help-all`."""
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
    """Return the name of a transform in a recipe: ResizedCrop -> resized_crop."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def find_method(name: str) -> type[Method]:
    """Return the class of a method by its short name or dotted path."""
    return _class("method", name, METHODS, Method, METHOD_GIVEN)


def guide_class(name: str, keywords: Mapping[str, Any] | None = None) -> type[Guide]:
    """Return the class of a guide, by its `class`, or else by its name."""
    return _class("guide", (keywords or {}).get("class", name), GUIDES, Guide, GUIDE_GIVEN)


def is_here(name: str, keywords: Any) -> bool:
    """Return whether the class of a guide can be imported."""
    try:
        guide_class(name, keywords if isinstance(keywords, Mapping) else None)
    except UserError:
        return "." not in str(keywords.get("class", name) if isinstance(keywords, Mapping) else name)
    return True


def _class(kind: str, name: Any, names: Mapping[str, str], base: type, given: tuple[str, ...]) -> type:
    """Return the one subclass of `base` that a shipped file defines, or the user's class."""
    if not isinstance(name, str) or name not in names:
        return class_of(kind, name, names, base, given)
    classes = (value for value in vars(import_module(names[name])).values() if isinstance(value, type))
    (found,) = (cls for cls in classes if issubclass(cls, base) and cls.__module__ == names[name])
    return found


def of_class(section: Mapping[str, Any], *names: str) -> dict[str, dict[str, Any]]:
    """Return the entries of guides or an augmentation that are of these shipped classes, whatever their names."""
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
    """Return dotted place -> the class that takes the keywords there."""
    constructors: dict[str, type] = dict(SECTIONS)
    constructors["method"] = find_method(values["method"].get("name", "supervised"))
    constructors |= {f"guides.{name}": guide_class(name, made) for name, made in values["guides"].items()}
    return constructors | {
        f"{view}.{name}": transform_class(name, made) for view in VIEWS for name, made in values[view].items()
    }


def transform_class(name: str, keywords: Mapping[str, Any]) -> type:
    """Return the class of an augmentation, by its `class`, or else by its name."""
    named = {cls_name(cls): f"{cls.__module__}.{cls.__name__}" for cls in TRANSFORMS}
    return class_of("augmentation", keywords.get("class", name), named, Transform)


def transforms(section: dict[str, Any]) -> list[Any]:
    """Return the transforms of a view from its section of a recipe."""
    return [transform_class(name, made)(**settings(made)) for name, made in section.items()]


def settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor's keywords in an entry of a recipe: all except its `class`."""
    return {key: value for key, value in entry.items() if key != "class"}
