# SPDX-License-Identifier: Apache-2.0
"""The command line: do what a command's words ask for, and say in a line or two what is wrong with them."""

import errno
import inspect
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from . import api, completion
from .budget.budget import Budget
from .command import HELP, LONGEST, OF_A_TABLE, VERBS, Command, Parser, parser_of
from .errors import UserError, shortened
from .text import clean
from .training.raw import check_key
from .training.rundir import PLAN, RunDir
from .version import VERSION
from .waiting import waiting

LOADS: dict[Callable[..., Any], tuple[str, ...]] = {
    **dict.fromkeys((api.cache, api.recipes, api.tables, api.models, api.serve), ()),
    **dict.fromkeys((api.report, api.runs), ("torch",)),
    api.inspect: ("torch", "lightning"),
}
"""Verb -> what it imports that takes seconds, said while it is loaded; other verbs need all three."""
OF_A_RUN = (
    *(api.resume, api.evaluate, api.predict, api.export, api.serve, api.push),
    *(api.links, api.localize, api.robustness),
)
"""Verbs of a run's folder, and of no other network."""
USAGE = """viticulture grows Vision Transformers on little data.

usage: viticulture VERB ...

{verbs}

  viticulture train ./photos      learn from a folder that holds one folder of images per class
  viticulture VERB --help         what a verb takes; --help-all: every recipe key too
  viticulture completion SHELL    what bash, zsh or fish needs to complete verbs, options, recipes and files
"""


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which `kill` and those who hand out machines stop a process; it ends what Ctrl-C would end."""


def main(words: list[str] | None = None) -> int:
    """Run one verb.

    Returns: 0, 1 where trainings of a study failed, 2 after a mistake that a person can mend, said in a line or two, or
        130 after Ctrl-C and 143 after SIGTERM, as shells count.
    """
    try:
        failed = _run(list(sys.argv[1:] if words is None else words))
        sys.stdout.flush()  # a closed pipe is told of here, not while Python ends
    except UserError as error:
        return _refused(str(error))
    except BrokenPipeError:  # nobody reads what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _refused(f"no file can have so long a name: {shortened(str(error.filename))}")
    except KeyboardInterrupt as stop:
        on = f"; `{clean(str(stop))}` goes on from the last checkpoint" if str(stop) else ""
        print(f"stopped{on}", file=sys.stderr)
        return 128 + (signal.SIGTERM if _is_terminated(stop) else signal.SIGINT)
    else:
        return int(failed)
    return 0


def _is_terminated(stop: BaseException | None) -> bool:
    """Whether SIGTERM is what an interrupt goes back to: who adds the way on, or Lightning, raises another."""
    while stop is not None and not isinstance(stop, Terminated):
        stop = stop.__cause__ or stop.__context__
    return stop is not None


def _terminate(*_: object) -> NoReturn:
    raise Terminated


def _refused(message: str) -> int:
    """Say what to mend, whatever the words hold that were received."""
    if len(message) > 2 * LONGEST:
        message = f"{message[:LONGEST]} ... {message[-LONGEST:]}"
    print("\n".join(map(clean, f"error: {message}".split("\n"))), file=sys.stderr)
    return 2


def entry() -> NoReturn:
    """The `viticulture` command. Recipes may name modules in the current folder, which are found after all others."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    with suppress(FileNotFoundError):  # of a folder that was taken away
        if "" not in sys.path and (current := str(Path.cwd())) not in sys.path:
            sys.path.append(current)
    sys.exit(main())


def _run(words: list[str]) -> bool:
    """Do what a command's words, without the program's name, ask for. Returns: whether trainings of a study failed."""
    if not words or words[0] in (*HELP, "help"):
        lines = (f"  {name:<10} {(inspect.getdoc(verb) or '').splitlines()[0]}" for name, verb in VERBS.items())
        print(USAGE.format(verbs="\n".join(lines)), end="")
        return False
    if words[0] == "--version":
        print(VERSION)
        return False
    if words[0] == "completion":
        _complete(words[1:])
        return False
    parser, rest = parser_of(words)
    if not set(HELP).isdisjoint(rest):
        print(parser.help(everything="--help-all" in rest), end="")
        return False
    command = parser.command(rest)
    if command.printed:
        if command.keywords.get("budget"):
            raise UserError("a budget chooses the recipe by what it measures: leave --budget or --print-config out")
        wanted = inspect.signature(api.resolved).parameters
        print(api.resolved(**{key: value for key, value in command.keywords.items() if key in wanted}), end="")
    else:
        _check(command)
        with waiting("loading PyTorch"):
            for module in LOADS.get(command.verb, ("torch", "lightning", "timm")):
                import_module(module)
        result = command.verb(**command.keywords)
        api.say(result)
        return bool(getattr(result, "failed", 0))
    return False


def _check(command: Command) -> None:
    """What can be checked before PyTorch is loaded, which takes seconds: keys, a budget, folders and files.

    Raises: UserError, as the verb would.
    """
    given = command.keywords
    for key in given.get("overrides", ()):
        check_key(key)
    if isinstance(given.get("budget"), str) and given["budget"]:
        Budget(given["budget"])
    file = bool(given.get("out")) and command.verb not in (api.train, api.train_row)  # the verb looks at that first
    if given.get("data") and not file:
        from .data.open import check_there

        check_there(given["data"])
    run = given.get("run", "")
    if command.verb in OF_A_RUN and not run.startswith("hf-hub:") and not (Path(run) / PLAN).is_file():
        RunDir.open(run)
    for image in given["images"] if command.verb is api.predict and not file else ():
        if image and not Path(image).exists():
            raise UserError(f"there is no file or folder {image}")


def _complete(words: list[str]) -> None:
    """Print what a shell needs to complete commands."""
    if len(words) != 1 or words[0] in HELP:
        ways = "".join(f"\n  {shell:<5} {way}" for shell, way in completion.WAYS.items())
        raise UserError(f"name the shell, and keep what is printed where it looks:{ways}")
    from .study.declare.table import tables
    from .training.recipe import shipped
    from .training.rundir import WEIGHTS

    parsers = {name: Parser(name, verb) for name, verb in VERBS.items()}
    more = {name: set(parser.short) for name, parser in parsers.items() if parser.takes_recipe}
    for name, verb in OF_A_TABLE.items():
        more[name] |= Parser(name, verb).options - parsers[name].options
    more["compare"] |= {"study"}  # the word behind `compare resume`
    named = {"recipe": list(shipped()), "table": list(tables()), "weights": WEIGHTS}
    verbs = {name: (parser, parser.arguments) for name, parser in parsers.items()}
    print(completion.script(words[0], verbs, {name: sorted(each) for name, each in more.items()}, named), end="")
