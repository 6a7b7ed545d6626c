# SPDX-License-Identifier: Apache-2.0
"""Train cells on a cluster whose machines share the study's folder: as tasks of Ray, or as a SLURM array.

Ray keeps a worker's process for the next task, so that its start is paid once; the cell of a lost worker is tried
again, from its checkpoint. The SLURM script lists the cells' names: SLURM stores the script as it was submitted, so
that a task trains what it was submitted for, whatever is added to the study while it waits.
"""

import importlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..text import command_line, shell_word
from .folder import StudyFolder
from .grid import Cell
from .halving import schedule
from .outcomes import Outcomes
from .plan import StudyPlan
from .work import Worker

MARGIN = 2.0  # factor of a SLURM task's time limit over its estimate; machines differ
RETRIES = 3
POLL_SECONDS = 5.0  # between two checks of which Ray tasks have finished


def write_script(study: StudyFolder, plan: StudyPlan) -> Path:
    """Write study.sbatch for every cell that is not finished.

    Raises: UserError for halving, whose cells are not known in advance.
    """
    if study.grid.terms.halving:
        raise UserError("a SLURM array needs all cells beforehand, and halving chooses them later; leave one out")
    cells = {cell.name: cell for cell in study.grid.cells()}
    left = [name for name, cell in cells.items() if not study.finished(cell)]
    if not left:
        raise UserError(
            f"every cell of {study.path} is finished; `viticulture report {shell_word(study.path)}` writes its page"
        )
    times = [seconds for cell in cells.values() if (seconds := _seconds(study, plan, cell)) is not None]
    minutes = max(10, round(MARGIN * max(times) / 60)) if times else 24 * 60
    folder = study.path.absolute()
    worker = f"{shlex.quote(sys.executable)} -m viticulture.study.workers {shlex.quote(str(folder))}"
    script = f"""#!/bin/bash
#SBATCH --job-name=viticulture
#SBATCH --array=0-{len(left) - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:1
#SBATCH --time={minutes}
#SBATCH --requeue
# {len(left)} cells; the study's folder and the data must be visible to every machine. A task that is stopped and
# requeued continues from its checkpoint; one whose teachers are missing trains them or waits for them.
# Submit by: {command_line(["sbatch", str(folder / "study.sbatch")])}
# When all are done: {command_line(["viticulture", "report", str(folder)])}
cd {shlex.quote(str(Path.cwd()))}
cells=(
{chr(10).join(shlex.quote(name) for name in left)}
)
exec {worker} --only "${{cells[$SLURM_ARRAY_TASK_ID]}}"
"""
    return study.write("study.sbatch", script)


def _seconds(study: StudyFolder, plan: StudyPlan, cell: Cell) -> float | None:
    """Estimate the time of a cell and of those that it needs, which its task may have to train first."""
    seconds = plan.seconds(cell, study.grid)
    needs = [_seconds(study, plan, need) or 0.0 for need in study.grid.needs(cell)]
    return None if seconds is None else seconds + sum(needs)


def run_on_ray(study: StudyFolder, address: str, log: Callable[[str], None]) -> None:
    """Submit every cell, rung after rung, and wait. `address`: of the cluster; `local` starts one on this machine.
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
    task = ray.remote(num_gpus=gpus, num_cpus=1, max_retries=RETRIES)(_ray_task)
    tried: set[str] = set()
    while True:
        cells, _ = schedule(study.grid, outcomes := Outcomes(study))
        left = [cell for cell in cells if cell.name not in tried and outcomes.of(cell).status != "finished"]
        if not left:
            return
        tried |= {cell.name for cell in left}
        waiting = {task.remote(path, cell.name, study.data, str(Path.cwd())): cell for cell in left}
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
            for reference in done:
                cell = waiting.pop(reference)
                try:
                    for line in ray.get(reference):
                        log(line)
                except ray.exceptions.RayError as error:
                    study.record_failure(cell, f"its Ray task was lost {RETRIES + 1} times: {type(error).__name__}")
                    log(f"{cell.name} was lost: {type(error).__name__}")


def _ray_task(path: str, name: str, data: str, folder: str) -> list[str]:
    """Train one cell; return what was logged."""
    os.chdir(folder)
    lines: list[str] = []
    study = StudyFolder.open(path, data)
    worker = Worker(study, lines.append)
    for cell in study.grid.named(name)[:1]:
        worker.train(cell)
    return lines
