# SPDX-License-Identifier: Apache-2.0
"""The command line: argument parsing only. Verbs, options, defaults and help are read off the functions in `api`.

A parameter without default is a word of the command, and so are `data` and `pattern`; the others are options, and
`out` is one everywhere. `list[str]` takes all remaining words, `bool` is a switch. Verbs with `overrides` also take
every recipe key: `--optim.lr 1e-4`.
"""

import argparse
import errno
import inspect
import math
import os
import sys
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from docstring_parser import parse as parse_docstring

from . import api
from .errors import UserError, shortened, unknown
from .text import clean, read_yaml
from .version import VERSION

VERBS: dict[str, Callable[..., Any]] = {
    "train": api.train,
    "compare": api.compare,
    "resume": api.resume,
    "evaluate": api.evaluate,
    "predict": api.predict,
    "data": api.inspect,
    "cache": api.cache,
    "report": api.report,
    "explain": api.explain,
    "export": api.export,
    "links": api.links,
    "localise": api.localise,
    "probe": api.probe,
    "robustness": api.robustness,
    "recipes": api.recipes,
    "tables": api.tables,
    "models": api.models,
    "demo": api.demo,
}

OF_A_TABLE: dict[str, Callable[..., Any]] = {"train": api.train_row, "compare": api.compare_table}  # with --table

PRINTABLE = (api.train, api.train_row)  # verbs with --print-config

SHORT = {  # option -> the recipe key that it is short for
    "--per-class": "data.per_class",
    "--fraction": "data.fraction",
    "--skip-unreadable": "data.skip_unreadable",
    "--image-size": "images.image_size",
    "--student": "student.name",
    "--patch-size": "student.patch_size",
    "--init": "student.init",
    "--epochs": "train.epochs",
    "--batch-size": "train.batch_size",
    "--lr": "optim.lr",
    "--device": "engine.device",
    "--devices": "engine.devices",
}

LONGEST = 1000
"""Letters of an error's beginning, and of its end; what is longer repeats something that was received."""

MAY_BE_LEFT_OUT = ("data", "pattern")  # words of a command that have a default

USAGE = """viticulture grows Vision Transformers on little data.

usage: viticulture VERB ...

{verbs}

  viticulture train ./photos      learn from a folder that holds one folder of images per class
  viticulture VERB --help         what a verb takes
"""


