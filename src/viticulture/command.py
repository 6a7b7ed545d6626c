# SPDX-License-Identifier: Apache-2.0
"""Parse the command line into a function of `api` and its arguments.

Commands, options, defaults and help come from the signatures and docstrings in `api`. A parameter without a default is
a positional argument, and so are `data`, `pattern` and `folder`; all others are options, and so are `out`, `table`,
`row`, `boxes` and `search` everywhere. Keyword-only parameters are for Python alone. `list[str]` takes all remaining
arguments, `bool` is a flag. Commands with `overrides` also take every recipe key: `--optim.lr 1e-4`.
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

COMMANDS: dict[str, Callable[..., Any]] = {
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
    "review": api.review,
    "next": api.label_next,
    "robustness": api.robustness,
    "recipes": api.recipes,
    "tables": api.tables,
    "models": api.models,
    "demo": api.demo,
}
ALIASES = {"inspect": "data", "localise": "localize"}  # Python's name, and British spelling
WITH_TABLE: dict[str, Callable[..., Any]] = {"train": api.train_row, "compare": api.compare_table}  # by --table
PRINTABLE = (api.train, api.train_row)  # commands with --print-config
SHORT = {  # option -> the recipe key it sets, help
    "--per-class": ("data.per_class", "training images per class"),
    "--fraction": ("data.fraction", "share of the training images to train on"),
    "--skip-unreadable": ("data.skip_unreadable", "leave out images that cannot be read"),
    "--image-size": ("images.image_size", "side of the training images, pixels"),
    "--student": ("student.name", "the network (`viticulture models`)"),
    "--patch-size": ("student.patch_size", "side of its patches, pixels"),
    "--init": ("student.init", "start from a run, timm model, hf-hub:REPO, ARCHITECTURE=FILE"),
    "--teacher": ("teacher", "networks that teach the student, by commas; as for --init"),
    "--unlabeled": ("data.unlabeled", "a folder or archive of more images, without labels"),
    "--epochs": ("train.epochs", "passes over the training images"),
    "--stop-when-perfect": ("train.stop_when_perfect", "stop after so many perfect validations in a row"),
    "--batch-size": ("train.batch_size", "images per step"),
    "--lr": ("optim.lr", "learning rate"),
    "--device": ("engine.device", "auto, cpu, cuda or mps"),
    "--logger": ("engine.logger", "also log to mlflow, wandb or trackio"),
    "--devices": ("engine.devices", "processes on this machine, one device each"),
}
MAX_ERROR = 1000  # characters of an error's beginning, and of its end, that are printed; a longer one repeats its input
OPTIONAL = ("data", "pattern", "folder")  # positional arguments with a default
REQUIRED = ("table", "row", "boxes", "search")  # options without one
HELP = ("-h", "--help", "--help-all")
MORE = "Every other recipe key is an option too, such as --optim.weight_decay 0.1; `{prog} --help-all` lists them.\n"
EVERY = "every recipe key, with its default (--print-config prints the recipe's values):\n"


def integer(word: str) -> int:
    """Parse an integer."""
    try:
        return int(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {shortened(repr(word))}") from error


def number(word: str) -> float:
    """Parse a finite number."""
    with suppress(ValueError):
        if math.isfinite(value := float(word)):
            return value
    raise argparse.ArgumentTypeError(f"must be a number, got {shortened(repr(word))}")


CONVERTERS: dict[Any, Callable[[str], Any]] = {int: integer, int | None: integer, float: number}
"""Annotation of an option -> what parses it, where that is not plain text."""


def comma_list(kind: type) -> Callable[[str], tuple[Any, ...]]:
    """Return a parser of one or more values separated by commas."""

    def parse(word: str) -> tuple[Any, ...]:
        values = [value.strip() for value in word.split(",") if value.strip()]
        if not values:
            raise argparse.ArgumentTypeError(f"takes values separated by commas, got {word!r}")
        return tuple(CONVERTERS.get(kind, kind)(value) for value in values)

    return parse


def pair(word: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, equals, value = word.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"must be ROW=WEIGHTS, got {shortened(repr(word))}")
    return name.strip(), value.strip()


@dataclass(frozen=True)
class Command:
    """A parsed command line."""

    function: Callable[..., Any]  # in `api`
    keywords: dict[str, Any]  # its arguments
    print_config: bool  # only print the recipe


class Parser(argparse.ArgumentParser):
    """The arguments of one command; mistakes raise UserError."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.function = function
        self.arguments: list[argparse.Action] = []
        self.lists: list[str] = []  # options of several values
        summary = (inspect.getdoc(function) or "").split("\n\n")[0]
        super().__init__(prog=f"viticulture {name}", description=summary, add_help=False, allow_abbrev=False)
        every = inspect.signature(function).parameters
        self.takes_recipe = "overrides" in every
        self.parameters = {k: p for k, p in every.items() if k != "overrides" and p.kind is not p.KEYWORD_ONLY}
        meaning = _meanings(function)
        for key, parameter in self.parameters.items():
            default, text = parameter.default, meaning.get(key, "")
            if is_dataclass(default):
                described = _meanings(type(default))
                for field in fields(default):
                    self._add(field.name, field.type, getattr(default, field.name), described[field.name])
            elif default is not parameter.empty and key not in OPTIONAL:
                self._add(key, parameter.annotation, default, text)
            elif key in REQUIRED:
                several = "+" if parameter.annotation == list[str] else None
                self.add_argument(f"--{key}", required=True, nargs=several, help=text)
            elif key == "out":
                self.add_argument(key, nargs="?", default=argparse.SUPPRESS, help="same as --out")
                self._add(key, parameter.annotation, None, text)
            elif key in OPTIONAL and default is not parameter.empty:
                self.add_argument(key, nargs="?", default=default, help=text)
            else:
                self.add_argument(
                    key,
                    nargs="+" if list[str] in (parameter.annotation, *get_args(parameter.annotation)) else None,
                    help=text,
                )
        if function is api.compare_table:
            text = "ROW=WEIGHTS: what a row starts from; once per row that needs it"
            self.add_argument("--init", action="append", metavar="ROW=WEIGHTS", type=pair, default=[], help=text)
        if function in PRINTABLE:
            text = "print the complete recipe and stop"
            self.add_argument("--print-config", action="store_true", help=text)

    def add_argument(self, *names: str, **keywords: Any) -> argparse.Action:
        """Add an argument as argparse does, and remember it."""
        keywords["help"] = keywords["help"].replace("%", "%%")
        self.arguments.append(super().add_argument(*names, **keywords))
        return self.arguments[-1]

    def _add(self, key: str, kind: Any, default: Any, text: str) -> None:
        """Add an option; a tuple takes several values separated by commas."""
        option = f"--{key.replace('_', '-')}"
        if kind is bool:
            self.add_argument(option, dest=key, action="store_true", help=text)
            return
        parse = CONVERTERS.get(kind, str)
        if get_origin(kind) is tuple:
            self.lists.append(option)
            parse = comma_list(get_args(kind)[0])
        text += f" (default: {default})" if default else ""
        self.add_argument(option, dest=key, type=parse, default=default, help=text)

    def command(self, words: list[str]) -> Command:
        """Parse the words that follow the command's name."""
        overrides, left = split_overrides(words, self.options) if self.takes_recipe else ({}, words)
        self._check_options(left)
        self._check_values(left)
        parsed, beyond = self.parse_known_args(left)
        if beyond:
            commas = [f"; {option} takes values separated by commas" for option in self.lists if option in left]
            self.error(f"unrecognized arguments: {' '.join(beyond)}{''.join(commas)}")
        values = vars(parsed)
        if values.get("out", "") is None:
            self.error("the following arguments are required: --out")
        if values.get("init"):
            overrides["student.init"] = dict(values["init"])
        arguments: dict[str, Any] = {"overrides": overrides} if self.takes_recipe else {}
        for key, parameter in self.parameters.items():
            if is_dataclass(group := parameter.default) and not isinstance(group, type):
                arguments[key] = type(group)(**{field.name: values[field.name] for field in fields(group)})
            else:
                arguments[key] = values[key]
        return Command(self.function, arguments, values.get("print_config", False))

    def _check_options(self, words: list[str]) -> None:
        """Refuse an option that does not exist, with the nearest one, before argparse reports what is missing."""
        valid = self.options | (self.short.keys() if self.takes_recipe else set())
        for option in (word.partition("=")[0] for word in takewhile("--".__ne__, words)):
            if option.startswith("--") and option not in valid:
                near = [name for name in sorted(valid) if name.startswith(option)]
                near = near or (get_close_matches(option, sorted(valid), n=1) if len(option) <= MAX_ERROR else [])
                hint = f"did you mean {near[0]}?" if near else f"valid: {', '.join(sorted(self.options)) or 'none'}"
                self.error(f"unknown option {shortened(option)}; {hint}")

    def _check_values(self, words: list[str]) -> None:
        """Refuse an empty value, which would otherwise mean that the option was left out."""
        takers = {option for action in self.arguments if action.nargs != 0 for option in action.option_strings}
        for word, following in pairwise([*words, "--"]):
            option, equals, value = word.partition("=")
            if option in takers and not (value if equals else following):
                raise _without_value(option)

    @property
    def short(self) -> dict[str, tuple[str, str]]:
        """The short options of recipe keys that do not name an option of the command itself."""
        return {option: meaning for option, meaning in SHORT.items() if option not in self.options}

    def help(self, everything: bool) -> str:
        """Return the help; with `everything` also of all recipe keys, which imports the classes they configure."""
        text = self.format_help()
        if self.takes_recipe:
            lines = (f"  {option:<19} {meaning} ({key})" for option, (key, meaning) in self.short.items())
            text += "\n".join(["\nshort options of recipe keys:", *lines]) + "\n\n"
            text += EVERY + api.reference() if everything else MORE.format(prog=self.prog)
        if self.function in (COMMANDS[name] for name in WITH_TABLE):
            text += f"`{self.prog} --table TABLE --help` shows the options for a paper's table.\n"
        if self.function is api.compare:
            text += f"`{self.prog} --search KEY=LOW..HIGH --help` shows those for a search of recipe keys.\n"
        return text

    @property
    def options(self) -> set[str]:
        """The options of the command itself."""
        return {option for action in self.arguments for option in action.option_strings}

    def error(self, message: str) -> NoReturn:
        table = " --table TABLE" if self.function in WITH_TABLE.values() else ""
        raise UserError(f"{message}; see `{self.prog}{table} --help`")


