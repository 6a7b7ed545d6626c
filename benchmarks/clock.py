# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks beside it share: counts on the command line, the clock, and whether figures may be quoted.

A benchmark names the processor and its threads before it measures. It ends with "busy: do not quote" where other work
took more than half a core meanwhile: ratios then hold roughly, seconds do not at all.
"""

import argparse
import atexit
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import torch

OTHERS = 0.5
"""Cores' worth of other work above which figures are not to be quoted."""


def at_least(least: int) -> Callable[[str], int]:
    """A type of whole numbers for argparse."""

    def whole(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    whole.__name__ = "whole number"  # argparse says it of what is no number
    return whole


count = at_least(1)


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, take its `--threads`, say where this runs, and promise a verdict at the end."""
    options = parser.parse_args()
    if "threads" in options:
        torch.set_num_threads(options.threads)
    print(f"{processor()}, {torch.get_num_threads()} threads")
    began, busy, own = time.perf_counter(), machine_seconds(), core_seconds()

    def verdict() -> None:
        now = machine_seconds()
        if busy is None or now is None:
            print("other work is not counted on this system: do not quote unless it was idle")
            return
        others = foreign(now - busy, core_seconds() - own, time.perf_counter() - began)
        print(f"other work took {others:.1f} cores; {'quiet' if others <= OTHERS else 'busy: do not quote'}")

    atexit.register(verdict)
    return options


def processor() -> str:
    """The processor's name, and the widest instructions that torch uses on it."""
    name = platform.processor() or platform.machine()
    if (facts := Path("/proc/cpuinfo")).exists():
        name = next(
            (x.split(":")[1].strip() for x in facts.read_text().splitlines() if x.startswith("model name")), name
        )
    elif platform.system() == "Darwin":
        name = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True
        ).stdout.strip()
    return f"{name}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def machine_seconds() -> float | None:
    """Processor time so far of everything that runs on the machine, seconds; None where there is no /proc."""
    if not (facts := Path("/proc/stat")).exists():
        return None
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, facts.read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def foreign(machine: float, own: float, wall: float) -> float:
    """Cores' worth of other work, where the machine and the benchmark took so many processor seconds in `wall`."""
    return max(0.0, machine - own) / wall


def core_seconds() -> float:
    """Processor time so far of this process and its children; of workers still at work where there is /proc."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for worker in multiprocessing.active_children():
        if (facts := Path(f"/proc/{worker.pid}/stat")).exists():
            fields = facts.read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(step: Callable[[], object]) -> tuple[float, float]:
    """Wall clock and processor time of one step, seconds; a GPU in use is waited for."""
    wall, core = time.perf_counter(), time.process_time()
    step()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - core


def print_beside(times: Sequence[Mapping[str, tuple[float, float]]], yardstick: str) -> None:
    """A row a step: median seconds by both clocks, each with the median ratio to the yardstick in the same round.

    Args:
        times: of every round, by the step's name, as `measure` gives them.
        yardstick: one of the names.
    """
    width = max(map(len, times[0])) + 2
    print(f"{'':{width}}{'wall s':>8}{'ratio':>8}{'core-s':>10}{'ratio':>8}")
    for name in times[0]:
        columns = ""
        for clock in (0, 1):
            ratio = median(each[name][clock] / each[yardstick][clock] for each in times)
            columns += f"{median(each[name][clock] for each in times):8.3f}{ratio:8.3f}  "
        print(f"{name:{width}}{columns}")
