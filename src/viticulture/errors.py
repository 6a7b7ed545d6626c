# SPDX-License-Identifier: Apache-2.0
"""The user error, which states the rule, the received value and the likely fix, and its formatting."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class Terminated(KeyboardInterrupt):
    """SIGTERM, sent by `kill` and by job schedulers; handled like Ctrl-C."""


class UserError(ValueError):
    """A mistake in a command, a recipe or the data; the command line prints it without a traceback and exits with 2."""


HELPER_LOST = "a worker process was killed, most likely for lack of memory; free some"


class HelperLost(UserError):
    """A worker process was killed."""


def is_lost_helper(error: BaseException) -> bool:
    """Return whether an error means that a worker process was killed."""
    return isinstance(error, HelperLost) or (isinstance(error, RuntimeError) and "DataLoader worker" in str(error))


def is_single_value(error: BaseException) -> bool:
    """Return whether torch raised an error because a norm would average a single value."""
    return isinstance(error, ValueError) and "Expected more than 1" in str(error)


def counted(count: int, noun: str) -> str:
    """Format a count: 1 file, 2 files, 1,000 classes."""
    many = f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def some(names: Sequence[str], limit: int = 10) -> str:
    """Format the first names of a list and how many more there are; unprintable names are quoted."""
    rest = len(names) - limit
    return ", ".join(map(_on_a_line, names[:limit])) + (f" and {rest} more" if rest > 0 else "")


def comma_separated(names: Iterable[str]) -> str:
    """Join names with commas; a name with a comma is quoted."""
    return ", ".join(map(_whole, names))


MIN_MATCHED = 3  # minimum characters of a name to look for similar ones
MAX_SHOWN = 200  # maximum characters of a received value in an error
MAX_ITEMS = 4  # maximum items of a received list or dictionary in an error


def unknown(kind: str, name: object, valid: Iterable[str], listed_by: str = "") -> UserError:
    """Return an error for an unknown name, with the nearest valid ones. `valid`: all valid names; the nearest are
    listed, or all if there are few.
    """
    names = sorted(valid)
    word = str(name)
    near = get_close_matches(word, names, n=5, cutoff=0.5) if MIN_MATCHED <= len(word) <= MAX_SHOWN else []
    if near:
        hint = f"did you mean {' or '.join(map(_whole, near))}?"
    elif len(names) <= 20:
        hint = f"valid: {comma_separated(names) or 'none'}"
    else:
        hint = f"there are {len(names)}, such as {comma_separated(names[:5])}"
        hint = f"`{listed_by}` lists them" if listed_by else hint
    return UserError(f"unknown {kind} {shortened(repr(name))}; {hint}")


def _whole(name: str) -> str:
    """Quote a name that contains a comma."""
    return repr(name) if "," in name else _on_a_line(name)


def _on_a_line(name: str) -> str:
    """Quote a name with control characters."""
    return name if name.isprintable() else repr(name)


def shortened(text: str) -> str:
    """Cut a long received text."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def received(value: object) -> str:
    """Format a received value on one line; of an array or a table only its type and shape."""
    shape = getattr(value, "shape", None)
    if isinstance(value, bytes | bytearray | memoryview):
        return counted(len(value), "byte")
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} {list(shape)}" + (f" of {value.dtype}" if hasattr(value, "dtype") else "")
    if isinstance(value, list | tuple) and value:
        ends = "[]" if isinstance(value, list) else "()"
        more = ", ..." if len(value) > MAX_ITEMS else "," * (len(value) == 1 and isinstance(value, tuple))
        return shortened(ends[0] + ", ".join(map(received, value[:MAX_ITEMS])) + more + ends[1])
    if isinstance(value, dict):
        first = list(value.items())[:MAX_ITEMS]
        more = ", ..." if len(value) > MAX_ITEMS else ""
        return shortened("{" + ", ".join(f"{key!r}: {received(item)}" for key, item in first) + more + "}")
    return shortened(" ".join(repr(value).split()))


def as_named(path: object) -> str:
    """Return a path as the user named it; a URL, which is not supported, loses a slash as a `Path`."""
    return re.sub(r"^([A-Za-z][\w+.-]+):/(?=[^/])", r"\1://", str(path))
