# SPDX-License-Identifier: Apache-2.0
"""A command's words as a verb and its arguments. Verbs, options, defaults and help are read off the functions in `api`.

A parameter without default is a word of the command, and so are `data`, `pattern` and `folder`; the others are
options, and so are `out`, `table`, `row` and `boxes` everywhere; keyword-only ones are for Python alone. `list[str]`
takes all remaining words, `bool` is a switch. Verbs with `overrides` also take every recipe key: `--optim.lr 1e-4`.
"""

import argparse
import inspect
import math
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from itertools import pairwise, takewhile
from typing import Any, NoReturn, get_args, get_origin

from docstring_parser import parse as parse_docstring

from . import api
from .errors import UserError, shortened, unknown
from .text import read_yaml

VERBS: dict[str, Callable[..., Any]] = {
    "train": api.train,
    "compare": api.compare,
    "resume": api.resume,
    "evaluate": api.evaluate,
    "predict": api.predict,
    "data": api.inspect,
    "cache": api.cache,
    "report": api.report,
    "runs": api.runs,
    "explain": api.explain,
    "export": api.export,
    "serve": api.serve,
    "push": api.push,
    "links": api.links,
    "localize": api.localize,
    "probe": api.probe,
    "robustness": api.robustness,
    "recipes": api.recipes,
    "tables": api.tables,
    "models": api.models,
    "demo": api.demo,
}
ALIASES = {"inspect": "data", "localise": "localize"}  # Python's name, and British spelling
OF_A_TABLE: dict[str, Callable[..., Any]] = {"train": api.train_row, "compare": api.compare_table}  # with --table
PRINTABLE = (api.train, api.train_row)  # verbs with --print-config
SHORT = {  # option -> the recipe key that it is short for, what it says
    "--per-class": ("data.per_class", "training images of every class to learn from"),
    "--fraction": ("data.fraction", "share of the training images to learn from"),
    "--skip-unreadable": ("data.skip_unreadable", "leave out images that cannot be read"),
    "--image-size": ("images.image_size", "side of the images that are learnt from, pixels"),
    "--student": ("student.name", "the network (`viticulture models`)"),
    "--patch-size": ("student.patch_size", "side of its patches, pixels"),
    "--init": ("student.init", "weights to start from: a run, a timm tag, a checkpoint"),
    "--epochs": ("train.epochs", "passes over the training images"),
    "--stop-when-perfect": ("train.stop_when_perfect", "end after so many perfect validations in a row, such as 30"),
    "--batch-size": ("train.batch_size", "images in one step"),
    "--lr": ("optim.lr", "learning rate"),
    "--device": ("engine.device", "auto, cpu, cuda or mps"),
    "--logger": ("engine.logger", "also send measurements to mlflow, wandb or trackio"),
    "--devices": ("engine.devices", "processes on this machine, one device each"),
}
LONGEST = 1000
"""Letters of an error's beginning, and of its end; what is longer repeats something that was received."""
MAY_BE_LEFT_OUT = ("data", "pattern", "folder")  # words of a command that have a default
REQUIRED = ("table", "row", "boxes")  # options that have none
HELP = ("-h", "--help", "--help-all")
MORE = "Every other recipe key is an option too, as --optim.weight_decay 0.1; `{prog} --help-all` lists them.\n"
EVERY = (
    "every recipe key, with its value where neither the recipe nor the command has one (--print-config has theirs):\n"
)


def whole(word: str) -> int:
    """A whole number."""
    try:
        return int(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {shortened(repr(word))}") from error


def number(word: str) -> float:
    """A finite number."""
    with suppress(ValueError):
        if math.isfinite(value := float(word)):
            return value
    raise argparse.ArgumentTypeError(f"must be a number, got {shortened(repr(word))}")


READERS: dict[Any, Callable[[str], Any]] = {int: whole, int | None: whole, float: number}
"""Annotation of an option -> what reads its word, where that is no plain text."""


def several(kind: type) -> Callable[[str], tuple[Any, ...]]:
    """What reads a word with commas between its values, of which there is at least one."""

    def read(word: str) -> tuple[Any, ...]:
        values = [value.strip() for value in word.split(",") if value.strip()]
        if not values:
            raise argparse.ArgumentTypeError(f"takes values with commas between them, got {word!r}")
        return tuple(READERS.get(kind, kind)(value) for value in values)

    return read


def pair(word: str) -> tuple[str, str]:
    """NAME=VALUE as two words."""
    name, equals, value = word.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"must be ROW=WEIGHTS, got {shortened(repr(word))}")
    return name.strip(), value.strip()


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
    printed: bool


