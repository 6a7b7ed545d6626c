# SPDX-License-Identifier: Apache-2.0
"""The one error a person can mend: it names the rule, what was received and the likely fix."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in a command, a recipe or the data; the command line prints it without a traceback and exits 2."""


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


def described(value: object) -> str:
    """What was received, on one line: of arrays, tensors and tables the shape, not the numbers."""
    if shape := getattr(value, "shape", ()):
        kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
        return f"{type(value).__name__} of shape {list(shape)}{kind and f' and type {kind}'}"
    if isinstance(value, tuple | list) and any(map(_has_shape, value)):
        return f"{type(value).__name__} of {some([described(each) for each in value], 3)}"
    if isinstance(value, dict) and any(map(_has_shape, value.values())):
        return f"dict of {some([f'{key}: {described(each)}' for key, each in value.items()], 3)}"
    return shortened(" ".join(repr(value).split()))


def _has_shape(value: object) -> bool:
    return bool(getattr(value, "shape", ()))


def as_named(path: object) -> str:
    """A path as the user named it: an address, which nothing here reads, loses one of its slashes as a `Path`."""
    return re.sub(r"^([A-Za-z][\w+.-]+):/(?=[^/])", r"\1://", str(path))
