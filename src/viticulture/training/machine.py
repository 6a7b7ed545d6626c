# SPDX-License-Identifier: Apache-2.0
"""The machine of a training: its versions and hardware for run.json, and glibc's allocator."""

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ..version import VERSION

TRIM_THRESHOLD, MMAP_THRESHOLD, PERTURB = -1, -3, -6  # names of glibc's malloc.h
NEVER = -1
LARGEST = 1 << 30  # bytes from which memory still comes from the system and goes back to it, such as a cache of images
LARGEST_OF_OLD = 32 << 20  # the same where glibc (before 2.35) allows no more


def environment_metadata() -> dict[str, Any]:
    """Return versions, commit of the checkout, hardware and time."""
    packages = ("torch", "torchvision", "timm", "lightning", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    return {
        "versions": {"viticulture": VERSION, "python": platform.python_version(), **versions},
        "commit": _commit(),
        "hardware": hardware(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware() -> dict[str, Any]:
    """Return processor, cores, GPUs and threads of this process."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": _cpu(), "cores": os.cpu_count(), "gpus": gpus, "threads": torch.get_num_threads()}


def _commit() -> str | None:
    """Return the commit of viticulture's checkout, with a + where files differ from it; None where it is installed."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        folder = Path(__file__).parent
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    with suppress(OSError, subprocess.CalledProcessError):
        if git("ls-files", "--error-unmatch", __file__):
            return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    return None


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def keep_freed_memory() -> bool:
    """Reuse memory that a step frees in the next step, up to pieces of `LARGEST` bytes. False without glibc.

    glibc returns every large piece to the system once it is free, and requests it again. Such page faults take 3 to 9 %
    of a CPU's time, and a third where activations exceed 32 MB (benchmarks/log). Results do not change.
    """
    if (mallopt := _mallopt()) is None:
        return False
    enlarged = mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_THRESHOLD, LARGEST_OF_OLD)
    return bool(enlarged) and bool(mallopt(TRIM_THRESHOLD, NEVER))


@contextmanager
def filled_memory(byte: int) -> Iterator[None]:
    """Fill all memory that is allocated in the block with a byte; does nothing without glibc."""
    if (mallopt := _mallopt()) is None:
        yield
        return
    mallopt(PERTURB, byte ^ 0x1FF)  # glibc fills with the complement of the last eight bits, and with nothing for 0
    try:
        yield
    finally:
        mallopt(PERTURB, int(os.environ.get("MALLOC_PERTURB_", 0)))


def _mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's function that tunes its allocator; None where the C library is another."""
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
