# SPDX-License-Identifier: Apache-2.0
"""The command line: run a command, and report a mistake in a line or two."""

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
from .api.training import is_complete
from .budget.budget import TimeBudget
from .command import COMMANDS, HELP, MAX_ERROR, WITH_TABLE, Command, Parser, parser_of
from .config.keys import TEACHER, check_key
from .errors import HELPER_LOST, Terminated, UserError, is_lost_helper, shortened
from .text import clean, log
from .training.run_folder import PLAN, RunFolder
from .version import VERSION
from .waiting import STDERR, waiting

LOADS: dict[Callable[..., Any], tuple[str, ...]] = {
    **dict.fromkeys((api.cache, api.recipes, api.runs, api.serve), ()),
    **dict.fromkeys((api.report, api.tables, api.models), ("torch", "timm")),
    api.inspect: ("torch", "lightning"),
}
"""Command -> its slow imports, announced while they load; other commands need all three."""
RUN_COMMANDS = (
    *(api.resume, api.evaluate, api.predict, api.export, api.serve, api.push),
    *(api.links, api.localize, api.robustness, api.label_next),
)
"""Commands that take a run's folder, and no other network."""
_RANKS = "RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"
USAGE = """viticulture trains small Vision Transformers on small datasets.

usage: viticulture COMMAND ...

{commands}

  viticulture train ./photos      train on a folder with one folder of images per class
  viticulture COMMAND --help      arguments and options; --help-all: every recipe key too
  viticulture completion SHELL    print the completion script for bash, zsh or fish
"""


def main(words: list[str] | None = None) -> int:
    """Run one command.

    Returns: the exit status: 0; 1 if trainings of a study failed; 2 after a user error, which is printed; 130 after
        Ctrl-C and 143 after SIGTERM.
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
        return _refused(f"file name too long: {shortened(str(error.filename))}")
    except RuntimeError as error:
        if not is_lost_helper(error):
            raise
        return _refused(f"{HELPER_LOST} and try again")
    except KeyboardInterrupt as stop:
        hint = f"; `{clean(str(stop))}` continues from the last checkpoint" if str(stop) else ""
        print(f"stopped{hint}", file=STDERR, flush=True)
        return 128 + (signal.SIGTERM if _is_terminated(stop) else signal.SIGINT)
    return _status(result)


def _status(result: Any) -> int:
    """Return 1 if trainings of a study failed, else 0."""
    return int(bool(getattr(result, "failed", 0)))


def _print(result: Any) -> None:
    """Write a result to standard output and flush it. Raises: OSError if that is closed or full."""
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
    """Return the exit status when standard output did not take a result; files on disk are complete."""
    _drop(sys.stdout)
    if error.errno == errno.EPIPE:  # the reader closed the pipe, as `head` does
        return _status(result)
    if (place := result if isinstance(result, Path) else getattr(result, "path", None)) is not None:
        log(f"warning: cannot write to standard output ({error.strerror}); the results are in {place}")
        return _status(result)
    if error.errno == errno.EBADF:  # closed by the caller
        return 2
    return _refused(f"cannot write to standard output: {error.strerror or error}; redirect it elsewhere")


def _drop(stream: TextIO | None) -> None:
    """Redirect a stream's remaining output to nowhere; flushing it at exit would fail with status 120."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]
        stream.flush()  # type: ignore[union-attr]


def _is_terminated(stop: BaseException | None) -> bool:
    """Return whether SIGTERM caused an interrupt, which may have been re-raised with a hint or by Lightning."""
    while stop is not None and not isinstance(stop, Terminated):
        stop = stop.__cause__ or stop.__context__
    return stop is not None


def _terminate(*_: object) -> NoReturn:
    raise Terminated


def _refused(message: str) -> int:
    """Print an error, without control characters and cut in the middle if very long."""
    if len(message) > 2 * MAX_ERROR:
        message = f"{message[:MAX_ERROR]} ... {message[-MAX_ERROR:]}"
    print("\n".join(map(clean, f"error: {message}".split("\n"))), file=STDERR, flush=True)
    return 2