def parser_of(words: list[str]) -> tuple[Parser, list[str]]:
    """Return the parser of a command, and the words for it."""
    name, rest = ALIASES.get(words[0], words[0]), words[1:]
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    if name == "compare" and rest[:1] == ["resume"]:
        return Parser("compare resume", api.compare_resume), rest[1:]
    if name == "compare" and any(word.partition("=")[0] == "--search" for word in rest):
        return Parser(name, api.compare_search), rest
    table = name in WITH_TABLE and any(word.partition("=")[0] == "--table" for word in rest)
    return Parser(name, (WITH_TABLE if table else COMMANDS)[name]), rest


def parse_command(words: list[str]) -> Command:
    """Parse a command line without the program's name. Raises: UserError for a mistake in it."""
    parser, rest = parser_of(words)
    return parser.command(rest)


def _without_value(option: str) -> UserError:
    return UserError(f"{option} needs a value: {option} VALUE; an empty string, as of an empty shell variable, is none")


def _meanings(documented: Any) -> dict[str, str]:
    """Return argument -> its description in a docstring."""
    about = parse_docstring(inspect.getdoc(documented) or "")
    return {param.arg_name: " ".join((param.description or "").split()) for param in about.params}


def split_overrides(words: list[str], options: Container[str]) -> tuple[dict[str, Any], list[str]]:
    """Split off `--section.key value`, `--section.key=value` and the short options of recipe keys; values are YAML.
    `words`: of a command line. `options`: of the command itself. Returns: recipe key -> value, and the remaining words.
    """
    overrides: dict[str, Any] = {}
    left: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in options or (option not in SHORT and not (option.startswith("--") and "." in option)):
            left.append(word)
            continue
        if not equals:
            if rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            elif option == "--skip-unreadable":
                value = "true"
        if not value:
            raise _without_value(option)
        key = SHORT[option][0] if option in SHORT else option.removeprefix("--")
        overrides[key] = read_yaml(value, f"the value of {option}, {value!r},")
    return overrides, left
