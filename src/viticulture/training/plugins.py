# SPDX-License-Identifier: Apache-2.0
"""What a recipe names: by a short name what ships with the package, by a dotted path what a person wrote themselves.

    guides: {energy: {class: my_module.AttentionTransfer, weight: 0.1}}

Reading a recipe that names code runs that code, as `import my_module` does. Python looks for it where it always does:
in installed packages and PYTHONPATH, and the command adds the current folder, behind them. Nothing is looked for beside
a recipe or in a run's folder, and weights never lead to an import.
"""

import importlib
import inspect
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

import timm
from timm.models import register_model

from ..errors import UserError, shortened, unknown


def class_of(kind: str, name: Any, shipped: Mapping[str, str], base: type, given: tuple[str, ...] = ()) -> type:
    """The class that a name in a recipe stands for.

    Args:
        kind: what it is, for errors: "guide".
        name: a short name, or MODULE.CLASS.
        shipped: short name -> dotted path.
        base: what it must be.
        given: the first arguments of its constructor, which no recipe sets.

    Raises: UserError if there is no such class, or it cannot be made by a recipe.
    """
    if isinstance(name, str) and name in shipped:
        cls: type = imported(kind, shipped[name])
        return cls
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
    """What a dotted path names. Raises: UserError if the module is not there or broken, or lacks the name."""
    module_name, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        raise UserError(f"{kind} {shortened(repr(path))} is no dotted path, such as my_module.MyClass")
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
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
        )
        said = (str(error).splitlines() or [""])[0]
        raise UserError(f"{kind} {path}: {module_name} fails at {place}: {type(error).__name__}: {said}") from error
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"name in module {module_name}", name, names)
    return getattr(module, name)


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


def _words(parameters: list[inspect.Parameter]) -> str:
    return ", ".join(map(str, parameters)) or "nothing"
