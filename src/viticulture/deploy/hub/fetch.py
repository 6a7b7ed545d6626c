# SPDX-License-Identifier: Apache-2.0
"""A run by its name: a local folder, or hf-hub:USER/NAME, which is downloaded once."""

import re
from pathlib import Path

from ...disk import read_json, read_text
from ...errors import UserError, shortened
from ...text import read_yaml
from ...user_code import check_known, of_a_file
from ...waiting import quiet_hub
from .shared import code_of_run

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
