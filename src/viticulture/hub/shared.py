# SPDX-License-Identifier: Apache-2.0
"""What of a run may be given to strangers, and what may be taken from them.

Given: no image, no name of a file, no folder of this machine. Taken: no recipe that names code of its author's own.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import timm

from ..training.recipe import Recipe

_FOLDERS = re.compile(r"(^|[=:,\s])(?:~|\.{1,2})?/(?:[^\s,=:]*/)?(?=[^/\s,=:]*)")


_KEPT = ("format", "versions", "commit", "hardware", "started", "status", "seed", "student", "seconds", "steps")


def shareable_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """run.json without what tells of files and folders: the command, remarks, skipped images and where images lie."""
    data = {**facts["data"], "folder": None, "skipped": {}}
    if facts["data"]["folder"] is not None:
        data["source"] = data["name"]
    settings = {"settings": without_folders(facts["settings"])} if "settings" in facts else {}
    named = {"recipe": without_folders(facts["recipe"]), "command": "", "remarks": []}
    return {**{key: facts[key] for key in _KEPT if key in facts}, **named, "data": data, **settings}


def shareable_recipe(recipe: Recipe) -> Recipe:
    """The recipe with files by their names alone."""
    return replace(recipe, name=without_folders(recipe.name), values=without_folders(recipe.values))


def without_folders(value: Any) -> Any:
    """Plain values whose texts have lost the folders of absolute paths: `base=/home/me/x.pth` is `base=x.pth`."""
    if isinstance(value, str):
        return _FOLDERS.sub(r"\1", value)
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    return value


def named_code(recipe: Any) -> Iterator[str]:
    """Dotted paths by which a recipe names code of a person's own, which reading the recipe would import."""
    for section, value in recipe.items() if isinstance(recipe, Mapping) else ():
        name = str(value.get("name", "") if isinstance(value, Mapping) else value)
        if section in ("student", "method") and "." in name and not timm.is_model(name.partition(".")[0]):
            yield name
        if isinstance(value, Mapping):
            for entry, keywords in value.items():
                given = keywords.get("class", entry) if isinstance(keywords, Mapping) else entry
                if "." in str(given):
                    yield str(given)
