# SPDX-License-Identifier: Apache-2.0
"""Classes and functions named in a recipe or a command: short names of the package, dotted paths of the user's code.

    guides: {energy: {class: my_module.AttentionTransfer, weight: 0.1}}
    viticulture train python:my_module.open_scans

Reading a name of code runs that code, as `import my_module` does. Python searches installed packages and PYTHONPATH;
the command adds the current folder after them. A recipe's or run's folder is never searched, and weights never lead to
an import. A name in the files of a run, a study or a budget, whose author may be unknown, is imported only where the
user has named that code (`only_known`).
"""

import importlib
import inspect
import os
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from .cache import cache_folder
from .disk import read_text, write_whole
from .errors import UserError, shortened, unknown

NAMED: set[str] = set()  # dotted paths of code that this process has imported because the user named it
TRUST = "VITICULTURE_TRUST"
"""Environment variable: modules, or dotted paths, that files of others may name, with commas between them."""
_GUARD: ContextVar[tuple[str, Collection[str]] | None] = ContextVar("_GUARD", default=None)


@contextmanager
def only_known(place: object, known: Collection[str]) -> Iterator[None]:
    """Within the block, names come from a file: import no code that the user has not named."""
    token = _GUARD.set((str(place), known))
    try:
        yield
    finally:
        _GUARD.reset(token)


def check_known(path: str) -> None:
    """Raises: UserError for a dotted path that a file names (`only_known`) and the user has not."""
    if (guard := _GUARD.get()) is None:
        return
    place, known = guard
    trusted = {*NAMED, *known, *filter(None, os.environ.get(TRUST, "").split(","))}
    if not any(path == each or path.startswith(f"{each}.") for each in trusted):
        raise UserError(
            f"{place} names code of its author, {shortened(path)}, which no training here has used; read that "
            f"code, and if you trust it, name it in the environment: {TRUST}={shortened(path.partition('.')[0])}"
        )


def class_of(kind: str, name: Any, shipped: Mapping[str, str], base: type, given: tuple[str, ...] = ()) -> type:
    """Return the class that a name in a recipe stands for.

    Args:
        shipped: short name -> dotted path.
        given: the first arguments of its constructor, which no recipe sets.

    Raises: UserError if there is no such class, or it cannot be made by a recipe.
    """
    if isinstance(name, str) and name in shipped:
        module, _, attribute = shipped[name].rpartition(".")
        shipped_class: type = getattr(importlib.import_module(module), attribute)
        return shipped_class
    if not isinstance(name, str) or "." not in name:
        raise unknown(kind, name, shipped)
    cls = imported(kind, name)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise UserError(
            f"{kind} {name} must be a subclass of {base.__module__}.{base.__name__}, got {shortened(repr(cls))}"
        )
    if left := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UserError(f"{kind} {name} must define {', '.join(left)}")
    parameters = list(inspect.signature(cls).parameters.values())
    if tuple(parameter.name for parameter in parameters[: len(given)]) != given:
        raise UserError(
            f"the constructor of {kind} {name} must take {', '.join(given)} first, got {_words(parameters)}"
        )
    if bare := [p.name for p in parameters[len(given) :] if p.annotation is p.empty or p.kind is p.VAR_KEYWORD]:
        raise UserError(
            f"the constructor of {kind} {name} must name a type for each keyword; {', '.join(bare)} has none"
        )
    return cls


def imported(kind: str, path: str) -> Any:
    """Import what a dotted path names. Raises: UserError if the module is not there or broken, or lacks the name, or as
    `check_known`."""
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise UserError(f"{kind} {shortened(repr(path))} is no dotted path, such as my_module.MyClass")
    check_known(path)
    if _GUARD.get() is None:
        NAMED.add(path)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{kind} {path}: module {module_name} needs {error.name}, which is not installed"
            ) from error
        raise UserError(
            f"{kind} {path}: there is no module {module_name}; start where {module_name.split('.')[0]}.py lies, or "
            "add its folder to PYTHONPATH"
        ) from error
    except Exception as error:
        raise UserError(f"{kind} {path}: {module_name} fails at {blamed(error)}") from error
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"name in module {module_name}", name, names)
    return getattr(module, name)


def blamed(error: Exception) -> str:
    """Return where an exception of the user's code arose, and its message, in a line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
    return f"{place}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _words(parameters: list[inspect.Parameter]) -> str:
    return ", ".join(map(str, parameters)) or "nothing"


CODE = "python:"  # prefix of data that a function of the user's opens
USED = "code.txt"  # in the cache: dotted paths of code that trainings were begun with, one a line


def known_code() -> set[str]:
    """Return the dotted paths of code that trainings of this user were begun with."""
    with suppress(UserError):  # none yet
        return set(read_text(cache_folder() / USED, "file").split("\n"))
    return set()


def keep_known_code(*data: str) -> None:
    """Record the code that this process has imported for the user, and what opens `data`, as trusted."""
    NAMED.update(_code_of(data))
    if NAMED and not (known := known_code()) >= NAMED:
        write_whole(cache_folder() / USED, "\n".join(sorted(NAMED | known)))


def _code_of(data: Iterable[str]) -> list[str]:
    """Dotted paths of the functions that open data of the form python:MODULE.FUNCTION[:ARGUMENT]."""
    return [word.removeprefix(CODE).partition(":")[0] for word in data if word.startswith(CODE)]


def check_data(place: object, *data: str) -> None:
    """Raises: UserError for data, named in a file, that is opened by code which the user has not named."""
    with of_a_file(place):
        for path in _code_of(data):
            check_known(path)


def of_a_file(place: object) -> AbstractContextManager[None]:
    """Within the block, code is named by a file of a run, a study or a budget, not by the user."""
    return only_known(place, known_code())
