# SPDX-License-Identifier: Apache-2.0
"""Train the missing cells of a study, one after the other; any number of processes may do so at once."""

import gc
import time
from collections.abc import Callable, Iterable

from .cell import contents, train_cell
from .folder import StudyFolder
from .grid import Cell
from .halving import Decision, every_cell, schedule, write_table
from .measures import measure
from .outcomes import Outcome, Outcomes
from .plan import StudyPlan

POLL_SECONDS = 1.0


class Worker:
    """One process that trains cells of a study. `skip`: names of cells to leave alone, as they end their process."""

    def __init__(self, study: StudyFolder, log: Callable[[str], None], skip: Iterable[str] = ()) -> None:
        self.study, self.log = study, log
        self.plan = StudyPlan.from_dict(study.metadata["plan"])
        self.outcomes = Outcomes(study)
        self.tried = set(skip)  # each process tries a failing cell once

    def run(self) -> None:
        """Train until nothing is left that this process can do. Waits where a rung depends on others' cells."""
        gc.freeze()  # imported modules need not be searched after every cell
        try:
            while self._train_some():
                pass
        finally:
            gc.unfreeze()

    def _train_some(self) -> bool:
        """Train one cell, or wait; return whether more may follow."""
        cells, decisions = schedule(self.study.grid, self.outcomes)
        self._log_decisions(decisions)
        left = [cell for cell in cells if cell.name not in self.tried and not self._finished(cell)]
        if not left:
            return False
        if any(self._give_up(cell) for cell in left):
            return True
        ready = [cell for cell in left if not self._unmet(cell)]
        if not any(self._train(cell) for cell in ready):
            if ready == left and not self.study.grid.terms.halving:
                return False  # others train what is left
            time.sleep(POLL_SECONDS)
        return True

    def train(self, cell: Cell) -> bool:
        """Train one cell, after those whose runs it uses, unless it is finished or another process trains it; return
        whether this process did. Waits for others that train the cells that it needs."""
        while not self._finished(cell) and (unmet := self._unmet(cell)):
            if self._give_up(cell):
                return False
            if not any(self.train(need) for need in unmet if need.name not in self.tried):
                time.sleep(POLL_SECONDS)
        return not self._finished(cell) and self._train(cell)

    def _unmet(self, cell: Cell) -> list[Cell]:
        """Return cells that must be finished before this one begins."""
        return [need for need in self.study.grid.needs(cell) if not self._finished(need)]

    def _give_up(self, cell: Cell) -> bool:
        """Record and return that a cell cannot be trained, if one whose run it uses failed in this process."""
        failed = [need for need in self._unmet(cell) if need.name in self.tried]
        for need in failed[:1]:
            self.tried.add(cell.name)
            self.study.record_failure(cell, f"it uses the run of {need.candidate.name}, which failed")
            self._log_outcome(self.outcomes.of(cell), 0.0)
        return bool(failed)

    def _train(self, cell: Cell) -> bool:
        with self.study.claim(cell) as claimed:
            if not claimed or self._finished(cell):
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
            self._log_outcome(outcome, time.monotonic() - began)
        return True

    def _finished(self, cell: Cell) -> bool:
        return self.outcomes.of(cell).status == "finished"

    def _log_outcome(self, outcome: Outcome, seconds: float) -> None:
        cell = outcome.cell
        cells = {cell.name: cell for cell in self.study.grid.cells()}
        done = sum(self._finished(other) for other in cells.values())
        result = "trained" if outcome.score is None else measure([outcome.measured]).value(outcome.score)
        result = f"failed: {outcome.error}" if outcome.status == "failed" else result
        rung = f", rung {cell.rung + 1}" if self.study.grid.terms.halving else ""
        name = f"{cell.candidate.name}, {cell.subset.name}, {cell.unit} {cell.seed}{rung}"
        self.log(f"[{done}/{len(cells)}] {name}: {result}, {seconds:.0f} s")

    def _log_decisions(self, decisions: list[Decision]) -> None:
        """Write halving's decisions into study.json, and log each once."""
        logged = self.study.metadata.get("decisions", [])
        sentences = [decision.sentence for decision in decisions]
        if new := [sentence for sentence in sentences if sentence not in logged]:
            self.study.update(decisions=[*logged, *new])
            for sentence in new:
                self.log(sentence)


def changed(study: StudyFolder, plan: StudyPlan) -> list[str]:
    """Return names of finished cells that were trained under other settings than the study's."""
    outcomes = Outcomes(study)
    return [
        cell.name
        for cell in every_cell(study.grid)
        if (metadata := outcomes.of(cell).metadata) and metadata.get("cell") not in (None, contents(study, cell, plan))
    ]
