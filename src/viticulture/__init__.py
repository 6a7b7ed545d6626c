# SPDX-License-Identifier: Apache-2.0
"""viticulture trains small Vision Transformers on small datasets.

import viticulture
run = viticulture.train("./photos")
run.accuracy, run.predict(["leaf.jpg"])

Every command of the shell is a function here; slow imports happen at their first use. Where a command and a subpackage
share a name (`cache`, `data`, `models`, `report`), the subpackage can be called.
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .errors import UserError as UserError

if "OMP_WAIT_POLICY" not in os.environ:
    # GNU's OpenMP reads it when PyTorch is loaded: threads that wait for each other give way after some 10 us. By
    # spinning they keep other threads of a busy machine from running (benchmarks/log/speed.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_CALLABLE = ("cache", "data", "models", "report")  # modules that share their name with a command


class _CallableModule(ModuleType):
    """A module that can be called as the command of its name."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run the command; see `viticulture.api`."""
        return self._command(*args, **keywords)

    @property
    def __signature__(self) -> Any:
        """The command's signature, for `help` and editors."""
        from inspect import signature

        return signature(self._command)

    @property
    def _command(self) -> Any:
        return getattr(import_module("viticulture.api"), self.__name__.rpartition(".")[2])


class _Package(ModuleType):
    """This package, which makes the modules in `_CALLABLE` callable.

    Python binds every imported submodule to its package. If the commands were plain functions, `viticulture.report`
    would be the function until something imports the subpackage, and could not be called from then on.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLABLE and isinstance(value, ModuleType):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _CALLABLE:
        return import_module(f".{name}", __name__)
    if name == "UserError":
        return import_module(".errors", __name__).UserError
    if not name.startswith("__") or name == "__all__":
        api = import_module(".api", __name__)
        if name == "__all__":
            return [*api.__all__, "UserError", "__version__"]
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    public = __getattr__("__all__")
    return [*public, *(name for name in globals() if name.startswith("__") and name not in public)]
