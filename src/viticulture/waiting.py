# SPDX-License-Identifier: Apache-2.0
"""A sign of life while something takes a moment."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer

_SILENT = ContextVar("silent", default=False)


@contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """Nothing is said on standard error of what is under way."""
    token = _SILENT.set(wanted or is_silent())
    try:
        yield
    finally:
        _SILENT.reset(token)


def is_silent() -> bool:
    """Whether a person asked to hear nothing of what is under way."""
    return _SILENT.get()


def quiet_hub() -> None:
    """The Hub's library draws bars and tells of every try; we say in a line what became of it."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


@contextmanager
def waiting(what: str, after: float = 1.0) -> Iterator[None]:
    """Say on standard error what is under way: beside a spinner on a terminal, else in a line, if it takes that long.

    Args:
        what: is done.
        after: seconds until the line is written.
    """
    if is_silent():
        yield
        return
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True, highlight=False).status(what):
            yield
        return
    line = Timer(after, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()
