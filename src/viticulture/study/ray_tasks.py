# SPDX-License-Identifier: Apache-2.0
"""Cells as tasks of a Ray cluster whose machines share the study's folder; a lost worker's cell is tried again.

Ray keeps a worker's process for the next task, so its start is paid once. A task that is tried again goes on from the
cell's checkpoint.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from .folder import StudyDir
from .halving import schedule
from .outcomes import Outcomes
from .work import Work

RETRIES = 3
PATIENCE = 5.0  # seconds between two looks at what is finished


def run_on_ray(study: StudyDir, address: str, tell: Callable[[str], None]) -> None:
    """Hand out every cell, rung after rung, and wait.

    Args:
        study: its folder, under a path that every machine sees.
        address: of the cluster; `local` starts one on this machine.
        tell: is told a line about every cell.

    Raises: UserError where ray is not installed or the cluster cannot be reached.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise UserError("--ray needs Ray: pip install 'viticulture[ray]', or pip install ray") from error
    path = str(study.path.absolute())
    if not ray.is_initialized():
        try:
            ray.init(address=None if address == "local" else address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"there is no Ray cluster at {address}: {error}") from error
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    task = ray.remote(num_gpus=gpus, num_cpus=1, max_retries=RETRIES)(_train)
    tried: set[str] = set()
    while True:
        wanted, _ = schedule(study.grid, outcomes := Outcomes(study))
        left = [cell for cell in wanted if cell.name not in tried and outcomes.of(cell).status != "finished"]
        if not left:
            return
        tried |= {cell.name for cell in left}
        waiting = {task.remote(path, cell.name, study.data, str(Path.cwd())): cell for cell in left}
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=PATIENCE)
            for reference in done:
                cell = waiting.pop(reference)
                try:
                    for words in ray.get(reference):
                        tell(words)
                except ray.exceptions.RayError as error:
                    study.record_failure(cell, f"its Ray task was lost {RETRIES + 1} times: {type(error).__name__}")
                    tell(f"{cell.name} was lost: {type(error).__name__}")


def _train(path: str, name: str, data: str, folder: str) -> list[str]:
    """One task: what was said about the cell."""
    os.chdir(folder)
    messages: list[str] = []
    study = StudyDir.open(path, data)
    work = Work(study, messages.append)
    for cell in study.grid.named(name)[:1]:
        work.one(cell)
    return messages
