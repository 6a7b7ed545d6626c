# SPDX-License-Identifier: Apache-2.0
"""Successive halving: train all contenders briefly, go on with the better half, twice.

Every round is a training of its own with its own complete schedule of rates, because a short training is no prefix of a
long one. What is dropped follows from the outcomes alone, so that processes need not agree on anything.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016,
arXiv:1502.07943, Figure 3; deviations: rounds start anew, and the baseline always stays, for the differences.
"""

from dataclasses import dataclass, replace
from statistics import fmean

from ..declare.grid import Cell, Grid
from ..declare.terms import Amount
from ..folder import StudyDir, locked
from ..plan.plan import survivors
from .outcomes import Outcome, Outcomes, rows_as_csv


@dataclass(frozen=True)
class Decision:
    """What a round came to on one amount of data.

    Args:
        round: 0-based.
        amount: of training data.
        scores: contender -> mean accuracy of the round, in [0, 1], best first; None where every cell failed.
        kept: names of those that go on.
    """

    round: int
    amount: Amount
    scores: dict[str, float | None]
    kept: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """As the log says it."""
        told = [
            f"{name} {'failed' if score is None else f'{100 * score:.1f} %'}" for name, score in self.scores.items()
        ]
        dropped = [name for name in self.scores if name not in self.kept]
        return f"round {self.round + 1}, {self.amount.name}: {', '.join(told)}; " + (
            f"dropped {', '.join(dropped)}" if dropped else "all go on"
        )


def schedule(grid: Grid, outcomes: Outcomes) -> tuple[list[Cell], list[Decision]]:
    """The cells that are to be trained now, those that are finished included, and what was decided so far.

    A round of an amount opens when every cell of the one before is finished or failed.
    """
    cells: list[Cell] = []
    decisions: list[Decision] = []
    for amount in grid.amounts.each():
        left = [one.name for one in grid.contenders]
        for round in range(len(grid.terms.rounds)):
            now = [cell for cell in grid.cells(round) if cell.amount == amount and cell.contender.name in left]
            cells += now
            if round == len(grid.terms.rounds) - 1:
                break
            found = outcomes.all(now)
            if any(outcome.status not in ("finished", "failed") for outcome in found):
                break
            decisions.append(decide(grid, round, amount, found))
            left = list(decisions[-1].kept)
    order = {cell.name: position for position, cell in enumerate(every_cell(grid))}
    unique = {cell.name: cell for cell in cells}
    return sorted(unique.values(), key=lambda cell: order[cell.name]), decisions


def decide(grid: Grid, round: int, amount: Amount, outcomes: list[Outcome]) -> Decision:
    """Keep the better half by validation (by test, where nothing validates), the baseline and its doubles."""
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        share = outcome.val if outcome.val is not None else outcome.test
        values.setdefault(outcome.cell.contender.name, [])
        if share is not None:
            values[outcome.cell.contender.name].append(share)
    scores = {name: fmean(found) if found else None for name, found in values.items()}
    alive = sorted((name for name in values if values[name]), key=lambda name: -fmean(values[name]))
    ranked = [*alive, *(name for name in values if not values[name])]
    kept = alive[: survivors(len(ranked))]
    if grid.baseline.name in alive and grid.baseline.name not in kept:
        kept = [*kept[:-1], grid.baseline.name] if len(kept) > 1 else [*kept, grid.baseline.name]
    return Decision(round, amount, {name: scores[name] for name in ranked}, tuple(kept))


def every_cell(grid: Grid) -> list[Cell]:
    """All cells of all rounds, those of the full length first."""
    rounds = reversed(range(len(grid.terms.rounds)))
    return [cell for round in rounds for cell in grid.cells(round)]


def standing(grid: Grid, outcomes: Outcomes) -> list[Outcome]:
    """Every cell of all rounds as it stands now; what halving gave up is called dropped."""
    gone = dropped(schedule(grid, outcomes)[1])
    found = outcomes.all(every_cell(grid))
    return [
        replace(one, status="dropped")
        if one.status == "missing"
        and one.cell.round > gone.get((one.cell.contender.name, one.cell.amount.name), len(grid.terms.rounds))
        else one
        for one in found
    ]


def write_table(study: StudyDir, outcomes: Outcomes) -> None:
    """table.csv as it stands now; of two processes, the later one has the last word."""
    with locked(study.path / "locks" / "table"):
        study.write("table.csv", rows_as_csv([one.row for one in standing(study.grid, outcomes)]))


def dropped(decisions: list[Decision]) -> dict[tuple[str, str], int]:
    """Names of contender and amount -> the 0-based round after which halving dropped it."""
    return {
        (name, decision.amount.name): decision.round
        for decision in decisions
        for name in decision.scores
        if name not in decision.kept
    }
