# SPDX-License-Identifier: Apache-2.0
"""Progress messages on standard error, which never fail and can be silenced."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Timer
from typing import Any, TextIO, cast

_SILENT = ContextVar("silent", default=False)


class _Stderr(io.TextIOBase):
    """The current standard error. Text that it does not take (it is closed, its disk is full, its reader is gone) is
    dropped, since no work depends on it."""

    @property
    def _stream(self) -> Any:
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # rich's proxy would call this object again

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


STDERR = cast(TextIO, _Stderr())  # for all messages while work is in progress


@contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Suppress progress messages in the block."""
    token = _SILENT.set(silent or is_silent())
    try:
        yield
    finally:
        _SILENT.reset(token)


def is_silent() -> bool:
    """Return whether progress messages are suppressed."""
    return _SILENT.get()


def quiet_hub() -> None:
    """Turn off huggingface_hub's progress bars and retry messages; our own message reports the outcome."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


@contextmanager
def waiting(message: str, after: float = 1.0) -> Iterator[None]:
    """Print what the block is doing: next to a spinner on a terminal, else as a line after `after` seconds."""
    if is_silent():
        yield
        return
    if STDERR.isatty():
        from rich.console import Console

        with Console(file=STDERR, highlight=False).status(message):
            yield
        return
    line = Timer(after, lambda: print(f"{message} ...", file=STDERR, flush=True))
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()
