# SPDX-License-Identifier: Apache-2.0
"""Several processes of one machine that train a study, each on a separate GPU if there are GPUs.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ..errors import UserError, unknown
from .folder import StudyFolder
from .grid import Cell
from .halving import every_cell
from .work import Worker

LIVES = 3  # times that a cell may end its process before it counts as failed


def run_workers(study: StudyFolder, workers: int, log: Callable[[str], None], skip: Sequence[str] = ()) -> None:
    """Start processes and wait until nothing but the cells `skip` is left; one that dies is started again.

    Raises: KeyboardInterrupt, after every process has ended.
    """
    if workers == 1:
        Worker(study, log, skip).run()
        return
    pool = WorkerPool(study, workers, log, skip)
    with ThreadPoolExecutor(workers) as executor:  # its end waits for them, which an interrupted join does not
        try:
            for life in [executor.submit(pool.keep_alive, number) for number in range(workers)]:
                life.result()
        except KeyboardInterrupt:  # SIGTERM, too, which reaches this process alone
            pool.stop()
            raise


class WorkerPool:
    """Worker processes, each replaced when it dies of a cell, until it has died of it `LIVES` times."""

    def __init__(self, study: StudyFolder, workers: int, log: Callable[[str], None], skip: Sequence[str] = ()) -> None:
        self.study, self.workers, self.log, self.skip = study, workers, log, skip
        self.deaths: Counter[str] = Counter()  # by the cell's name, over all workers; "" where none was claimed
        self.lock = threading.Lock()
        self.processes = dict[int, subprocess.Popen[str]]()  # the last one of each worker
        self.stopped = False

    def stop(self) -> None:
        """End every worker, and start no other one."""
        with self.lock:
            self.stopped = True
            for process in self.processes.values():
                process.terminate()

    def keep_alive(self, number: int) -> None:
        """Run one worker, and start it again when it dies of a cell."""
        while (death := self._one_process(number)) is not None:
            pid, code = death
            lost = claimed_by(self.study, pid)
            doing = f"while it trained {lost.name}" if lost else "before it trained anything"
            self.log(f"a worker died ({_cause(code)}) {doing}")
            with self.lock:
                self.deaths[lost.name if lost else ""] += 1
                if lost and self.deaths[lost.name] == LIVES:
                    self.study.record_failure(lost, f"its process died {LIVES} times ({_cause(code)})")
                if self.deaths[""] >= LIVES:
                    return

    def _one_process(self, number: int) -> tuple[int, int] | None:
        """Run a worker's process; return its id and exit code if it died, None if it ended, was stopped or has reported
        an error."""
        with self.lock:
            if self.stopped:
                return None
            deadly = [name for name, deaths in self.deaths.items() if name and deaths >= LIVES]
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "viticulture.study.workers", str(self.study.path)),
                    *("--data", self.study.data, "--attached", "--skip", *deadly, *self.skip),
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
                self.log(line.rstrip())
        ended = self.stopped or process.returncode in (0, 2, -signal.SIGINT, 130)
        return None if ended else (process.pid, process.returncode)


def environment(number: int, workers: int) -> dict[str, str]:
    """Return a worker's environment: with a separate GPU, or its part of the cores."""
    variables = dict(os.environ)
    if gpus := torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in visible.split(",") if name] or [str(i) for i in range(gpus)]
        variables["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]
    else:
        variables["OMP_NUM_THREADS"] = str(threads(workers))
    return variables


def threads(workers: int) -> int:
    """Return the threads of each worker: those that the user sets, or its part of the cores where there are no GPUs."""
    current = torch.get_num_threads()
    return current if "OMP_NUM_THREADS" in os.environ or torch.cuda.device_count() else max(1, current // workers)


@contextmanager
def threads_of_one(workers: int) -> Iterator[None]:
    """Compute with the threads of one of several workers, to measure on their behalf."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads(workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def claimed_by(study: StudyFolder, pid: int) -> Cell | None:
    """Return the unfinished cell that a process of this machine held when it died."""
    for cell in every_cell(study.grid):
        path = study.path / "locks" / cell.name
        holder = path.read_text(encoding="utf-8").split()[-1:] if path.exists() else []
        if holder == [str(pid)] and not study.finished(cell):
            return cell
    return None


def cell_named(study: StudyFolder, name: str) -> Cell:
    """Return the cell of that name. Raises: UserError if study.yaml does not include it any more."""
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


def _log(line: str) -> None:
    """Print a line for the parent process; training continues even if it cannot be written."""
    with suppress(OSError):
        print(line, flush=True)


def main() -> int:
    """Run one worker."""
    parser = argparse.ArgumentParser(prog="viticulture.study.workers")
    parser.add_argument("study", type=Path)
    parser.add_argument("--data", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--attached", action="store_true")
    parser.add_argument("--skip", nargs="*", default=[])
    options = parser.parse_args()
    if options.attached:
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        worker = Worker(StudyFolder.open(options.study, options.data), _log, options.skip)
        if options.only:
            worker.train(cell_named(worker.study, options.only))
        else:
            worker.run()
    except UserError as error:
        _log(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
