# SPDX-License-Identifier: Apache-2.0
"""A recipe as it is written: sections of nested values, and keys with dots that reach into them."""

import re
from typing import Any

from torch import nn

from ..errors import UserError, shortened, unknown

VIEWS = ("augment", "augment2", "augment_local_crops")  # sections that say how a view of an image is made
ORDER = ("student", "method", "guides", "data", "images", *VIEWS, "optim", "schedule", "train", "engine")
NAMED = ("guides", *VIEWS)  # sections of the form {name: keywords}


def nested(raw: dict[str, Any]) -> dict[str, Any]:
    """A deep copy in which every section exists and an empty one is an empty mapping."""
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
            raise UserError(f"recipe section {section} must hold keywords, got {shortened(repr(content))}")
        values[section] = {
            key: {} if value is None and section in NAMED else value for key, value in (content or {}).items()
        }
    return values


def check_names(values: dict[str, Any]) -> None:
    """Entries hold keywords; their own names are Python's, and not those of torch's dictionary of modules.

    Raises: UserError for others.
    """
    for section in NAMED:
        for name, entry in values[section].items():
            if not isinstance(entry, dict):
                raise UserError(f"recipe key {section}.{name} must hold keywords, got {shortened(repr(entry))}")
            if "." in name:
                short = re.sub(r"\W", "_", name.rpartition(".")[2].lower())
                raise UserError(
                    f"{section}.{name}: an entry needs a name without dots beside its class: "
                    f"{section}: {{{short}: {{class: {name}}}}}"
                )
            if not name.isidentifier() or (section == "guides" and hasattr(nn.ModuleDict, name)):
                raise UserError(f"{name!r} cannot be the name of an entry of {section}; take a word like first_teacher")


def check_keys(values: Any, place: str = "") -> None:
    """Keys are words, however deep. Raises: UserError for one that is a number."""
    if isinstance(values, dict):
        for key, content in values.items():
            if not isinstance(key, str):
                word = "null" if key is None else str(key)
                raise UserError(f"a recipe's keys are words, got {word}{place and f' in {place}'}; write '{word}'")
            check_keys(content, f"{place}.{key}" if place else key)


def override(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; `--student vit_tiny` is short for its name, `--augment.mix null` takes an entry out."""
    parts = key.split(".")
    if parts[0] not in values:
        raise unknown("recipe section", parts[0], values)
    if len(parts) == 1:
        if parts[0] not in ("student", "method"):
            raise UserError(f"--{key} is a whole section; set one of its keys, as --{key}.KEY VALUE")
        parts.append("name")
    if parts[0] in NAMED and len(parts) == 2 and value is None:
        values[parts[0]].pop(parts[1], None)
        return
    place = values
    for part in parts[:-1]:
        if place.get(part) is None:  # missing, or null in a recipe that says everything, such as a run's
            place[part] = {}
        place = place[part]
        if not isinstance(place, dict):
            raise UserError(f"--{key} asks for a key inside {part!r}, which holds {place!r}")
    if parts[0] in NAMED and len(parts) == 2 and not isinstance(value, dict):
        raise UserError(f"--{key} needs keywords, as --{key}.KEY VALUE, or null to take it out; got {value!r}")
    place[parts[-1]] = value


def leaves(values: dict[str, Any], valid: set[str], prefix: str = "") -> list[str]:
    """Dotted keys that the parser does not know."""
    wrong = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and (key not in valid or any(v.startswith(f"{key}.") for v in valid)):
            wrong += leaves(value, valid, f"{key}.")
        elif key not in valid:
            wrong.append(key)
    return wrong


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Section and keyword -> value, as options are called: `optim.lr`."""
    dotted: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {}
        dotted |= inner or {f"{prefix}{key}": value}
    return dotted


def plain(value: Any) -> Any:
    """A copy of YAML's types that shares no part with the original, nor one part of itself with another."""
    if isinstance(value, dict):
        return {str(key): plain(content) for key, content in value.items()}
    if hasattr(value, "tolist"):  # numbers of NumPy's or torch's
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
