# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands when called from Python: paths, runs, callbacks."""

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
from ..text import log, shell_word

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from ..data.sources.source import Source
    from ..training.run_folder import RunFolder


def path_as_text(data: Any) -> Any:
    """Return a path as text that can only mean a path; return anything else unchanged."""
    if not isinstance(data, os.PathLike):
        return data
    path = os.fspath(data)
    return path if os.sep in path else os.path.join(os.curdir, path)  # noqa: PTH118  (a Path would drop the ./)


P = ParamSpec("P")
R = TypeVar("R")


def checked(command: Callable[P, R]) -> Callable[P, R]:
    """Check a command's arguments against its annotations.

    Paths become text and numpy's numbers Python's; None stands for the default. Types that are slow to import, which
    are annotated as text, and lists, which a single value may replace, are left to the command.
    """
    accepted = signature(command)

    @wraps(command)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            bound = accepted.bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"{command.__name__}: {error}{_hint(accepted, keywords)}") from None
        for name, value in bound.arguments.items():
            kind, default = accepted.parameters[name].annotation, accepted.parameters[name].default
            if value is None and default is not Parameter.empty:
                bound.arguments[name] = default
            elif kind is not Any and not isinstance(kind, str) and get_origin(kind) not in (list, tuple):
                bound.arguments[name] = _plain(value)
                check_value(name, kind, bound.arguments[name])
        return command(*bound.args, **bound.kwargs)

    return call


def _hint(accepted: Signature, keywords: Iterable[str]) -> str:
    """Return what to write for the first unknown keyword; an option of the shell may be a field of a group here."""
    for keyword in keywords:
        if keyword in accepted.parameters:
            continue
        for key, group in ((key, parameter.default) for key, parameter in accepted.parameters.items()):
            if is_dataclass(group) and keyword in (field.name for field in fields(group)):
                return f"; write {key}={type(group).__name__}({keyword}=...)"
        near = get_close_matches(keyword, accepted.parameters, n=1)
        return f"; did you mean {near[0]}?" if near else ""
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else path_as_text(value)


def as_source(data: Any) -> "str | Source":
    """Return a name or a path as text, and open any other object as a source."""
    from ..data.open import open_source

    text = path_as_text(data)
    return text if isinstance(text, str) else open_source(text)


def run_folder_of(run: Any) -> str:
    """Return the folder of a run, which may be text, a path or a `Run`. Raises: UserError for anything else."""
    path = getattr(run, "path", run)
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a run is a folder, by str or Path, got {received(run)}")
    return os.fspath(path)


def trained_run(path: str) -> "RunFolder":
    """Open a run's folder or a run on the Hub; log a note if its training has not ended.

    Raises: UserError if it holds no weights yet.
    """
    from ..deploy.hub.fetch import located
    from ..training.run_folder import RunFolder

    run = RunFolder.open(located(path))
    if run.read("run.json")["status"] == "running" and run.which():
        again = shell_word(run.whole if path == str(run.path) else path)
        state = "is still training" if run.in_use else f"is not finished (`viticulture resume {again}` continues it)"
        log(f"note     {path} {state}; using its weights so far")
    return run


def with_short(overrides: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    """Merge overrides and keywords that are short for one. Raises: UserError for a key in both."""
    for key in short.keys() & overrides.keys():
        raise UserError(f"{key} is given twice, as {short[key]!r} and in overrides as {overrides[key]!r}; drop one")
    return {**overrides, **short}


def check_callbacks(callbacks: "Sequence[Callback]") -> None:
    """Raise UserError for anything but callbacks of the Lightning package that trains here."""
    if not callbacks:
        return
    from lightning.pytorch import Callback

    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks must be a list of them, got {received(callbacks)}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                f"callbacks must be lightning.pytorch.Callback objects, got {type(callback).__module__}."
                f"{type(callback).__qualname__}"
            )
