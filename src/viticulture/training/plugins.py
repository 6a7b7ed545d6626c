# SPDX-License-Identifier: Apache-2.0
"""A student of a person's own, made known to timm."""

import inspect
import warnings

import timm
from timm.models import register_model

from ..dotted import imported
from ..errors import UserError, shortened


def register_student(name: str) -> None:
    """Import the module of a student MODULE.FUNCTION and make the function known to timm, unless its decorator has.

    A name that timm knows, with or without a tag, is left to `create_student`.

    Raises: UserError if it cannot be had, is no function, or timm has another network of that name.
    """
    if "." not in name or timm.is_model(name.partition(".")[0]):
        return
    function, short = imported("student", name), name.rpartition(".")[2]
    if not inspect.isfunction(function):
        raise UserError(f"student {name} must be a function that timm can register, got {shortened(repr(function))}")
    if function.__name__ != short:
        raise UserError(f"student {name} is called {function.__name__} where it is defined; name it so")
    known = timm.model_entrypoint(short) if timm.is_model(short) else None
    if known is not None and known.__module__ != function.__module__:
        raise UserError(f"student {name}: timm has a network {short!r} already; give the function another name")
    if known is not function:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a module that was imported anew
            register_model(function)
