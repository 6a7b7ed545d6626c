# SPDX-License-Identifier: Apache-2.0
"""The command line: argument parsing only. Verbs, options, defaults and help are read off the functions in `api`.

A parameter without default is a word of the command, and so are `data` and `pattern`; the others are options.
`list[str]` takes all remaining words, `bool` is a switch. Verbs with `overrides` also take every recipe key:
`--optim.lr 1e-4`.
"""

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Container
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, get_args, get_origin

import yaml
from docstring_parser import parse as parse_docstring

from . import api
from .errors import UserError, unknown
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
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; `viticulture resume RUN` goes on from the last checkpoint", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left
    return 0


def entry() -> NoReturn:
    """The `viticulture` command."""
    sys.exit(main())


class Parser(argparse.ArgumentParser):
    """One verb's words and options; a mistake is a UserError."""

    def __init__(self, name: str, verb: Callable[..., Any]) -> None:
        about = parse_docstring(inspect.getdoc(verb) or "")
        self.verb = verb
        super().__init__(prog=f"viticulture {name}", description=about.short_description, add_help=False)
        meaning = {param.arg_name: " ".join((param.description or "").split()) for param in about.params}
        self.names = [key for key in inspect.signature(verb).parameters if key != "overrides"]
        for key in self.names:
            parameter = inspect.signature(verb).parameters[key]
            help_text = meaning.get(key, "").replace("%", "%%")
            if is_dataclass(parameter.default):
                self._add_group(parameter.default)
            elif parameter.default is parameter.empty:
                self.add_argument(key, nargs="+" if parameter.annotation == list[str] else None, help=help_text)
            elif key in MAY_BE_LEFT_OUT:
                self.add_argument(key, nargs="?", default=parameter.default, help=help_text)
            elif parameter.annotation is bool:
                self.add_argument(f"--{key.replace('_', '-')}", dest=key, action="store_true", help=help_text)
            else:
                self._add_option(key, parameter.annotation, parameter.default, help_text)

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
        read = kind if kind in (int, float) else str
        if get_origin(kind) is tuple:
            each = get_args(kind)[0]

            def read(words: str) -> tuple[Any, ...]:
                return tuple(each(word.strip()) for word in words.split(",") if word.strip())

            read.__name__ = f"comma-separated {each.__name__}"
        self.add_argument(f"--{key.replace('_', '-')}", dest=key, type=read, default=default, help=text)

    def keywords(self, words: list[str]) -> dict[str, Any]:
        """The verb's arguments out of a command."""
        given, found = vars(self.parse_args(words)), {}
        for key in self.names:
            group = inspect.signature(self.verb).parameters[key].default
            if is_dataclass(group) and not isinstance(group, type):
                found[key] = type(group)(**{field.name: given[field.name] for field in fields(group)})
            else:
                found[key] = given[key]
        return found

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
    name, rest = words[0], words[1:]
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    verb: Callable[..., Any] = VERBS[name]
    if any(word.partition("=")[0] == "--table" for word in rest) and name in OF_A_TABLE:
        verb = OF_A_TABLE[name]
    elif name == "compare" and rest[:1] == ["resume"]:
        verb, rest = api.compare_resume, rest[1:]
    takes_recipe = "overrides" in inspect.signature(verb).parameters
    parser = Parser(name, verb)
    overrides, rest = split_overrides(rest, parser.options) if takes_recipe else ({}, rest)
    if {"-h", "--help"} & set(rest):
        print(parser.format_help() + (_recipe_help() if takes_recipe else ""), end="")
        return
    if "--print-config" in rest and "recipe" in parser.names:
        rest.remove("--print-config")
        given = parser.parse_args(rest)
        print(api.resolved(given.recipe, overrides, given.data), end="")
        return
    api.say(verb(**parser.keywords(rest), **({"overrides": overrides} if takes_recipe else {})))


def _recipe_help() -> str:
    lines = (f"  {short} VALUE".ljust(26) + f"short for --{key}" for short, key in SHORT.items())
    head = "\n  --print-config          print the recipe with every key and its value, and stop\n"
    return head + "\nrecipe keys:\n" + "\n".join(lines) + "\n\n" + api.reference()


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
        try:
            found[SHORT.get(option, option.removeprefix("--"))] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UserError(f"{option} has a value that is not valid YAML: {value}") from error
    return found, left
