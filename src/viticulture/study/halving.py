# SPDX-License-Identifier: Apache-2.0
"""Successive halving in rungs: train all candidates briefly, go on with the better half, twice.

Every rung is a training of its own with its own complete schedule of rates, because a short training is no prefix of a
long one. What is dropped follows from the outcomes alone, so that processes need not agree on anything.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016,
arXiv:1502.07943, Figure 3; deviations: rungs start anew, and the baseline always stays, for the differences.
"""

from dataclasses import dataclass, replace
from statistics import fmean

from .folder import StudyFolder
from .grid import Cell, Grid
from .outcomes import Outcome, Outcomes, rows_as_csv
from .plan import survivors
from .terms import Subset


@dataclass(frozen=True)
class Decision:
    """Which candidates one rung of halving keeps, on one training subset.

    Args:
        rung: 0-based.
        subset: of training data.
        scores: candidate -> mean accuracy of the rung, in [0, 1], best first; None where every cell failed.
        kept: names of those that go on.
        by: the images that chose: validation, or test where nothing validates.
    """

    rung: int
    subset: Subset
    scores: dict[str, float | None]
    kept: tuple[str, ...]
    by: str

    @property
    def sentence(self) -> str:
        """As the log says it."""
        shares = [
            f"{name} {'failed' if score is None else f'{100 * score:.1f} %'}" for name, score in self.scores.items()
        ]
        dropped = [name for name in self.scores if name not in self.kept]
        by = f"by {self.by} images" + (", as nothing validates" if self.by == "test" else "")
        return f"rung {self.rung + 1}, {self.subset.name}, {by}: {', '.join(shares)}; " + (
            f"dropped {', '.join(dropped)}" if dropped else "all go on"
        )


def schedule(grid: Grid, outcomes: Outcomes) -> tuple[list[Cell], list[Decision]]:
    """The cells that are to be trained now, those that are finished included, and what was decided so far.

    A rung of a subset opens when every cell of the one before is finished or failed.
    """
    cells: list[Cell] = []
    decisions: list[Decision] = []
    for subset in grid.subsets.each():
        left = [candidate.name for candidate in grid.candidates]
        for rung in range(len(grid.terms.rungs)):
            now = [cell for cell in grid.cells(rung) if cell.subset == subset and cell.candidate.name in left]
            cells += now
            if rung == len(grid.terms.rungs) - 1:
                break
            standing_now = outcomes.all(now)
            if any(outcome.status not in ("finished", "failed") for outcome in standing_now):
                break
            decisions.append(decide(grid, rung, subset, standing_now))
            left = list(decisions[-1].kept)
    order = {cell.name: position for position, cell in enumerate(every_cell(grid))}
    unique = {cell.name: cell for cell in cells}
    return sorted(unique.values(), key=lambda cell: order[cell.name]), decisions


def decide(grid: Grid, rung: int, subset: Subset, outcomes: list[Outcome]) -> Decision:
    """Keep the better half by validation (by test, where nothing validates), and the baseline."""
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        share = outcome.val if outcome.val is not None else outcome.test
        values.setdefault(outcome.cell.candidate.name, [])
        if share is not None:
            values[outcome.cell.candidate.name].append(share)
    scores = {name: fmean(shares) if shares else None for name, shares in values.items()}
    alive = sorted((name for name in values if values[name]), key=lambda name: -fmean(values[name]))
    ranked = [*alive, *(name for name in values if not values[name])]
    kept = alive[: survivors(len(ranked))]
    if grid.baseline.name in alive and grid.baseline.name not in kept:
        kept = [*kept[:-1], grid.baseline.name]
    by = "validation" if any(outcome.val is not None for outcome in outcomes) else "test"
    return Decision(rung, subset, {name: scores[name] for name in ranked}, tuple(kept), by)


def every_cell(grid: Grid) -> list[Cell]:
    """All cells of all rungs, those of the full length first."""
    rungs = reversed(range(len(grid.terms.rungs)))
    return [cell for rung in rungs for cell in grid.cells(rung)]


def standing(grid: Grid, outcomes: Outcomes) -> list[Outcome]:
    """Every cell of all rungs as it stands now; what halving gave up is called dropped."""
    gone = dropped(schedule(grid, outcomes)[1])
    standings = outcomes.all(every_cell(grid))
    return [
        replace(outcome, status="dropped")
        if outcome.status == "missing"
        and outcome.cell.rung > gone.get((outcome.cell.candidate.name, outcome.cell.subset.name), len(grid.terms.rungs))
        else outcome
        for outcome in standings
    ]


def write_table(study: StudyFolder, outcomes: Outcomes) -> None:
    """table.csv as it stands now; of two processes, the later one has the last word."""
    with study.locked("table"):
        study.write("table.csv", rows_as_csv([outcome.row for outcome in standing(study.grid, outcomes)]))


def dropped(decisions: list[Decision]) -> dict[tuple[str, str], int]:
    """Names of candidate and subset -> the 0-based rung after which halving dropped it."""
    return {
        (name, decision.subset.name): decision.rung
        for decision in decisions
        for name in decision.scores
        if name not in decision.kept
    }
