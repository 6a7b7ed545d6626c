# SPDX-License-Identifier: Apache-2.0
"""What a study costs over the bare runs: the same trainings as cells and alone, in one process, in turn.

    python -m benchmarks.study [EPOCHS]

Processor time of `dhvt/digits` on 200 digits; neither writes a page.
"""

import gc
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.plan import StudyPlan
from viticulture.study.terms import Subsets
from viticulture.study.work import Worker
from viticulture.tasks.task import task_of
from viticulture.training.run import fit
from viticulture.training.session import begin

PAIRS = 5


def main() -> None:
    """Print the ratio."""
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    grid = Grid(
        "digits", (Candidate("a", "dhvt/digits"),), Subsets(per_class=(20,)), tuple(range(PAIRS + 1)), epochs=epochs
    )
    ratios, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        study = StudyFolder.create(Path(folder) / "study", grid, "benchmark")
        study.update(plan=StudyPlan({("a", "20 a class"): epochs}, {}, {"a": 100}, {"a": 5.0}).to_dict())
        work = Worker(study, lambda words: None)
        gc.freeze()  # as Work.run does
        overrides = {**grid.conditions, **work.plan.overrides(grid, grid.cells()[0])}
        for number, cell in enumerate(grid.cells()):
            start = time.process_time()
            session = begin(
                "digits", "dhvt/digits", cell.seed, f"{folder}/bare-{number}", False, overrides, "benchmark"
            )
            fit(session)
            task_of(session.run).evaluate(session.dataset)
            session.run.unlock()
            alone = time.process_time() - start
            start = time.process_time()
            work.train(cell)
            spent = time.process_time() - start
            if number:  # the first pair pays for what happens once
                ratios.append(spent / alone)
                seconds.append(alone)
    print(
        f"bare run {median(seconds):.1f} s; cell / run: median {median(ratios):.3f} of",
        [round(ratio, 3) for ratio in sorted(ratios)],
    )


if __name__ == "__main__":
    main()
