# SPDX-License-Identifier: Apache-2.0
"""Several processes of one machine work on a study, each on a GPU of its own where there are GPUs.

    python -m viticulture.study.workers STUDY [--data DATA] [--only NUMBER]

is one of them: it trains what it can claim, or the one cell of that number.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from ..errors import UserError
from .folder import StudyDir
from .work import Work

LIVES = 3
"""Times that a cell may end its process before it counts as failed."""


def count(wanted: int) -> int:
    """Processes to start: what was wanted, else one a GPU, else one."""
    return wanted or max(1, torch.cuda.device_count())


def run_workers(study: StudyDir, workers: int, tell: Callable[[str], None], data: str = "") -> None:
    """Start processes and wait until nothing is left; one that dies is started again.

    Args:
        study: its folder; the plan is made.
        workers: how many; one trains in this process.
        tell: is told a line about every cell.
        data: where the images are now.
    """
    if workers == 1:
        Work(study, tell, data).run()
        return
    threads = [
        threading.Thread(target=_keep_alive, args=(study, number, workers, tell, data), daemon=True)
        for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _keep_alive(study: StudyDir, number: int, workers: int, tell: Callable[[str], None], data: str) -> None:
    """One worker's place: its process, and the next one when that dies of a cell."""
    losses: dict[str, int] = {}
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "viticulture.study.workers", str(study.path), "--data", data],
            env=environment(number, workers),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                tell(line.rstrip())
        if process.returncode in (0, -signal.SIGINT, 130):
            return
        if process.returncode == 2:  # a mistake that it has said
            return
        lost = claimed_by(study, process.pid)
        if lost is None:
            tell(f"a worker died ({_cause(process.returncode)}) before it trained anything")
            return
        losses[lost] = losses.get(lost, 0) + 1
        tell(f"a worker died ({_cause(process.returncode)}) while it trained {lost}; another one goes on")
        if losses[lost] >= LIVES:
            (cell,) = [cell for cell in study.grid.cells() if cell.name == lost]
            study.record_failure(cell, f"its process died {LIVES} times ({_cause(process.returncode)})")
            return


def environment(number: int, workers: int) -> dict[str, str]:
    """A worker's environment: its own GPU, or its share of the cores."""
    found = dict(os.environ)
    if gpus := torch.cuda.device_count():
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in shown.split(",") if name] or [str(i) for i in range(gpus)]
        found["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]
    else:
        found.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // workers)))
    return found


def claimed_by(study: StudyDir, pid: int) -> str | None:
    """Name of the unfinished cell that a process of this machine held when it died."""
    folder = study.path / "locks"
    for cell in {
        cell.name: cell for round in range(len(study.grid.terms.rounds)) for cell in study.grid.cells(round)
    }.values():
        path = folder / cell.name
        if path.exists() and path.read_text(encoding="utf-8").split()[-1:] == [str(pid)] and not study.finished(cell):
            return cell.name
    return None


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def main() -> int:
    """One worker."""
    parser = argparse.ArgumentParser(prog="viticulture.study.workers")
    parser.add_argument("study", type=Path)
    parser.add_argument("--data", default="")
    parser.add_argument("--only", type=int, default=None)
    given = parser.parse_args()
    try:
        work = Work(StudyDir.open(given.study), lambda words: print(words, flush=True), given.data)
        if given.only is None:
            work.run()
        else:
            work.one(
                sorted({cell.name: cell for cell in work.study.grid.cells()}.values(), key=lambda c: c.name)[given.only]
            )
    except UserError as error:
        print(f"error: {error}", flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
