# SPDX-License-Identifier: Apache-2.0
"""Images that a person's own code opens: a function, or class, of theirs that gives a `Source`.

    python:my_module.open_scans                 open_scans()
    python:my_module.open_scans:/data/scans     open_scans("/data/scans")

The source's reader is handed to worker processes, so its class must stand in a module, not in a function.
"""

import inspect

from ...errors import UserError, received
from ...user_code import blamed, imported
from .source import Source


def open_own(word: str) -> Source:
    """Call what a word names.

    Args:
        word: MODULE.FUNCTION, or MODULE.FUNCTION:ARGUMENT with a text that the function takes.

    Raises: UserError if there is no such function, it fails, or it gives no `Source`.
    """
    path, colon, argument = word.partition(":")
    made, arguments = imported("data", path), [argument] if colon else []
    if not callable(made):
        raise UserError(f"data {path} must be a function that gives a Source, got {received(made)}")
    try:
        inspect.signature(made).bind(*arguments)
    except TypeError as error:
        mend = f"python:{path} is all it takes" if colon else f"write python:{path}:ARGUMENT"
        raise UserError(f"data {path} cannot be called so: {error}; {mend}") from error
    try:
        source = made(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"data {path} fails at {blamed(error)}") from error
    if not isinstance(source, Source):
        raise UserError(f"data {path} must give a {Source.__module__}.{Source.__name__}, got {received(source)}")
    return source
