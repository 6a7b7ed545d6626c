# SPDX-License-Identifier: Apache-2.0
"""What of a run may be given to strangers, and what may be taken from them.

Given: no image, no name of a file, no folder of this machine. Taken: no recipe that names code which the user has not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import timm

from ...config.resolve import Config
from ...user_code import CODE

_BEGUN = re.compile(r"(~[^/]*|\.{1,2})?/")
"""How a path begins that says where on a machine it lies."""
_FOLDERS = re.compile(r"(^|[=:,\s])(?:~[^/\s,=:]*|\.{1,2})?/(?:[^,=:]*/)?")

_KEPT = (
    *("format", "versions", "commit", "hardware", "started", "status", "seed", "student"),
    *("seconds", "steps", "batch_size", "views"),
)


def shareable_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """run.json without what tells of files and folders: the command, warnings, skipped images and where images lie."""
    data = {**facts["data"], "folder": None, "skipped": {}}
    word = str(data["source"])
    if facts["data"]["folder"] is not None or word.startswith(CODE) or ("/" in word and not word.startswith("hf:")):
        data["source"] = data["name"]  # a folder, a pattern of files, or an argument of somebody's code
    settings = {"settings": without_folders(facts["settings"])} if "settings" in facts else {}
    named = {"recipe": without_folders(facts["recipe"]), "command": "", "warnings": []}
    return {**{key: facts[key] for key in _KEPT if key in facts}, **named, "data": data, **settings}


def shareable_recipe(config: Config) -> Config:
    """The recipe with files by their names alone."""
    return replace(config, name=without_folders(config.name), values=without_folders(config.values))


def without_folders(value: Any) -> Any:
    """Plain values whose texts have lost the folders of absolute paths: `base=/home/me/x.pth` is `base=x.pth`."""
    if isinstance(value, str):
        return _without_folders(value)
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    return value


def _without_folders(text: str) -> str:
    """A path by its name, whatever letters it holds; of any other text the paths within it likewise."""
    before, given, path = text.partition("=") if "=" in text else ("", "", text)
    if _BEGUN.match(path):
        return f"{before}{given}{path.rstrip('/').rpartition('/')[2]}"
    return _FOLDERS.sub(r"\1", text)


def strangers_code(facts: Mapping[str, Any], recipe: Any) -> Iterator[str]:
    """Code that looking at a stranger's run would import: by its recipe, by the settings that run.json repeats of it,
    or by the name of its data."""
    yield from named_code(recipe)
    yield from named_code(facts.get("settings"))
    data = facts.get("data")
    for word in (data.get("folder"), data.get("source")) if isinstance(data, Mapping) else ():
        if str(word).startswith(CODE):
            yield str(word).removeprefix(CODE).partition(":")[0]


def named_code(recipe: Any) -> Iterator[str]:
    """Dotted paths by which a recipe names code of a person's own, which reading the recipe would import."""
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
