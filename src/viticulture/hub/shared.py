# SPDX-License-Identifier: Apache-2.0
"""What of a run may be given to strangers: no image, no name of a file, no folder of this machine."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