def main(words: list[str] | None = None) -> int:
    """Run one verb. Returns: 0, or 2 after a mistake that a person can mend, said in a line or two."""
    try:
        _run(list(sys.argv[1:] if words is None else words))
    except UserError as error:
        return _refused(str(error))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _refused(f"no file can have so long a name: {shortened(str(error.filename))}")
    except KeyboardInterrupt:
        print("stopped; `viticulture resume RUN` goes on from the last checkpoint", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left
    return 0


def _refused(message: str) -> int:
    """Say what to mend, whatever the words hold that were received."""
    if len(message) > 2 * LONGEST:
        message = f"{message[:LONGEST]} ... {message[-LONGEST:]}"
    print("\n".join(map(clean, f"error: {message}".split("\n"))), file=sys.stderr)
    return 2


def entry() -> NoReturn:
    """The `viticulture` command. Recipes may name modules in the current folder, which are found after all others."""
    with suppress(FileNotFoundError):  # of a folder that was taken away
        if "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
    sys.exit(main())


def number(word: str) -> float:
    """A finite number."""
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(word)
    return value


READERS: dict[Any, Callable[[str], Any]] = {int: int, float: number}
"""Annotation of an option -> what reads its word, where that is no plain text."""


def several(kind: type) -> Callable[[str], tuple[Any, ...]]:
    """What reads a word with commas between its values, of which there is at least one."""

    def read(word: str) -> tuple[Any, ...]:
        values = [value.strip() for value in word.split(",") if value.strip()]
        if not values:
            raise ValueError(word)
        return tuple(READERS.get(kind, kind)(value) for value in values)

    read.__name__ = f"comma-separated {kind.__name__}"
    return read


@dataclass(frozen=True)
class Command:
    """What a person asks for.

    Args:
        verb: the function.
        keywords: its arguments.
        printed: whether only to print the recipe that it would train.
    """

    verb: Callable[..., Any]
    keywords: dict[str, Any]
    printed: bool = False


class Parser(argparse.ArgumentParser):
    """One verb's words and options; a mistake is a UserError."""

    def __init__(self, name: str, verb: Callable[..., Any]) -> None:
        about = parse_docstring(inspect.getdoc(verb) or "")
        self.verb = verb
        super().__init__(prog=f"viticulture {name}", description=about.short_description, add_help=False)
        meaning = {param.arg_name: " ".join((param.description or "").split()) for param in about.params}
        every = inspect.signature(verb).parameters
        self.names = [key for key in every if key != "overrides"]
        self.takes_recipe = "overrides" in every
        for key in self.names:
            parameter = inspect.signature(verb).parameters[key]
            help_text = meaning.get(key, "").replace("%", "%%")
            if is_dataclass(parameter.default):
                self._add_group(parameter.default)
            elif parameter.default is parameter.empty and key == "out":
                self.add_argument(key, nargs="?", default=argparse.SUPPRESS, help="the same without --out")
                self._add_option(key, parameter.annotation, None, help_text)
            elif parameter.default is parameter.empty:
                self.add_argument(key, nargs="+" if parameter.annotation == list[str] else None, help=help_text)
            elif key in MAY_BE_LEFT_OUT:
                self.add_argument(key, nargs="?", default=parameter.default, help=help_text)
            elif parameter.annotation is bool:
                self.add_argument(f"--{key.replace('_', '-')}", dest=key, action="store_true", help=help_text)
            else:
                self._add_option(key, parameter.annotation, parameter.default, help_text)
        if verb in PRINTABLE:
            text = "print the recipe with every key and its value, and stop"
            self.add_argument("--print-config", action="store_true", help=text)

    def _add_group(self, group: Any) -> None:
        """The fields of a dataclass as options; `keywords` puts it together again."""
        about = parse_docstring(inspect.getdoc(type(group)) or "")
        meaning = {param.arg_name: " ".join((param.description or "").split()) for param in about.params}
        for field in fields(group):
            default, text = getattr(group, field.name), meaning[field.name].replace("%", "%%")
            if field.type is bool:
                self.add_argument(f"--{field.name}", action="store_true", help=text)
            else:
                self._add_option(field.name, field.type, default, text)

    def _add_option(self, key: str, kind: Any, default: Any, text: str) -> None:
        """An option; of a tuple, several values with commas between them."""
        text = f"{text} (default: {default})" if default else text
        read = several(get_args(kind)[0]) if get_origin(kind) is tuple else READERS.get(kind, str)
        self.add_argument(f"--{key.replace('_', '-')}", dest=key, type=read, default=default, help=text)

    def command(self, words: list[str]) -> Command:
        """The verb and its arguments out of the words that follow it."""
        overrides, left = split_overrides(words, self.options) if self.takes_recipe else ({}, words)
        given = vars(self.parse_args(left))
        found: dict[str, Any] = {"overrides": overrides} if self.takes_recipe else {}
        if given.get("out", "") is None:
            self.error("the following arguments are required: --out")
        for key in self.names:
            group = inspect.signature(self.verb).parameters[key].default
            if is_dataclass(group) and not isinstance(group, type):
                found[key] = type(group)(**{field.name: given[field.name] for field in fields(group)})
            else:
                found[key] = given[key]
        return Command(self.verb, found, given.get("print_config", False))

    @property
    def options(self) -> set[str]:
        """Every option of the verb itself."""
        return {option for action in self._actions for option in action.option_strings}

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` shows what it takes")


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        lines = (f"  {name:<10} {(inspect.getdoc(verb) or '').splitlines()[0]}" for name, verb in VERBS.items())
        print(USAGE.format(verbs="\n".join(lines)), end="")
        return
    if words[0] == "--version":
        print(VERSION)
        return
    parser, rest = _parser(words)
    if {"-h", "--help"} & set(rest):
        print(parser.format_help() + (_recipe_help() if parser.takes_recipe else ""), end="")
        return
    command = parser.command(rest)
    if command.printed:
        wanted = inspect.signature(api.resolved).parameters
        print(api.resolved(**{key: value for key, value in command.keywords.items() if key in wanted}), end="")
    else:
        api.say(command.verb(**command.keywords))


def read(words: list[str]) -> Command:
    """A command's words, but not the program's name, as what they ask for. Raises: UserError for what is not one."""
    parser, rest = _parser(words)
    return parser.command(rest)


def _parser(words: list[str]) -> tuple[Parser, list[str]]:
    """The parser of a command's verb, and the words that it reads."""
    name, rest = words[0], words[1:]
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    verb: Callable[..., Any] = VERBS[name]
    if any(word.partition("=")[0] == "--table" for word in rest) and name in OF_A_TABLE:
        verb = OF_A_TABLE[name]
    elif name == "compare" and rest[:1] == ["resume"]:
        verb, rest = api.compare_resume, rest[1:]
    return Parser(name, verb), rest


def _recipe_help() -> str:
    lines = (f"  {short} VALUE".ljust(26) + f"short for --{key}" for short, key in SHORT.items())
    return "\nrecipe keys:\n" + "\n".join(lines) + "\n\n" + api.reference()


def split_overrides(words: list[str], own: Container[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Take `--section.key value`, `--section.key=value` and the short options out of a command; values are YAML.

    Args:
        words: of a command.
        own: options that the verb has itself.

    Returns: recipe key -> value, and the words that are left.
    """
    found: dict[str, Any] = {}
    left: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        option, equals, value = word.partition("=")
        if option in own or (option not in SHORT and not (option.startswith("--") and "." in option)):
            left.append(word)
            continue
        if not equals:
            if waiting and not waiting[0].startswith("--"):
                value = waiting.pop(0)
            elif option == "--skip-unreadable":
                value = "true"
            else:
                raise UserError(f"{option} needs a value, as {option} VALUE")
        found[SHORT.get(option, option.removeprefix("--"))] = read_yaml(value, f"the value of {option}, {value!r},")
    return found, left
