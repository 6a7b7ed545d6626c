# SPDX-License-Identifier: Apache-2.0
"""Code of the user's own: which of it they have trained with, and a student of theirs made known to timm."""

import inspect
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress

import timm
from timm.models import register_model

from ..cache import cache_folder
from ..disk import read_text, write_whole
from ..dotted import NAMED, check_known, imported, only_known
from ..errors import UserError, received

CODE = "python:"
"""How the name of data begins that a function of the user's own opens."""
USED = "code.txt"
"""In the cache: dotted paths of code that trainings were begun with, one a line."""


def known_code() -> set[str]:
    """Return the dotted paths of code that trainings of this user were begun with."""
    with suppress(UserError):  # none yet
        return set(read_text(cache_folder() / USED, "file").split("\n"))
    return set()


def keep_known_code(*data: str) -> None:
    """Write down the code that this process has imported for the user, and what opens `data`, so that what it makes
    opens later."""
    NAMED.update(_code_of(data))
    if NAMED and not (known := known_code()) >= NAMED:
        write_whole(cache_folder() / USED, "\n".join(sorted(NAMED | known)))


def _code_of(data: Iterable[str]) -> list[str]:
    """Dotted paths of the functions that open data of the form python:MODULE.FUNCTION[:ARGUMENT]."""
    return [word.removeprefix(CODE).partition(":")[0] for word in data if word.startswith(CODE)]


def check_data(place: object, *data: str) -> None:
    """Raises: UserError for data in a file that code opens which the user has not named."""
    with of_a_file(place):
        for path in _code_of(data):
            check_known(path)


def of_a_file(place: object) -> AbstractContextManager[None]:
    """Within the block, the user did not name the code that is named, but a file of a run, a study or a budget."""
    return only_known(place, known_code())


def register_student(name: str) -> None:
    """Import the module of a student MODULE.FUNCTION and make the function known to timm, unless its decorator has.

    A name that timm knows, with or without a tag, is left to `create_student`.

    Raises: UserError if it cannot be had, is no function, or timm has another network of that name.
    """
    if "." not in name or timm.is_model(name.partition(".")[0]):
        return
    function, short = imported("student", name), name.rpartition(".")[2]
    if not inspect.isfunction(function):
        raise UserError(f"student {name} must be a function that timm can register, got {received(function)}")
    if function.__name__ != short:
        raise UserError(f"student {name} is called {function.__name__} where it is defined; name it so")
    known = timm.model_entrypoint(short) if timm.is_model(short) else None
    if known is not None and known.__module__ != function.__module__:
        raise UserError(f"student {name}: timm has a network {short!r} already; give the function another name")
    if known is not function:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a module that was imported anew
            register_model(function)
