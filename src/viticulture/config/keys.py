# SPDX-License-Identifier: Apache-2.0
"""A recipe as it is written: sections of nested values, and dotted keys into them. Imports nothing slow."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UserError, received, unknown

VIEWS = ("augment", "augment2", "augment_local_crops")  # sections that define the views of an image
ORDER = ("student", "method", "guides", "data", "images", *VIEWS, "optim", "schedule", "train", "engine")
STAGES, CELLS = "stages", "cells"  # folders of runs inside a run on a budget, and inside a study
NAMED = ("guides", *VIEWS)  # sections of the form {name: keywords}
DATACLASSES = {
    "student": ("config/sections.py", "Student"),
    "data": ("data/data_settings.py", "DataSettings"),
    "images": ("data/image_settings.py", "ImageSettings"),
    "optim": ("optim/optim.py", "Optim"),
    "schedule": ("optim/optim.py", "Schedule"),
    "train": ("config/sections.py", "Train"),
    "engine": ("config/sections.py", "Engine"),
}
"""Section -> file and name of the dataclass whose fields are its keys."""


def nested(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy in which every section exists, an empty one as an empty mapping."""
    check_keys(raw)
    raw = plain(raw)
    for section in raw:
        if section not in ORDER:
            raise unknown("recipe section", section, ORDER)
    values: dict[str, Any] = {}
    for section in ORDER:
        content = raw.get(section)
        if isinstance(content, str) and section in ("student", "method"):
            content = {"name": content}  # one dial first: `student: vit_tiny`
        if not isinstance(content, dict | None):
            raise UserError(f"recipe section {section} must hold keywords, got {received(content)}")
        values[section] = {
            key: {} if value is None and section in NAMED else value for key, value in (content or {}).items()
        }
    return values


@cache
def fixed_keys() -> tuple[str, ...]:
    """Return the keys of the sections that are dataclasses, read from their source: importing it takes seconds."""
    keys = list[str]()
    for section, (file, name) in DATACLASSES.items():
        tree = ast.parse((Path(__file__).parents[1] / file).read_text("utf-8"))
        body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        fields = (node.target for node in body if isinstance(node, ast.AnnAssign))
        keys += [f"{section}.{field.id}" for field in fields if isinstance(field, ast.Name)]
    return tuple(keys)


def check_key(key: str) -> None:
    """Raises: UserError for a dotted key without a section, or one that a dataclass section lacks."""
    section, _, rest = key.partition(".")
    if section not in ORDER:
        whole = [full for full in fixed_keys() if full.partition(".")[2] == key.replace("-", "_")]
        raise (
            UserError(f"unknown recipe key {key}; did you mean {whole[0]}?")
            if whole
            else unknown("recipe section", section, ORDER)
        )
    if section in DATACLASSES and rest and f"{section}.{rest.partition('.')[0]}" not in fixed_keys():
        raise unknown("recipe key", key, fixed_keys())


def check_names(values: dict[str, Any]) -> None:
    """Raises: UserError for an entry without keywords, or a name that is no identifier or one of ModuleDict's."""
    from torch import nn  # takes seconds, and keys can be checked without

    for section in NAMED:
        for name, entry in values[section].items():
            if not isinstance(entry, dict):
                raise UserError(f"recipe key {section}.{name} must hold keywords, got {received(entry)}")
            if "." in name:
                short = re.sub(r"\W", "_", name.rpartition(".")[2].lower())
                raise UserError(
                    f"{section}.{name}: an entry needs a name without dots next to its class: "
                    f"{section}: {{{short}: {{class: {name}}}}}"
                )
            if not name.isidentifier() or (section == "guides" and hasattr(nn.ModuleDict, name)):
                raise UserError(f"{name!r} cannot be the name of an entry of {section}; take a word like first_teacher")


def check_keys(values: Any, place: str = "") -> None:
    """Raises: UserError for a key that is no text, at any depth."""
    if isinstance(values, dict):
        for key, content in values.items():
            if not isinstance(key, str):
                word = "null" if key is None else str(key)
                raise UserError(f"a recipe's keys are words, got {word}{place and f' in {place}'}; write '{word}'")
            check_keys(content, f"{place}.{key}" if place else key)


PROBE, FINE_TUNE = "probe/photos", "finetune/photos"  # recipes that start from a trained network
TEACHER = "teacher"  # the override that names a teacher, in place of keys of guides (start.py)
METHOD = ("method", "method.name")  # keys that name the method, and are set before its keywords


def override(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; `--student vit_tiny` is short for its name, `--augment.mix null` removes an entry."""
    parts = key.split(".")
    check_key(key)
    if len(parts) == 1:
        if parts[0] not in ("student", "method"):
            raise UserError(f"--{key} is a whole section; set one of its keys, as --{key}.KEY VALUE")
        parts.append("name")
    if parts[0] in NAMED and len(parts) == 2 and value is None:
        values[parts[0]].pop(parts[1], None)
        return
    if parts == ["method", "name"] and value != values["method"].get("name", "supervised"):
        values["method"] = {}  # the keys there are another method's
    place = values
    for part in parts[:-1]:
        if place.get(part) is None:  # missing, or null in a recipe that says everything, such as a run's
            place[part] = {}
        place = place[part]
        if not isinstance(place, dict):
            raise UserError(f"--{key} names a key inside {part!r}, which holds {place!r}")
    if parts[0] in NAMED and len(parts) == 2 and not isinstance(value, dict):
        raise UserError(f"--{key} needs keywords, as --{key}.KEY VALUE, or null to take it out; got {value!r}")
    place[parts[-1]] = value


def leaves(values: dict[str, Any], valid: set[str], prefix: str = "") -> list[str]:
    """Return the dotted keys that are not valid."""
    wrong = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and (key not in valid or any(v.startswith(f"{key}.") for v in valid)):
            wrong += leaves(value, valid, f"{key}.")
        elif key not in valid:
            wrong.append(key)
    return wrong


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value, as options are called: `optim.lr`."""
    dotted: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {}
        dotted |= inner or {f"{prefix}{key}": value}
    return dotted


def plain(value: Any) -> Any:
    """Return a copy in YAML's types that shares no part with the original, nor one of its parts with another."""
    if isinstance(value, dict):
        return {str(key): plain(content) for key, content in value.items()}
    if hasattr(value, "tolist"):  # numbers of NumPy's or torch's
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
