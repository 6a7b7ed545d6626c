# SPDX-License-Identifier: Apache-2.0
"""What a run owes to its machine and day."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ..version import VERSION


def surroundings() -> dict[str, Any]:
    """Versions, commit of the working folder, hardware, time."""
    packages = ("torch", "torchvision", "timm", "lightning", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    return {
        "versions": {"viticulture": VERSION, "python": platform.python_version(), **versions},
        "commit": _commit(),
        "hardware": hardware(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware() -> dict[str, Any]:
    """What this process computes with."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": _cpu(), "cores": os.cpu_count(), "gpus": gpus, "threads": torch.get_num_threads()}


def _commit() -> str | None:
    """Commit of viticulture's own checkout, with a mark where files differ from it; None where it is installed."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("ls-files", "--error-unmatch", __file__):
            return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        pass
    return None


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
