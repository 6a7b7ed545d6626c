# SPDX-License-Identifier: Apache-2.0
"""A SLURM array as a script to look at and submit: one task a cell, so that no task waits for another.

The script carries the cells' names: SLURM keeps the script as it was submitted, so that a task trains what it was
submitted for, whatever is added to the study while it waits.
"""

import shlex
import sys
from pathlib import Path

from ..errors import UserError
from ..text import command_line, shell_word
from .grid import Cell
from .folder import StudyDir
from .plan import Plan

MARGIN = 2.0
"""Times the estimate that a task may take; machines differ."""


def write_script(study: StudyDir, plan: Plan) -> Path:
    """study.sbatch for every cell that is not finished.

    Raises: UserError for halving, whose cells are not known beforehand.
    """
    if study.grid.terms.halving:
        raise UserError("a SLURM array needs all cells beforehand, and halving chooses them on the way; leave one out")
    cells = {cell.name: cell for cell in study.grid.cells()}
    left = [name for name, cell in cells.items() if not study.finished(cell)]
    if not left:
        raise UserError(
            f"every cell of {study.path} is finished; `viticulture report {shell_word(study.path)}` writes its page"
        )
    known = [seconds for cell in cells.values() if (seconds := _seconds(study, plan, cell)) is not None]
    minutes = max(10, round(MARGIN * max(known) / 60)) if known else 24 * 60
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
# {len(left)} cells; the study's folder and the data must lie where every machine sees them. A task that is stopped and
# requeued goes on from its checkpoint; one whose teachers are missing trains or awaits them.
# Submit by: {command_line(["sbatch", str(folder / "study.sbatch")])}
# When all are done: {command_line(["viticulture", "report", str(folder)])}
cd {shlex.quote(str(Path.cwd()))}
cells=(
{chr(10).join(shlex.quote(name) for name in left)}
)
exec {worker} --only "${{cells[$SLURM_ARRAY_TASK_ID]}}"
"""
    return study.write("study.sbatch", script)


def _seconds(study: StudyDir, plan: Plan, cell: Cell) -> float | None:
    """Estimate of a cell and of what it learns from, which its task may have to train first."""
    own = plan.seconds(cell, study.grid)
    needs = [_seconds(study, plan, need) or 0.0 for need in study.grid.needs(cell)]
    return None if own is None else own + sum(needs)