def entry() -> NoReturn:
    """Run the `viticulture` command. Recipes may name modules in the current folder, which comes last on the path."""
    _open_standard_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    with suppress(FileNotFoundError):  # the current folder was removed
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
    """Open closed standard streams to nowhere: the next files would get their numbers, and C libraries write warnings
    to number 2."""
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
    """Run a command line without the program's name. Returns: what to print."""
    if not words or words[0] in (*HELP, "help"):
        lines = (f"  {name:<10} {(inspect.getdoc(each) or '').splitlines()[0]}" for name, each in COMMANDS.items())
        return _Text(USAGE.format(commands="\n".join(lines)))
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
        raise UserError("the current folder was removed; cd to another one and try again") from error
    command = parser.command(rest)
    if command.print_config:
        accepted = inspect.signature(api.resolved).parameters
        return _Text(api.resolved(**{key: value for key, value in command.keywords.items() if key in accepted}))
    _check(command)
    if command.function is api.resume and is_complete(**command.keywords):
        return command.function(**command.keywords).report
    modules = LOADS.get(command.function, ("torch", "lightning", "timm"))
    with waiting("loading PyTorch"):
        for module in modules:
            import_module(module)
    return command.function(**command.keywords)


def _check(command: Command) -> None:
    """Check keys, a budget, folders and files before PyTorch is loaded, which takes seconds. Raises: UserError."""
    arguments = command.keywords
    for name in _RANKS:  # Lightning reads them while it is imported
        if not re.fullmatch(r"\s*-?\d+\s*", value := os.environ.get(name, "0")):
            raise UserError(f"{name} in the environment must be an integer, got {shortened(value)!r}; unset it")
    for key in arguments.get("overrides", ()):
        if key != TEACHER:
            check_key(key)
        elif command.function not in (api.train, api.train_row):
            raise UserError(
                f"--{TEACHER} is an option of train; elsewhere name a trained one: --guides.logits.teacher RUN"
            )
    if isinstance(arguments.get("budget"), str) and arguments["budget"]:
        TimeBudget(arguments["budget"])
    out_first = bool(arguments.get("out")) and command.function not in (api.train, api.train_row)  # checked first
    if arguments.get("data") and not out_first:
        from .data.open import check_there

        check_there(arguments["data"])
    run = arguments.get("run", "")
    if command.function in RUN_COMMANDS and not run.startswith("hf-hub:") and not (Path(run) / PLAN).is_file():
        RunFolder.open(run)
    for image in arguments["images"] if command.function is api.predict and not out_first else ():
        if image and not Path(image).exists():
            raise UserError(f"no such file or folder: {image}")


def _completion(words: list[str]) -> _Text:
    """Return the completion script of a shell."""
    if len(words) != 1 or words[0] in HELP:
        ways = "".join(f"\n  {shell:<5} {way}" for shell, way in completion.WAYS.items())
        raise UserError(f"name the shell, and save the printed script where it is read:{ways}")
    from .config.load import shipped
    from .study.paper_tables import tables
    from .training.run_folder import WEIGHTS

    parsers = {name: Parser(name, function) for name, function in COMMANDS.items()}
    more = {name: set(parser.short) for name, parser in parsers.items() if parser.takes_recipe}
    for name, function in (*WITH_TABLE.items(), ("compare", api.compare_search)):
        more[name] |= Parser(name, function).options - parsers[name].options
    more["compare"] |= {"study"}  # the argument of `compare resume`
    choices = {"recipe": list(shipped()), "table": list(tables()), "weights": WEIGHTS}
    commands = {name: (parser, parser.arguments) for name, parser in parsers.items()}
    return _Text(completion.script(words[0], commands, {name: sorted(each) for name, each in more.items()}, choices))
