# SPDX-License-Identifier: Apache-2.0
"""One command of ours in a process of its own, forked where everything is imported already, with limits."""

import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

GIGABYTES = 12
PATIENCE = 180.0
"""Seconds of wall clock after which a child that waits for something is ended; beside processor time, which is what
a command is judged by."""


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Args:
        code: exit status; negative for the signal that ended it.
        output: what it printed, both streams, at most the last 20,000 bytes.
        seconds: processor time, children's included.
        outlasted: whether it was ended for taking too long.
    """

    code: int
    output: bytes
    seconds: float
    outlasted: bool


def start(words: list[str], folder: Path, log: Path, seconds: int, modules: Path | None = None) -> int:
    """Fork, and run one command of viticulture in a process group of its own.

    Args:
        words: of the command.
        folder: where it runs.
        log: takes both streams.
        seconds: processor time that it may take.
        modules: file for the names of all modules that it has imported in the end.

    Returns: the process.
    """
    pid = os.fork()
    if not pid:
        _live(words, folder, log, seconds, modules)
    return pid


def _live(words: list[str], folder: Path, log: Path, seconds: int, modules: Path | None) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES << 30, GIGABYTES << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["viticulture", *words]
        from viticulture.cli import main

        code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        if modules is not None:
            modules.write_text("\n".join(name for name in sys.modules if name != "__main__"))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, log: Path) -> Ending:
    """Until the process has ended; its group is ended with it."""
    deadline = time.monotonic() + PATIENCE
    outlasted = False
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            outlasted = True
            kill(pid)
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    kill(pid)
    output = log.read_bytes()[-20_000:] if log.exists() else b""
    return Ending(code, output, usage.ru_utime + usage.ru_stime, outlasted or code == -signal.SIGXCPU)


def run(words: list[str], folder: Path, log: Path, seconds: int, modules: Path | None = None) -> Ending:
    """Start a command and wait for its end; arguments as of `start`."""
    log.unlink(missing_ok=True)
    return wait(start(words, folder, log, seconds, modules), log)


def kill(pid: int) -> None:
    """SIGKILL for a process and all that it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
