# SPDX-License-Identifier: Apache-2.0
"""Successive halving in rungs: train all candidates briefly, continue with the better half, twice.

Every rung is a training with its own complete schedule of learning rates, because a short training is no prefix of a
long one. What is dropped follows from the outcomes alone, so that processes need not agree on anything.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016,
arXiv:1502.07943, Figure 3; deviations: rungs start from scratch, and the baseline always stays, for the differences.
"""

from dataclasses import dataclass, replace
from statistics import fmean

from .folder import StudyFolder
from .grid import Cell, Grid
from .measures import Measure, measure
from .outcomes import Outcome, Outcomes, rows_as_csv
from .plan import survivors
from .terms import Subset


@dataclass(frozen=True)
class Decision:
    """The candidates that one rung of halving keeps, on one training subset."""

    rung: int  # 0-based
    subset: Subset
    # Candidate -> mean accuracy of the rung, in [0, 1], best first; None where every cell failed.
    scores: dict[str, float | None]
    kept: tuple[str, ...]
    by: str  # the images that decided: validation, or test where there are no validation images
    measure: Measure

    @property
    def sentence(self) -> str:
        """A sentence for the log."""
        scores = ", ".join(
            f"{name} {'failed' if score is None else self.measure.value(score)}" for name, score in self.scores.items()
        )
        by = f"by {self.by} images" + (" (there are no validation images)" if self.by == "test" else "")
        dropped = [name for name in self.scores if name not in self.kept]
        result = f"dropped {', '.join(dropped)}" if dropped else "all continue"
        return f"rung {self.rung + 1}, {self.subset.name}, {by}: {scores}; {result}"


def schedule(grid: Grid, outcomes: Outcomes) -> tuple[list[Cell], list[Decision]]:
    """Return the cells to train at present, finished ones included, and the decisions so far.

    A rung of a subset opens when every cell of the one before is finished or failed.
    """
    chosen: dict[str, Cell] = {}
    decisions: list[Decision] = []
    for subset in grid.subsets.each():
        left = {candidate.name for candidate in grid.candidates}
        for rung in range(len(grid.terms.rungs)):
            current = [cell for cell in grid.cells(rung) if cell.subset == subset and cell.candidate.name in left]
            chosen |= {cell.name: cell for cell in current}
            if rung == len(grid.terms.rungs) - 1:
                break
            results = outcomes.all(current)
            if any(outcome.status not in ("finished", "failed") for outcome in results):
                break
            decisions.append(decide(grid, rung, subset, results))
            left = set(decisions[-1].kept)
    order = dict.fromkeys(cell.name for cell in every_cell(grid))
    return [chosen[name] for name in order if name in chosen], decisions


def decide(grid: Grid, rung: int, subset: Subset, outcomes: list[Outcome]) -> Decision:
    """Keep the better half by validation (by test, without validation images), and the baseline."""
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        value = outcome.val if outcome.val is not None else outcome.test
        values.setdefault(outcome.cell.candidate.name, []).extend([] if value is None else [value])
    scores = {name: fmean(numbers) if numbers else None for name, numbers in values.items()}
    ranked = sorted(scores, key=lambda name: (scores[name] is None, -(scores[name] or 0.0)))
    alive = [name for name in ranked if scores[name] is not None]
    kept = alive[: survivors(len(ranked))]
    if grid.baseline.name in alive and grid.baseline.name not in kept:
        kept = [*kept[:-1], grid.baseline.name]
    by = "validation" if any(outcome.val is not None for outcome in outcomes) else "test"
    measured = {outcome.measured for outcome in outcomes if outcome.status == "finished"} or {"accuracy"}
    return Decision(rung, subset, {name: scores[name] for name in ranked}, tuple(kept), by, measure(measured))


def every_cell(grid: Grid) -> list[Cell]:
    """Return all cells of all rungs, those of the full length first."""
    rungs = reversed(range(len(grid.terms.rungs)))
    return [cell for rung in rungs for cell in grid.cells(rung)]


def current_outcomes(grid: Grid, outcomes: Outcomes) -> list[Outcome]:
    """Return the outcome of every cell of all rungs; cells that halving gave up are called dropped."""
    last_rungs = {
        (name, decision.subset.name): decision.rung
        for decision in schedule(grid, outcomes)[1]
        for name in decision.scores
        if name not in decision.kept
    }

    def is_dropped(outcome: Outcome) -> bool:
        last = last_rungs.get((outcome.cell.candidate.name, outcome.cell.subset.name), len(grid.terms.rungs))
        return outcome.status == "missing" and outcome.cell.rung > last

    every = outcomes.all(every_cell(grid))
    return [replace(outcome, status="dropped") if is_dropped(outcome) else outcome for outcome in every]


def write_table(study: StudyFolder, outcomes: Outcomes) -> None:
    """Write table.csv; the later of two processes overwrites it."""
    with study.locked("table"):
        study.write("table.csv", rows_as_csv([outcome.row for outcome in current_outcomes(study.grid, outcomes)]))
