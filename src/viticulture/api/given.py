# SPDX-License-Identifier: Apache-2.0
"""What a Python program hands to a verb, where the shell has a word: paths, runs, callbacks."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..errors import UserError, shortened
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


P = ParamSpec("P")
R = TypeVar("R")

PLAIN: dict[type, tuple[str, type]] = {
    str: ("a word or a path", str),
    bool: ("True or False", bool),
    int: ("a whole number", Integral),
}
"""Annotation -> how a person says it, and the type that is meant."""


def checked(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb whose words, whole numbers and switches are such, where a Python program may give anything.

    A path is the word that names it; None stands for what is left out.
    """
    parameters = signature(verb)

    @wraps(verb)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        given = parameters.bind(*args, **keywords)
        for name, value in given.arguments.items():
            if (parameter := parameters.parameters[name]).annotation in PLAIN:
                given.arguments[name] = _plain(parameter, value)
        return verb(*given.args, **given.kwargs)

    return call


def _plain(parameter: Parameter, value: Any) -> Any:
    """A value of an annotation that is PLAIN. Raises: UserError for one of another type."""
    said, kind = PLAIN[parameter.annotation]
    value = as_word(value) if kind is str else value
    if value is None and parameter.default is not Parameter.empty:
        return parameter.default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        changed = "; keys of one are changed by overrides={'train.epochs': 200}" if parameter.name == "recipe" else ""
        raise UserError(f"{parameter.name} must be {said}, got {_received(value)}{changed}")
    return value


def _received(value: Any) -> str:
    """What was given in place of something else, and its type."""
    return shortened(f"{' '.join(repr(value).split())} ({type(value).__name__})")


def as_source(data: Any) -> "str | Source":
    """A word, a path or an object as a word or a source."""
    from ..data.open import open_source

    word = as_word(data)
    return word if isinstance(word, str) else open_source(word)


def run_word(run: Any) -> str:
    """The folder of a run that is given as a word, a path or a `Run`. Raises: UserError for anything else."""
    path = getattr(run, "path", run)
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a run is named by its folder, a word or a path, got {_received(run)}")
    return os.fspath(path)


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

    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks must be a list of them, got {_received(callbacks)}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                f"callbacks are objects of lightning.pytorch.Callback, got {type(callback).__module__}."
                f"{type(callback).__qualname__}"
            )
