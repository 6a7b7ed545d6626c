# SPDX-License-Identifier: Apache-2.0
"""The command line: do what a command's words ask for, and say in a line or two what is wrong with them."""

import errno
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from . import api, completion
from .budget.budget import Budget
from .command import HELP, LONGEST, OF_A_TABLE, VERBS, Command, Parser, parser_of
from .config.keys import check_key
from .errors import HELPER_LOST, UserError, is_lost_helper, shortened
from .text import clean, tell
from .training.run_folder import PLAN, RunFolder
from .version import VERSION
from .waiting import STDERR, waiting

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
_RANKS = "RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"
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
        result = _run(list(sys.argv[1:] if words is None else words))
        try:
            _print(result)
        except OSError as error:
            return _unprinted(error, result)
    except UserError as error:
        return _refused(str(error))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _refused(f"no file can have so long a name: {shortened(str(error.filename))}")
    except RuntimeError as error:
        if not is_lost_helper(error):
            raise
        return _refused(f"{HELPER_LOST} and try again")
    except KeyboardInterrupt as stop:
        on = f"; `{clean(str(stop))}` goes on from the last checkpoint" if str(stop) else ""
        print(f"stopped{on}", file=STDERR, flush=True)
        return 128 + (signal.SIGTERM if _is_terminated(stop) else signal.SIGINT)
    return _status(result)


def _status(result: Any) -> int:
    """Return whether trainings of a study failed."""
    return int(bool(getattr(result, "failed", 0)))


def _print(result: Any) -> None:
    """Write a result to standard output, to the last byte. Raises: OSError if that is closed or full."""
    if result is None:
        return
    if sys.stdout is None:  # it was closed when Python began
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if isinstance(result, _Text):
        print(result, end="")
    else:
        api.say(result)
    sys.stdout.flush()


def _unprinted(error: OSError, result: Any) -> int:
    """The exit status where standard output did not take a result; what was made on disk is there all the same."""
    _drop(sys.stdout)
    if error.errno == errno.EPIPE:  # the reader has seen enough
        return _status(result)
    if (place := result if isinstance(result, Path) else getattr(result, "path", None)) is not None:
        tell(f"warning: standard output takes no more ({error.strerror}); the results are in {place}")
        return _status(result)
    if error.errno == errno.EBADF:  # closed by the caller, who wants no output
        return 2
    return _refused(f"cannot write to standard output: {error.strerror or error}; send it to another place")


def _drop(stream: TextIO | None) -> None:
    """Send what a stream still holds to nowhere: Python would complain of it at its end, by a status of its own."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]
        stream.flush()  # type: ignore[union-attr]


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
    print("\n".join(map(clean, f"error: {message}".split("\n"))), file=STDERR, flush=True)
    return 2


def entry() -> NoReturn:
    """The `viticulture` command. Recipes may name modules in the current folder, which are found after all others."""
    _open_standard_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    with suppress(FileNotFoundError):  # of a folder that was taken away
        if "" not in sys.path and (current := str(Path.cwd())) not in sys.path:
            sys.path.append(current)
    status = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _drop(stream)
    sys.exit(status)


def _open_standard_streams() -> None:
    """Open to nowhere what was closed when the process began: the next files would get the numbers 0 to 2 otherwise,
    and libraries in C write their warnings to number 2."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  (a descriptor, open to the end)


class _Text(str):
    """Text that is printed as it is."""


def _run(words: list[str]) -> Any:
    """Do what a command's words, without the program's name, ask for. Returns: what is to be printed."""
    if not words or words[0] in (*HELP, "help"):
        lines = (f"  {name:<10} {(inspect.getdoc(verb) or '').splitlines()[0]}" for name, verb in VERBS.items())
        return _Text(USAGE.format(verbs="\n".join(lines)))
    if words[0] == "--version":
        return _Text(f"{VERSION}\n")
    if words[0] == "completion":
        return _completion(words[1:])
    parser, rest = parser_of(words)
    if not set(HELP).isdisjoint(rest):
        return _Text(parser.help(everything="--help-all" in rest))
    try:
        Path.cwd()
    except FileNotFoundError as error:  # PyTorch's libraries abort the process there
        raise UserError("the current folder was removed; go to another one (cd) and try again") from error
    command = parser.command(rest)
    if command.printed:
        if command.keywords.get("budget"):
            raise UserError("a budget chooses the recipe by what it measures: leave --budget or --print-config out")
        wanted = inspect.signature(api.resolved).parameters
        return _Text(api.resolved(**{key: value for key, value in command.keywords.items() if key in wanted}))
    _check(command)
    with waiting("loading PyTorch"):
        for module in LOADS.get(command.verb, ("torch", "lightning", "timm")):
            import_module(module)
    return command.verb(**command.keywords)


def _check(command: Command) -> None:
    """Check what can be checked before PyTorch is loaded, which takes seconds: keys, a budget, folders and files.

    Raises: UserError, as the verb would.
    """
    given = command.keywords
    for name in _RANKS:  # Lightning reads them while it is imported
        if not re.fullmatch(r"\s*-?\d+\s*", value := os.environ.get(name, "0")):
            raise UserError(f"{name} in the environment must be a process's number, got {shortened(value)!r}; unset it")
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
        RunFolder.open(run)
    for image in given["images"] if command.verb is api.predict and not file else ():
        if image and not Path(image).exists():
            raise UserError(f"there is no file or folder {image}")


def _completion(words: list[str]) -> _Text:
    """Return the script by which a shell completes commands."""
    if len(words) != 1 or words[0] in HELP:
        ways = "".join(f"\n  {shell:<5} {way}" for shell, way in completion.WAYS.items())
        raise UserError(f"name the shell, and keep what is printed where it looks:{ways}")
    from .config.load import shipped
    from .study.paper_tables import tables
    from .training.run_folder import WEIGHTS

    parsers = {name: Parser(name, verb) for name, verb in VERBS.items()}
    more = {name: set(parser.short) for name, parser in parsers.items() if parser.takes_recipe}
    for name, verb in OF_A_TABLE.items():
        more[name] |= Parser(name, verb).options - parsers[name].options
    more["compare"] |= {"study"}  # the word behind `compare resume`
    named = {"recipe": list(shipped()), "table": list(tables()), "weights": WEIGHTS}
    verbs = {name: (parser, parser.arguments) for name, parser in parsers.items()}
    return _Text(completion.script(words[0], verbs, {name: sorted(each) for name, each in more.items()}, named))
