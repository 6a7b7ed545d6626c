# SPDX-License-Identifier: Apache-2.0
"""Text from people and for people: YAML read within bounds, commands that can be pasted back, a terminal left alone."""

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

LONGEST = 2**18
"""Letters of the longest YAML that is read: a study of a thousand candidates; more would take many seconds."""
DEEPEST = 32
"""Levels of brackets or indentation in it."""
_UNPRINTABLE = re.compile(r"[\ud800-\udfff]|\\u[0-9a-f]{4}")
UNSEEN = "\N{REPLACEMENT CHARACTER}"
TURNERS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # of the reading direction


_PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _Loader(*((Composer, _PARSER) if yaml.__with_libyaml__ else (_PARSER,))):  # type: ignore[misc]
    """Plain values only, of bounded depth and size; every key stands once and is text as written (007, yes), and a day
    or a lone = is a name.

    C parses where PyYAML has it, three times as fast; Python composes, or nothing would be bounded.
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
        self.behind: dict[str, int] = {}  # anchor -> values that it stands for

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self.values
        alias = isinstance(event, yaml.AliasEvent)
        self.values += self.behind.get(event.anchor, LONGEST) if alias else 1  # an anchor within itself has no size
        self.depth += 1
        if self.depth > DEEPEST or self.values > LONGEST:
            raise yaml.YAMLError(f"more than {DEEPEST} levels or {LONGEST:,} values")
        node = super().compose_node(parent, index)
        self.depth -= 1
        if event.anchor and not alias:
            self.behind[event.anchor] = self.values - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        known: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key is a word, and no list or section (line {key.start_mark.line + 1})")
            if key.value in known:
                raise yaml.YAMLError(f"{key.value!r} stands twice in a section")
            known.add(key.value)
            key.tag = "tag:yaml.org,2002:" + ("merge" if key.value == "<<" and not key.style else "str")
        return node


class _TextLoader(_Loader):
    """The same, but every plain value is text as written, too: 02146, no, 1:30, null."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (as above)


class _Dumper(yaml.SafeDumper):
    """Writes a value out wherever it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_yaml(text: str, name: str, as_text: bool = False) -> Any:
    """YAML as plain values; keys are text as written.

    Args:
        text: what a person wrote.
        name: of the text, for the error: "recipe mine.yaml".
        as_text: keep every value as it is written, where names stand: 02146 is no number and no is not false.

    Raises: UserError for what is no YAML, or longer or deeper than anybody writes by hand.
    """
    if len(text) > LONGEST:
        raise UserError(f"{name} is too long, {len(text):,} letters; at most {LONGEST:,} are read")
    try:
        return yaml.load(text, _TextLoader if as_text else _Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter two from numbers that are none
        raise UserError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error


def write_yaml(value: Any) -> str:
    """Plain values as YAML that `read_yaml` takes back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def yaml_word(value: Any) -> str:
    """A plain value as YAML in one word of a command, which `read_yaml` takes back."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def command_line(words: Iterable[str]) -> str:
    """A command as one line of printable characters that bash and zsh read back, whatever its words hold."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'" for word in words)


def shell_word(word: object) -> str:
    """A path, or another value, as one word of a command that a message names."""
    return command_line([str(word)])


def comment(line: str) -> str:
    """A line of YAML that says nothing to a program, whatever it holds."""
    return "# " + "".join(letter if letter.isprintable() else _escaped(letter) for letter in line) + "\n"


def _escaped(letter: str) -> str:
    r"""A letter between the quotes of $'...': \n, \x1b, \u202e; \xff for a byte of a name that is not UTF-8."""
    number = ord(letter)
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    if letter == "\n":
        return "\\n"
    if 0xDC80 <= number <= 0xDCFF:  # Python's stand-in for such a byte
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x80 else f"\\U{number:08x}"


def clean(text: str) -> str:
    """Text without characters that steer a terminal or a reader's direction: names come from strangers' files."""
    bad = {c for c in set(text) if c in TURNERS or unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    return "".join(UNSEEN if c in bad else c for c in text) if bad else text


def readable(name: str) -> str:
    """A name that can be printed and written, also where a file system holds bytes that are no text.

    Such a byte becomes `\\udc` and two hexadecimal digits. In a name with one, or with what looks like one, a backslash
    becomes two: different names stay different. A name in UTF-8 is read as such where the locale knows ASCII alone.
    """
    if not _UNPRINTABLE.search(name):
        return name
    with suppress(UnicodeError):
        name = name.encode("utf-8", "surrogateescape").decode("utf-8")
    if not _UNPRINTABLE.search(name):
        return name
    return name.replace("\\", r"\\").encode("utf-8", "backslashreplace").decode("utf-8")


def on_disk(name: str) -> str:
    """A name out of a text as the file system's functions take it in any locale: one that knows ASCII alone has escapes
    for the bytes of other letters."""
    try:
        return os.fsdecode(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # half a letter, which no file's name holds
        return name


def log(message: str) -> None:
    """Print a message to standard error, unless messages are suppressed."""
    if not is_silent():
        print(clean(message), file=STDERR, flush=True)


tell = log
