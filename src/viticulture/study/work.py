# SPDX-License-Identifier: Apache-2.0
"""Train whatever of a study is missing, one cell after the other; any number of processes may do so at once."""

import gc
import time
from collections.abc import Callable, Iterable

from .cell import contents, train_cell
from .folder import StudyFolder
from .grid import Cell
from .halving import Decision, every_cell, schedule, write_table
from .outcomes import Outcome, Outcomes
from .plan import StudyPlan

POLL_SECONDS = 1.0
Tell = Callable[[str], None]


class Work:
    """One process's part in a study.

    Args:
        study: its folder; the plan is made.
        tell: is told a line about every cell.
        skip: names of cells to leave alone, because they end their process.
    """

    def __init__(self, study: StudyFolder, tell: Tell, skip: Iterable[str] = ()) -> None:
        self.study, self.tell = study, tell
        self.plan = StudyPlan.from_dict(study.facts["plan"])
        self.outcomes = Outcomes(study)
        self.tried = set(skip)  # a cell that fails is tried once by each process

    def run(self) -> None:
        """Until nothing is left that this process can do. Waits where a rung depends on others' cells."""
        gc.freeze()  # what was imported need not be searched after every cell
        try:
            self._run()
        finally:
            gc.unfreeze()

    def _run(self) -> None:
        while True:
            wanted, decisions = schedule(self.study.grid, self.outcomes)
            self._log(decisions)
            left = [cell for cell in wanted if cell.name not in self.tried and not self._finished(cell)]
            if not left:
                return
            if any(self._give_up(cell) for cell in left):
                continue
            ready = [cell for cell in left if not self._unmet(cell)]
            if not any(self._one(cell) for cell in ready):
                if ready == left and not self.study.grid.terms.halving:
                    return  # others train what is left
                time.sleep(POLL_SECONDS)

    def one(self, cell: Cell) -> bool:
        """Train one cell, and first those that it learns from, unless it is finished or another process trains it;
        whether this process did. Waits for others that train what it learns from."""
        while not self._finished(cell) and (unmet := self._unmet(cell)):
            if self._give_up(cell):
                return False
            if not any(self.one(need) for need in unmet if need.name not in self.tried):
                time.sleep(POLL_SECONDS)
        return not self._finished(cell) and self._one(cell)

    def _unmet(self, cell: Cell) -> list[Cell]:
        """Cells that must be finished before this one begins."""
        return [need for need in self.study.grid.needs(cell) if not self._finished(need)]

    def _give_up(self, cell: Cell) -> bool:
        """Whether a cell cannot be trained, because one that it learns from failed here; then that is recorded."""
        failed = [need for need in self._unmet(cell) if need.name in self.tried]
        for need in failed[:1]:
            self.tried.add(cell.name)
            self.study.record_failure(cell, f"it learns from {need.candidate.name}, which failed")
            self._say(self.outcomes.of(cell), 0.0)
        return bool(failed)

    def _one(self, cell: Cell) -> bool:
        with self.study.claim(cell) as mine:
            if not mine or self._finished(cell):
                return False
            self.tried.add(cell.name)
            began = time.monotonic()
            try:
                train_cell(self.study, cell, self.plan)
            except Exception as error:
                self.study.record_failure(cell, error)
            else:
                self.study.forget_failure(cell)
            outcome = self.outcomes.of(cell)
            write_table(self.study, self.outcomes)
            self._say(outcome, time.monotonic() - began)
        return True

    def _finished(self, cell: Cell) -> bool:
        return self.outcomes.of(cell).status == "finished"

    def _say(self, outcome: Outcome, seconds: float) -> None:
        cell = outcome.cell
        cells = {cell.name: cell for cell in self.study.grid.cells()}
        done = sum(self._finished(other) for other in cells.values())
        number = "trained" if outcome.score is None else f"{100 * outcome.score:.1f} %"
        came = f"failed: {outcome.error}" if outcome.status == "failed" else number
        stage = f", rung {cell.rung + 1}" if self.study.grid.terms.halving else ""
        words = f"{cell.candidate.name}, {cell.subset.name}, {cell.unit} {cell.seed}{stage}: {came}, {seconds:.0f} s"
        self.tell(f"[{done}/{len(cells)}] {words}")

    def _log(self, decisions: list[Decision]) -> None:
        """Keep halving's decisions in study.json, each said once."""
        known = self.study.facts.get("decisions", [])
        sentences = [decision.sentence for decision in decisions]
        if new := [sentence for sentence in sentences if sentence not in known]:
            self.study.update(decisions=[*known, *new])
            for sentence in new:
                self.tell(sentence)


def changed(study: StudyFolder, plan: StudyPlan) -> list[str]:
    """Names of finished cells that were trained under other settings than the study's."""
    outcomes = Outcomes(study)
    return [
        cell.name
        for cell in every_cell(study.grid)
        if (facts := outcomes.of(cell).facts) and facts.get("cell") not in (None, contents(study, cell, plan))
    ]
