# SPDX-License-Identifier: Apache-2.0
"""Standard error: a sign of life while something takes a moment, written where it can be and left out elsewhere."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Timer
from typing import Any, TextIO, cast

_SILENT = ContextVar("silent", default=False)


class _Stderr(io.TextIOBase):
    """Standard error as it is at the moment. Text that it does not take (it is closed, its disk is full, its reader is
    gone) is left out, since no work depends on it."""

    @property
    def _stream(self) -> Any:
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # rich puts a stand-in there, which would come back

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError, AttributeError):  # full; closed by Python; None, where it was never open
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            self._stream.flush()

    def isatty(self) -> bool:
        with suppress(OSError, ValueError, AttributeError):
            return bool(self._stream.isatty())
        return False


STDERR = cast(TextIO, _Stderr())
"""For everything that is said while work is under way."""


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
    if STDERR.isatty():
        from rich.console import Console

        with Console(file=STDERR, highlight=False).status(what):
            yield
        return
    line = Timer(after, lambda: print(f"{what} ...", file=STDERR, flush=True))
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()
