# SPDX-License-Identifier: Apache-2.0
"""The one error a person can mend: it names the rule, what was received and the likely fix."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in a command, a recipe or the data; the command line prints it without a traceback and exits 2."""


HELPER_LOST = "a process that reads images was killed, most likely for want of memory; free some"
"""Why a worker is gone, and what to do."""


class HelperLost(UserError):
    """A worker process that was killed: nothing that it was to compute will come."""


def is_lost_helper(error: BaseException) -> bool:
    """Return whether torch raised an error because a worker was killed, wherever the program is then."""
    return isinstance(error, HelperLost) or (isinstance(error, RuntimeError) and "DataLoader worker" in str(error))


def is_single_value(error: BaseException) -> bool:
    """Return whether an error is what torch raises where a norm would take the mean of one value."""
    return isinstance(error, ValueError) and "Expected more than 1" in str(error)


def counted(count: int, noun: str) -> str:
    """A number and what it counts: 1 file, 2 files, 1,000 classes."""
    many = f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def some(names: Sequence[str], most: int = 10) -> str:
    """The first names of a list, and how many more there are; a name that would break the line is quoted."""
    rest = len(names) - most
    return ", ".join(map(_on_a_line, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def comma_separated(names: Iterable[str]) -> str:
    """Names with commas between them; one that holds a comma itself is quoted."""
    return ", ".join(map(_whole, names))


SHORTEST = 3
"""Letters of a name that can be near another one."""
LONGEST = 200
"""Letters of what was received that an error shows; no name that is meant is longer."""
MOST_RECEIVED = 4
"""Members of a list or a dictionary that an error shows."""


def unknown(kind: str, name: object, valid: Iterable[str], listed_by: str = "") -> UserError:
    """An error for a name that does not exist, with the nearest names that do.

    Args:
        kind: what was looked for, in the singular: "recipe", "student".
        name: what was asked for, a word as a rule.
        valid: every name that exists; the nearest are shown, or all of them where there are few.
        listed_by: a command that lists them, told where none is near.
    """
    names = sorted(valid)
    word = str(name)
    near = get_close_matches(word, names, n=5, cutoff=0.5) if SHORTEST <= len(word) <= LONGEST else []
    if near:
        hint = f"did you mean {' or '.join(map(_whole, near))}?"
    elif len(names) <= 20:
        hint = f"valid: {comma_separated(names) or 'none'}"
    else:
        hint = f"there are {len(names)}, such as {comma_separated(names[:5])}"
        hint = f"`{listed_by}` lists those that there are" if listed_by else hint
    return UserError(f"unknown {kind} {shortened(repr(name))}; {hint}")


def _whole(name: str) -> str:
    """A name that is seen to be one among others."""
    return repr(name) if "," in name else _on_a_line(name)


def _on_a_line(name: str) -> str:
    """A name without what steers a terminal: a newline within it is no line's end."""
    return name if name.isprintable() else repr(name)


def shortened(text: str) -> str:
    """The beginning of what was received, where it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} letters)"


def received(value: object) -> str:
    """A value as an error shows it, on one line: of an array or a table its type and shape, never its numbers."""
    shape = getattr(value, "shape", None)
    if isinstance(value, bytes | bytearray | memoryview):
        return counted(len(value), "byte")
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} {list(shape)}" + (f" of {value.dtype}" if hasattr(value, "dtype") else "")
    if isinstance(value, list | tuple) and value:
        ends = "[]" if isinstance(value, list) else "()"
        more = ", ..." if len(value) > MOST_RECEIVED else "," * (len(value) == 1 and isinstance(value, tuple))
        return shortened(ends[0] + ", ".join(map(received, value[:MOST_RECEIVED])) + more + ends[1])
    if isinstance(value, dict):
        first = list(value.items())[:MOST_RECEIVED]
        more = ", ..." if len(value) > MOST_RECEIVED else ""
        return shortened("{" + ", ".join(f"{key!r}: {received(item)}" for key, item in first) + more + "}")
    return shortened(" ".join(repr(value).split()))


def as_named(path: object) -> str:
    """A path as the user named it: an address, which nothing here reads, loses one of its slashes as a `Path`."""
    return re.sub(r"^([A-Za-z][\w+.-]+):/(?=[^/])", r"\1://", str(path))
