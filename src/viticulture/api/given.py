# SPDX-License-Identifier: Apache-2.0
"""What a Python program hands to a verb, where the shell has a word: paths, runs, callbacks."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..text import tell

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from ..data.sources.source import Source
    from ..training.rundir import RunDir


def as_word(data: Any) -> Any:
    """A path as the word that names it; words and objects as they are."""
    if not isinstance(data, os.PathLike):
        return data
    path = os.fspath(data)
    return path if os.sep in path else os.path.join(os.curdir, path)  # noqa: PTH118  (a Path would drop the ./)


def as_recipe(recipe: Any) -> str:
    """A recipe's name, or the path of its file, as a word. Raises: UserError for anything else."""
    word = os.fspath(recipe) if isinstance(recipe, os.PathLike) else recipe
    if not isinstance(word, str):
        raise UserError(
            f"recipe must be a name or the path of a file, got {type(recipe).__name__}; keys of one are changed by "
            "overrides={'train.epochs': 200}"
        )
    return word


def as_source(data: Any) -> "str | Source":
    """A word, a path or an object as a word or a source."""
    from ..data.open import open_source

    word = as_word(data)
    return word if isinstance(word, str) else open_source(word)


def run_word(run: Any) -> str:
    """The folder of a run that is given as a word, a path or a `Run`."""
    return os.fspath(getattr(run, "path", run))


def usable(word: str) -> "RunDir":
    """The run of that folder or of the Hub; where its training has not ended, that is told.

    Raises: UserError if it holds no weights yet.
    """
    from ..hub.fetch import located
    from ..training.rundir import RunDir

    run = RunDir.open(located(word))
    if run.read("run.json")["status"] == "running" and run.which():
        on = "is still being trained" if run.in_use else f"is not finished (`viticulture resume {word}` goes on)"
        tell(f"note     {word} {on}; its weights are those that it has so far")
    return run


def with_short(overrides: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    """Overrides with those that have a keyword of their own. Raises: UserError for one that is given twice, and for
    what maps no keys."""
    if not isinstance(overrides, Mapping):
        raise UserError(
            f"overrides must be a dict of a recipe's keys, such as {{'train.epochs': 200}}, got "
            f"{type(overrides).__name__}"
        )
    for key in short.keys() & overrides.keys():
        raise UserError(f"{key} is given twice, as {short[key]!r} and in overrides as {overrides[key]!r}; keep one")
    return {**overrides, **short}


def check_callbacks(callbacks: "Sequence[Callback]") -> None:
    """Raises: UserError for what is no callback of the Lightning that trains here."""
    if not callbacks:
        return
    from lightning.pytorch import Callback

    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                f"callbacks are objects of lightning.pytorch.Callback, got {type(callback).__module__}."
                f"{type(callback).__qualname__}"
            )
