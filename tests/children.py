# SPDX-License-Identifier: Apache-2.0
"""Processes with everything imported, so that a test can afford several, and that die at a chosen moment."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from viticulture.cli import entry

IMPORTED = (
    "viticulture.cli",
    "viticulture.training.session",
    "viticulture.training.run",
    "viticulture.analysis.pictures",
    "viticulture.report.run_page",
    "viticulture.study.work",
)


def start(function: Callable[..., None], *args: Any) -> ForkServerProcess:
    """Start a process that calls a function of a test's file; all are forked from one server that imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    process = context.Process(target=_child, args=(dict(os.environ), function, args))
    process.start()
    return process


def ends_well(function: Callable[..., None], *args: Any) -> None:
    """Run such a process and check that it succeeds."""
    process = start(function, *args)
    process.join()
    assert process.exitcode == 0


def pair(function: Callable[[int, str], None], folder: Path) -> list[Any]:
    """Run two processes, given folder and rank; return what they saved in RANK.pt of the folder."""
    processes = [start(function, rank, str(folder)) for rank in range(2)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@contextmanager
def one_of_pair(rank: int, folder: str) -> Iterator[None]:
    """Set up the process group in a process of `pair`, as under Lightning."""
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(minutes=10))
    yield
    distributed.destroy_process_group()


def shared_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Average the gradients of a module over the pair as DDP would."""
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    for gradient in gradients.values():
        distributed.all_reduce(gradient)
    return {name: gradient / 2 for name, gradient in gradients.items()}


def command(folder: Path, log: Path, words: list[str], environment: dict[str, str] | None = None) -> ForkServerProcess:
    """Start the installed `viticulture` in a folder, with its output in a file."""
    return start(_command, folder, log, words, environment or {})


def _command(folder: Path, log: Path, words: list[str], environment: dict[str, str]) -> None:
    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = [path for path in sys.path if path]  # the empty one is the current folder
    sys.argv = ["viticulture", *words]
    entry()


def _child(environment: dict[str, str], function: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*args)


def die_at(folder: Path, moment: int, after: str = "") -> None:
    """Kill this process after `moment` openings, renames or removals in a folder, counted once `after` exists."""
    begun, left = not after, moment

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal begun, left
        if event not in ("open", "os.rename", "os.remove"):
            return
        path = str(args[1] if event == "os.rename" else args[0])
        if not path.startswith(str(folder)):
            return
        if begun:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        elif event == "os.rename" and path.endswith(after):
            begun = True

    sys.addaudithook(count)