class Parser(argparse.ArgumentParser):
    """One verb's words and options; a mistake is a UserError."""

    def __init__(self, name: str, verb: Callable[..., Any]) -> None:
        self.verb = verb
        self.arguments: list[argparse.Action] = []  # words and options, in their order
        summary = (inspect.getdoc(verb) or "").split("\n\n")[0]
        super().__init__(prog=f"viticulture {name}", description=summary, add_help=False, allow_abbrev=False)
        meaning = _meanings(verb)
        every = inspect.signature(verb).parameters
        self.names = [key for key, each in every.items() if key != "overrides" and each.kind is not each.KEYWORD_ONLY]
        self.takes_recipe = "overrides" in every
        self.lists: list[str] = []  # options of several values
        for key in self.names:
            parameter = inspect.signature(verb).parameters[key]
            help_text = meaning.get(key, "").replace("%", "%%")
            if is_dataclass(parameter.default):
                self._add_group(parameter.default)
            elif parameter.default is parameter.empty and key == "out":
                self.add_argument(key, nargs="?", default=argparse.SUPPRESS, help="the same without --out")
                self._add_option(key, parameter.annotation, None, help_text)
            elif parameter.default is parameter.empty and key in REQUIRED:
                self.add_argument(f"--{key}", required=True, help=help_text)
            elif parameter.default is parameter.empty:
                self.add_argument(key, nargs="+" if parameter.annotation == list[str] else None, help=help_text)
            elif key in MAY_BE_LEFT_OUT:
                self.add_argument(key, nargs="?", default=parameter.default, help=help_text)
            elif parameter.annotation is bool:
                self.add_argument(f"--{key.replace('_', '-')}", dest=key, action="store_true", help=help_text)
            else:
                self._add_option(key, parameter.annotation, parameter.default, help_text)
        if verb is api.compare_table:
            text = "ROW=WEIGHTS: what a row starts from; once for each row that needs it"
            self.add_argument("--init", action="append", metavar="ROW=WEIGHTS", type=pair, default=[], help=text)
        if verb in PRINTABLE:
            text = "print the recipe with every key and its value, and stop"
            self.add_argument("--print-config", action="store_true", help=text)

    def add_argument(self, *names: str, **keywords: Any) -> argparse.Action:
        """As argparse's; remembers it."""
        self.arguments.append(super().add_argument(*names, **keywords))
        return self.arguments[-1]

    def _add_group(self, group: Any) -> None:
        """The fields of a dataclass as options; `keywords` puts it together again."""
        meaning = _meanings(type(group))
        for field in fields(group):
            default, text = getattr(group, field.name), meaning[field.name].replace("%", "%%")
            if field.type is bool:
                self.add_argument(f"--{field.name}", action="store_true", help=text)
            else:
                self._add_option(field.name, field.type, default, text)

    def _add_option(self, key: str, kind: Any, default: Any, text: str) -> None:
        """An option; of a tuple, several values with commas between them."""
        option, text = f"--{key.replace('_', '-')}", f"{text} (default: {default})" if default else text
        read = READERS.get(kind, str)
        if get_origin(kind) is tuple:
            self.lists.append(option)
            read = several(get_args(kind)[0])
        self.add_argument(option, dest=key, type=read, default=default, help=text)

    def command(self, words: list[str]) -> Command:
        """The verb and its arguments out of the words that follow it."""
        overrides, left = split_overrides(words, self.options) if self.takes_recipe else ({}, words)
        self._check_options(left)
        self._check_values(left)
        known, beyond = self.parse_known_args(left)
        if beyond:
            commas = [f"; {option} takes values with commas between them" for option in self.lists if option in left]
            self.error(f"unrecognized arguments: {' '.join(beyond)}{''.join(commas)}")
        given = vars(known)
        arguments: dict[str, Any] = {"overrides": overrides} if self.takes_recipe else {}
        if given.get("init"):
            overrides["student.init"] = dict(given["init"])
        if given.get("out", "") is None:
            self.error("the following arguments are required: --out")
        for key in self.names:
            group = inspect.signature(self.verb).parameters[key].default
            if is_dataclass(group) and not isinstance(group, type):
                arguments[key] = type(group)(**{field.name: given[field.name] for field in fields(group)})
            else:
                arguments[key] = given[key]
        return Command(self.verb, arguments, given.get("print_config", False))

    def _check_options(self, words: list[str]) -> None:
        """Refuse an option that does not exist, naming the nearest, before what is missing is said."""
        known = self.options | (self.short.keys() if self.takes_recipe else set())
        for option in (word.partition("=")[0] for word in takewhile("--".__ne__, words)):
            if option.startswith("--") and option not in known:
                begun = [name for name in sorted(known) if name.startswith(option)]
                near = begun[:1] or (get_close_matches(option, sorted(known), n=1) if len(option) <= LONGEST else [])
                own = ", ".join(sorted(self.options)) or "none"
                mend = f"did you mean {near[0]}?" if near else f"options of its own: {own}"
                self.error(f"unknown option {shortened(option)}; {mend}")

    def _check_values(self, words: list[str]) -> None:
        """Refuse an empty word, before its option counts as left out."""
        takers = {option for action in self.arguments if action.nargs != 0 for option in action.option_strings}
        for word, following in pairwise([*words, "--"]):
            option, equals, value = word.partition("=")
            if option in takers and not (value if equals else following):
                raise _without_value(option)

    @property
    def short(self) -> dict[str, tuple[str, str]]:
        """The short options of recipe keys, but for those that mean something of the verb's own."""
        return {option: meant for option, meant in SHORT.items() if option not in self.options}

    def help(self, everything: bool) -> str:
        """What the verb takes; with `everything` all recipe keys too, which imports the classes that they configure."""
        text = self.format_help()
        if self.takes_recipe:
            lines = (f"  {option:<17} {meaning} ({key})" for option, (key, meaning) in self.short.items())
            text += "\n".join(["\nrecipe keys by short names:", *lines]) + "\n\n"
            text += EVERY + api.reference() if everything else MORE.format(prog=self.prog)
        if self.verb in (VERBS[name] for name in OF_A_TABLE):
            text += f"\n`{self.prog} --table TABLE --help` shows what a paper's table takes.\n"
        return text

    @property
    def options(self) -> set[str]:
        """Every option of the verb itself."""
        return {option for action in self.arguments for option in action.option_strings}

    def error(self, message: str) -> NoReturn:
        table = " --table TABLE" if self.verb in OF_A_TABLE.values() else ""
        raise UserError(f"{message}; `{self.prog}{table} --help` shows what it takes")


