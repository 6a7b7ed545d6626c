# SPDX-License-Identifier: Apache-2.0
"""viticulture grows Vision Transformers on little data.

import viticulture
run = viticulture.train("./photos")
run.accuracy, run.predict(["leaf.jpg"])

Every verb of the command line is a function here; those that take seconds to import are imported when first asked for.
A verb and a room of the package may share a name (`cache`, `data`, `export`, `models`, `report`): the room can be
called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__

if TYPE_CHECKING:
    from .api import (
        Run,
        Subsets,
        Terms,
        Where,
        cache,
        compare,
        compare_resume,
        compare_table,
        data,
        demo,
        evaluate,
        explain,
        export,
        inspect,
        links,
        localize,
        models,
        open,
        predict,
        probe,
        push,
        recipes,
        report,
        resume,
        robustness,
        runs,
        serve,
        tables,
        train,
        train_row,
    )
    from .errors import UserError

__all__ = [
    "Run",
    "Subsets",
    "Terms",
    "UserError",
    "Where",
    "__version__",
    "cache",
    "compare",
    "compare_resume",
    "compare_table",
    "data",
    "demo",
    "evaluate",
    "explain",
    "export",
    "inspect",
    "links",
    "localize",
    "models",
    "open",
    "predict",
    "probe",
    "push",
    "recipes",
    "report",
    "resume",
    "robustness",
    "runs",
    "serve",
    "tables",
    "train",
    "train_row",
]

_ROOMS = ("cache", "data", "models", "report")
"""Modules that share their name with a verb."""


class _Room(ModuleType):
    """A module that is called as the verb of its name."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The verb of this name; see `viticulture.api`."""
        return self._verb(*args, **keywords)

    @property
    def __signature__(self) -> Any:
        """The verb's, for `help` and editors."""
        from inspect import signature

        return signature(self._verb)

    @property
    def _verb(self) -> Any:
        return getattr(import_module("viticulture.api"), self.__name__.rpartition(".")[2])


class _Package(ModuleType):
    """This package: whoever imports a room, inside or outside, finds one that can be called.

    Python binds every module that is imported to its package. Were the verbs plain functions, `viticulture.report`
    would be the function until something imports the room, and could not be called from then on.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ROOMS and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    return getattr(import_module(".errors" if name == "UserError" else ".api", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__") and name not in __all__)]
