# SPDX-License-Identifier: Apache-2.0
"""A run by its name: a local folder, or hf-hub:USER/NAME, which is downloaded once; and which parts of a run are
shared.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm

from ...config.resolve import Config
from ...disk import read_json, read_text
from ...errors import UserError, shortened
from ...text import read_yaml
from ...user_code import CODE, check_known, of_a_file
from ...waiting import quiet_hub

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


HUB = "hf-hub:"  # prefix of a run on the Hub, the same as timm's

USED = ("run.json", "recipe.yaml", "evaluation.json", "weights/*")
"""Files of a run that are downloaded: small files, and the weights once (`push` also puts them where timm reads)."""


def located(run: str) -> str:
    """Return the folder of a run; of one on the Hub, that of the download. `run`: a folder, which is returned
    unchanged; or hf-hub:USER/NAME[@REVISION]. Raises: UserError if there is no such repository, it holds no run, or the
    Hub cannot be reached.
    """
    if not run.startswith(HUB):
        return run
    repository, _, revision = run.removeprefix(HUB).partition("@")
    check_repository(repository)
    from huggingface_hub import snapshot_download

    quiet_hub()
    try:
        folder = snapshot_download(repository, revision=revision or None, allow_patterns=list(USED))
    except Exception as error:  # whatever a network, a hub or a cache may raise
        raise refused(f"{run} could not be fetched", error) from error
    if not Path(folder, "run.json").is_file():
        raise UserError(
            f"{run} is not a run of viticulture (it has no run.json); to start from weights for timm, use --init {run}"
        )
    recipe = Path(folder, "recipe.yaml")
    facts, written = read_json(Path(folder, "run.json")), read_yaml(read_text(recipe, "recipe"), str(recipe))
    with of_a_file(f"{run} (recipe.yaml or run.json in {folder})"):
        for code in sorted(set(code_of_run(facts, written))):
            check_known(code)
    return folder


def check_repository(name: str) -> None:
    """Raises: UserError for anything but USER/NAME."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", name):
        raise UserError(f"a repository on the Hub is named USER/NAME, got {shortened(repr(name))}")


def refused(what: str, error: Exception) -> UserError:
    """Return the error for a failure of the Hub or the connection."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
    if constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set, and it was not fetched before"
    elif isinstance(error, GatedRepoError):
        why = "access must be requested on its page"
    elif status in (401, 403) or isinstance(error, LocalTokenNotFoundError):
        why = "you are not logged in, or have no access; log in by `hf auth login`, or set HF_TOKEN"
    elif isinstance(error, RepositoryNotFoundError):
        why = "it does not exist, or is private; check the name, or log in by `hf auth login`"
    elif isinstance(error, RevisionNotFoundError):
        why = "there is no such revision"
    elif status:
        why = f"the Hub responded with {status}; try again later"
    elif isinstance(error, LocalEntryNotFoundError) or "connect" in type(error).__name__.lower():
        why = "the Hub cannot be reached; check the connection"
    else:
        why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return UserError(f"{what}: {why}")
