# SPDX-License-Identifier: Apache-2.0
"""Parts of a run that are shared, and checks of runs by others.

No image, file name or folder of this machine is shared. No recipe may import code that the user has not allowed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import timm

from ...config.resolve import Config
from ...user_code import CODE

_BEGUN = re.compile(r"(~[^/]*|\.{1,2})?/")  # beginning of a path that locates a file on a machine
_FOLDERS = re.compile(r"(^|[=:,\s])(?:~[^/\s,=:]*|\.{1,2})?/(?:[^,=:]*/)?")

_SHARED = (
    *("format", "versions", "commit", "hardware", "started", "status", "seed", "student"),
    *("seconds", "steps", "batch_size", "views"),
)


def shareable_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return run.json without files and folders: the command, warnings, skipped images and the images' location."""
    data = {**facts["data"], "folder": None, "skipped": {}}
    word = str(data["source"])
    if facts["data"]["folder"] is not None or word.startswith(CODE) or ("/" in word and not word.startswith("hf:")):
        data["source"] = data["name"]  # a folder, a pattern of files, or an argument of the user's code
    settings = {"settings": without_folders(facts["settings"])} if "settings" in facts else {}
    named = {"recipe": without_folders(facts["recipe"]), "command": "", "warnings": []}
    return {**{key: facts[key] for key in _SHARED if key in facts}, **named, "data": data, **settings}


def shareable_recipe(config: Config) -> Config:
    """Return the recipe with files by their names only."""
    return replace(config, name=without_folders(config.name), values=without_folders(config.values))


def without_folders(value: Any) -> Any:
    """Remove the folders of absolute paths from texts in plain values: `base=/home/me/x.pth` becomes `base=x.pth`."""
    if isinstance(value, str):
        return _without_folders(value)
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    return value


def _without_folders(text: str) -> str:
    """Shorten a path of any letters to its name; in any other text, the paths within it."""
    before, given, path = text.partition("=") if "=" in text else ("", "", text)
    if _BEGUN.match(path):
        return f"{before}{given}{path.rstrip('/').rpartition('/')[2]}"
    return _FOLDERS.sub(r"\1", text)


def code_of_run(facts: Mapping[str, Any], recipe: Any) -> Iterator[str]:
    """Yield the code that opening a run would import: by its recipe, its settings in run.json, or its data."""
    yield from named_code(recipe)
    yield from named_code(facts.get("settings"))
    data = facts.get("data")
    for word in (data.get("folder"), data.get("source")) if isinstance(data, Mapping) else ():
        if str(word).startswith(CODE):
            yield str(word).removeprefix(CODE).partition(":")[0]


def named_code(recipe: Any) -> Iterator[str]:
    """Yield dotted paths of a user's code in a recipe, which reading the recipe would import."""
    for section, value in recipe.items() if isinstance(recipe, Mapping) else ():
        name = str(value.get("name", "") if isinstance(value, Mapping) else value)
        tagged = section == "student" and timm.is_model(name.partition(".")[0])  # timm's ARCHITECTURE.TAG
        if section in ("student", "method") and "." in name and not tagged:
            yield name
        if isinstance(value, Mapping):
            for entry, keywords in value.items():
                given = keywords.get("class", entry) if isinstance(keywords, Mapping) else entry
                if "." in str(given):
                    yield str(given)
