# SPDX-License-Identifier: Apache-2.0
"""Several processes of one machine work on a study, each on a GPU of its own where there are GPUs.

    python -m viticulture.study.workers STUDY [--data DATA] [--only CELL] [--attached] [--skip CELL ...]

is one of them: it trains what it can claim, or the one cell of that name; attached, until its standard input ends.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ..errors import UserError, unknown
from .folder import StudyFolder
from .grid import Cell
from .work import Work

LIVES = 3
"""Times that a cell may end its process before it counts as failed."""


def count(wanted: int) -> int:
    """Processes to start: what was wanted, else one a GPU, else one."""
    return wanted or max(1, torch.cuda.device_count())


def run_workers(study: StudyFolder, workers: int, tell: Callable[[str], None]) -> None:
    """Start processes and wait until nothing is left; one that dies is started again.

    Args:
        study: its folder; the plan is made.
        workers: how many; one trains in this process.
        tell: is told a line about every cell.

    Raises: KeyboardInterrupt, once every process has ended.
    """
    if workers == 1:
        Work(study, tell).run()
        return
    pool = WorkerPool(study, workers, tell)
    with ThreadPoolExecutor(workers) as executor:  # its end waits for them, which a join that was interrupted does not
        try:
            for life in [executor.submit(pool.keep_alive, number) for number in range(workers)]:
                life.result()
        except KeyboardInterrupt:  # SIGTERM, too, which reaches this process alone
            pool.stop()
            raise


class WorkerPool:
    """Worker processes, each replaced when it dies of a cell, until it has died of it `LIVES` times.

    Args:
        study: its folder; the plan is made.
        workers: how many.
        tell: is told a line about every cell.
    """

    def __init__(self, study: StudyFolder, workers: int, tell: Callable[[str], None]) -> None:
        self.study, self.workers, self.tell = study, workers, tell
        self.deaths: Counter[str] = Counter()  # by the cell's name, over all workers; empty where none was claimed
        self.lock = threading.Lock()
        self.processes = dict[int, subprocess.Popen[str]]()  # the last one of each worker
        self.stopped = False

    def stop(self) -> None:
        """Have every worker end where it is, and no other one begin."""
        with self.lock:
            self.stopped = True
            for process in self.processes.values():
                process.terminate()

    def keep_alive(self, number: int) -> None:
        """One worker: its process, and the next one when that dies of a cell."""
        while (cause := self._one_process(number)) is not None:
            pid, code = cause
            lost = claimed_by(self.study, pid)
            doing = f"while it trained {lost.name}" if lost else "before it trained anything"
            self.tell(f"a worker died ({_cause(code)}) {doing}")
            with self.lock:
                self.deaths[lost.name if lost else ""] += 1
                if lost and self.deaths[lost.name] == LIVES:
                    self.study.record_failure(lost, f"its process died {LIVES} times ({_cause(code)})")
                if self.deaths[""] >= LIVES:
                    return

    def _one_process(self, number: int) -> tuple[int, int] | None:
        """Its id and exit code, where it died; None where it came to its end, was stopped or has said what is wrong."""
        with self.lock:
            if self.stopped:
                return None
            deadly = [name for name, deaths in self.deaths.items() if name and deaths >= LIVES]
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "viticulture.study.workers", str(self.study.path)),
                    *("--data", self.study.data, "--attached", "--skip", *deadly),
                ],
                env=environment(number, self.workers),
                stdin=subprocess.PIPE,  # never written to; it ends with this process, whatever ends that
                stdout=subprocess.PIPE,
                text=True,
            )
            self.processes[number] = process
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                self.tell(line.rstrip())
        ended = self.stopped or process.returncode in (0, 2, -signal.SIGINT, 130)
        return None if ended else (process.pid, process.returncode)


def environment(number: int, workers: int) -> dict[str, str]:
    """A worker's environment: its own GPU, or its share of the cores."""
    variables = dict(os.environ)
    if gpus := torch.cuda.device_count():
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in shown.split(",") if name] or [str(i) for i in range(gpus)]
        variables["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]
    else:
        variables["OMP_NUM_THREADS"] = str(threads(workers))
    return variables


def threads(workers: int) -> int:
    """Of each of so many processes: as many as a person says, or their share of the cores where there are no GPUs."""
    own = torch.get_num_threads()
    return own if "OMP_NUM_THREADS" in os.environ or torch.cuda.device_count() else max(1, own // workers)


@contextmanager
def as_one_of(workers: int) -> Iterator[None]:
    """Compute as one of so many workers does, for what is measured on their behalf."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads(workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def claimed_by(study: StudyFolder, pid: int) -> Cell | None:
    """The unfinished cell that a process of this machine held when it died."""
    folder = study.path / "locks"
    for rung in range(len(study.grid.terms.rungs)):
        for cell in study.grid.cells(rung):
            path = folder / cell.name
            mine = path.exists() and path.read_text(encoding="utf-8").split()[-1:] == [str(pid)]
            if mine and not study.finished(cell):
                return cell
    return None


def cell_named(study: StudyFolder, name: str) -> Cell:
    """The cell of that name. Raises: UserError if study.yaml does not ask for it any more."""
    cells = study.grid.named(name)
    if not cells:
        raise unknown(f"cell of {study.path}", name, [cell.name for cell in study.grid.cells()])
    return cells[0]


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    named = -code in set(signal.Signals)  # most real-time signals are not
    return signal.Signals(-code).name if named else f"signal {-code}"


def _end_with_input() -> None:
    """Wait for the end of standard input, and stop this process as `WorkerPool.stop` does."""
    while os.read(sys.stdin.fileno(), 1):  # no method of sys.stdin, whose lock Python's end would wait for
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _tell(words: str) -> None:
    """Print a line for the process that reads, or the log; a cell is trained whether or not it can be written."""
    with suppress(OSError):
        print(words, flush=True)


def main() -> int:
    """One worker."""
    parser = argparse.ArgumentParser(prog="viticulture.study.workers")
    parser.add_argument("study", type=Path)
    parser.add_argument("--data", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--attached", action="store_true")
    parser.add_argument("--skip", nargs="*", default=[])
    given = parser.parse_args()
    if given.attached:
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        work = Work(StudyFolder.open(given.study, given.data), _tell, given.skip)
        if given.only:
            work.one(cell_named(work.study, given.only))
        else:
            work.run()
    except UserError as error:
        _tell(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
