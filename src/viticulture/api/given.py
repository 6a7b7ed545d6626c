# SPDX-License-Identifier: Apache-2.0
"""What a Python program hands to a verb, where the shell has a word: paths, runs, callbacks."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_origin

from ..errors import UserError, received
from ..keywords import check_value
from ..text import shell_word, tell

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from ..data.sources.source import Source
    from ..training.run_folder import RunFolder


def as_word(data: Any) -> Any:
    """A path as the word that names it; words and objects as they are."""
    if not isinstance(data, os.PathLike):
        return data
    path = os.fspath(data)
    return path if os.sep in path else os.path.join(os.curdir, path)  # noqa: PTH118  (a Path would drop the ./)


P = ParamSpec("P")
R = TypeVar("R")


def checked(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb whose arguments are of its annotations, where a Python program may give anything.

    A path is the word that names it, a number of numpy's one of Python's; None stands for what is left out. Types that
    take time to import, which are annotated by a word, and lists, in whose place one thing may stand, are for the verb
    to look at.
    """
    known = signature(verb)

    @wraps(verb)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            given = known.bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"{verb.__name__}: {error}{_meant(known, keywords)}") from None
        for name, value in given.arguments.items():
            kind, default = known.parameters[name].annotation, known.parameters[name].default
            if value is None and default is not Parameter.empty:
                given.arguments[name] = default
            elif kind is not Any and not isinstance(kind, str) and get_origin(kind) not in (list, tuple):
                given.arguments[name] = _plain(value)
                check_value(name, kind, given.arguments[name])
        return verb(*given.args, **given.kwargs)

    return call


def _meant(known: Signature, keywords: Iterable[str]) -> str:
    """What to write for the first keyword that does not exist: an option of the command may belong to a group."""
    for keyword in keywords:
        if keyword in known.parameters:
            continue
        for key, group in ((key, parameter.default) for key, parameter in known.parameters.items()):
            if is_dataclass(group) and keyword in (field.name for field in fields(group)):
                return f"; write {key}={type(group).__name__}({keyword}=...)"
        near = get_close_matches(keyword, known.parameters, n=1)
        return f"; did you mean {near[0]}?" if near else ""
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else as_word(value)


def as_source(data: Any) -> "str | Source":
    """A word, a path or an object as a word or a source."""
    from ..data.open import open_source

    word = as_word(data)
    return word if isinstance(word, str) else open_source(word)


def run_word(run: Any) -> str:
    """The folder of a run that is given as a word, a path or a `Run`. Raises: UserError for anything else."""
    path = getattr(run, "path", run)
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a run is named by its folder, a word or a path, got {received(run)}")
    return os.fspath(path)


def usable(word: str) -> "RunFolder":
    """The run of that folder or of the Hub; where its training has not ended, that is told.

    Raises: UserError if it holds no weights yet.
    """
    from ..deploy.hub.fetch import located
    from ..training.run_folder import RunFolder

    run = RunFolder.open(located(word))
    if run.read("run.json")["status"] == "running" and run.which():
        again = shell_word(run.whole if word == str(run.path) else word)
        on = "is still being trained" if run.in_use else f"is not finished (`viticulture resume {again}` goes on)"
        tell(f"note     {word} {on}; its weights are those that it has so far")
    return run


def with_short(overrides: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    """Overrides with those that have a keyword of their own. Raises: UserError for one that is given twice."""
    for key in short.keys() & overrides.keys():
        raise UserError(f"{key} is given twice, as {short[key]!r} and in overrides as {overrides[key]!r}; keep one")
    return {**overrides, **short}


def check_callbacks(callbacks: "Sequence[Callback]") -> None:
    """Raises: UserError for what is no callback of the Lightning that trains here."""
    if not callbacks:
        return
    from lightning.pytorch import Callback

    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks must be a list of them, got {received(callbacks)}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                f"callbacks are objects of lightning.pytorch.Callback, got {type(callback).__module__}."
                f"{type(callback).__qualname__}"
            )
