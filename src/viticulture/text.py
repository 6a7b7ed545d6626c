# SPDX-License-Identifier: Apache-2.0
"""Untrusted and printed text: YAML within bounds, commands that can be pasted into a shell, no control characters."""

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import yaml
from yaml.composer import Composer

from .errors import UserError
from .waiting import STDERR, is_silent

MAX_LENGTH = 2**18  # maximum characters of YAML (a study of a thousand candidates); more would take many seconds
MAX_DEPTH = 32  # maximum levels of brackets or indentation in it
_UNPRINTABLE = re.compile(r"[\ud800-\udfff]|\\u[0-9a-f]{4}")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


_PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _Loader(*((Composer, _PARSER) if yaml.__with_libyaml__ else (_PARSER,))):  # type: ignore[misc]
    """Plain values of bounded depth and size; keys are unique text as written (007, yes), dates and a lone = are text.

    PyYAML's C parser is three times as fast; composing stays in Python to enforce the bounds.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML declares it)
        letter: [
            (tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in ("timestamp", "value", "merge")
        ]
        for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        _PARSER.__init__(self, stream)
        self.anchors: dict[str, yaml.Node] = {}  # as Composer does
        self.depth = self.values = 0
        self.sizes: dict[str, int] = {}  # anchor -> number of values

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self.values
        alias = isinstance(event, yaml.AliasEvent)
        self.values += self.sizes.get(event.anchor, MAX_LENGTH) if alias else 1  # an anchor in itself: no size
        self.depth += 1
        if self.depth > MAX_DEPTH or self.values > MAX_LENGTH:
            raise yaml.YAMLError(f"more than {MAX_DEPTH} levels or {MAX_LENGTH:,} values")
        node = super().compose_node(parent, index)
        self.depth -= 1
        if event.anchor and not alias:
            self.sizes[event.anchor] = self.values - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key must be text, not a list or section (line {key.start_mark.line + 1})")
            if key.value in seen:
                raise yaml.YAMLError(f"{key.value!r} appears twice in a section")
            seen.add(key.value)
            key.tag = "tag:yaml.org,2002:" + ("merge" if key.value == "<<" and not key.style else "str")
        return node


class _TextLoader(_Loader):
    """Keeps every plain value as text: 02146, no, 1:30, null."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (as above)


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_yaml(text: str, name: str, as_text: bool = False) -> Any:
    """Parse YAML to plain values; keys are text as written. `as_text`: keep values as text, too, where they are names
    (02146, no). Raises: UserError for invalid, too long or too deep YAML.
    """
    if len(text) > MAX_LENGTH:
        raise UserError(f"{name} is too long: {len(text):,} characters, at most {MAX_LENGTH:,} are allowed")
    try:
        return yaml.load(text, _TextLoader if as_text else _Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter two from malformed numbers
        raise UserError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error


def write_yaml(value: Any) -> str:
    """Format plain values as YAML for `read_yaml`."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def yaml_word(value: Any) -> str:
    """Format a plain value as YAML on one line, for a command."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def command_line(words: Iterable[str]) -> str:
    """Quote words as one line of printable characters for bash and zsh."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'" for word in words)


def shell_word(word: object) -> str:
    """Quote a path or another value for a command in a message."""
    return command_line([str(word)])


def comment(line: str) -> str:
    """Format a line as a YAML comment."""
    return "# " + "".join(letter if letter.isprintable() else _escaped(letter) for letter in line) + "\n"


def _escaped(letter: str) -> str:
    r"""Escape a character within $'...': \n, \x1b, \u202e; \xff for a byte that is not UTF-8."""
    number = ord(letter)
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    if letter == "\n":
        return "\\n"
    if 0xDC80 <= number <= 0xDCFF:  # surrogateescape
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x80 else f"\\U{number:08x}"


def clean(text: str) -> str:
    """Replace control and bidirectional characters, which names in untrusted files may contain."""
    bad = {c for c in set(text) if c in BIDI_CONTROLS or unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    return "".join(REPLACEMENT if c in bad else c for c in text) if bad else text


def readable(name: str) -> str:
    """Return a printable form of a file name that may contain undecodable bytes.

    Such a byte becomes `\\udc` and two hexadecimal digits; in a name with one, or what looks like one, backslashes are
    doubled, so that names stay distinct. UTF-8 is decoded even in an ASCII locale.
    """
    if not _UNPRINTABLE.search(name):
        return name
    with suppress(UnicodeError):
        name = name.encode("utf-8", "surrogateescape").decode("utf-8")
    if not _UNPRINTABLE.search(name):
        return name
    return name.replace("\\", r"\\").encode("utf-8", "backslashreplace").decode("utf-8")


def on_disk(name: str) -> str:
    """Encode a name from a text file for the file system in any locale; an ASCII locale escapes other bytes."""
    try:
        return os.fsdecode(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # a lone surrogate, which no file name contains
        return name


def log(message: str) -> None:
    """Print a message to standard error, unless messages are suppressed."""
    if not is_silent():
        print(clean(message), file=STDERR, flush=True)