def parser_of(words: list[str]) -> tuple[Parser, list[str]]:
    """The parser of a command's verb, and the words that it reads."""
    name, rest = ALIASES.get(words[0], words[0]), words[1:]
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    if name == "compare" and rest[:1] == ["resume"]:
        return Parser("compare resume", api.compare_resume), rest[1:]
    grid_of_table = name in OF_A_TABLE and any(word.partition("=")[0] == "--table" for word in rest)
    return Parser(name, (OF_A_TABLE if grid_of_table else VERBS)[name]), rest


def read(words: list[str]) -> Command:
    """A command's words, but not the program's name, as what they ask for. Raises: UserError for what is not one."""
    parser, rest = parser_of(words)
    return parser.command(rest)


def _without_value(option: str) -> UserError:
    return UserError(
        f"{option} needs a value, as {option} VALUE; an empty word, as of an empty shell variable, is none"
    )


def _meanings(documented: Any) -> dict[str, str]:
    """Argument -> what its docstring says of it."""
    about = parse_docstring(inspect.getdoc(documented) or "")
    return {param.arg_name: " ".join((param.description or "").split()) for param in about.params}


def split_overrides(words: list[str], own: Container[str]) -> tuple[dict[str, Any], list[str]]:
    """Take `--section.key value`, `--section.key=value` and the short options out of a command; values are YAML.

    Args:
        words: of a command.
        own: options that the verb has itself.

    Returns: recipe key -> value, and the words that are left.
    """
    overrides: dict[str, Any] = {}
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
        if not value:
            raise _without_value(option)
        key = SHORT[option][0] if option in SHORT else option.removeprefix("--")
        overrides[key] = read_yaml(value, f"the value of {option}, {value!r},")
    return overrides, left
