# SPDX-License-Identifier: Apache-2.0
"""How long every cell trains: measured paces, a budget, and terms that are equal for all.

    cost of a study = sum over rounds, contenders left in the round, amounts, seeds of
                      (training time of the cell's epochs) + START

    a cell trains max(1, round(s f E)) epochs in a round of share s, where the terms set E:

    epochs   --epochs, else those of the longest recipe, for all
    recipe   the recipe's own
    time     those that fit into the time in which the slowest contender, on that amount, trains the former

The budget sets f, the same for all, as the largest in (0, 1] whose cost stays within it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...errors import UserError
from ...optim import shortened_warmup
from ..declare.grid import Cell, Contender, Grid
from ..declare.terms import Amount
from .pace import Pace

START = 1.0
"""Seconds that a cell takes besides its epochs and its evaluation, apart from a process's start."""

Key = tuple[str, str]
"""Names of a contender and an amount."""


@dataclass(frozen=True)
class Plan:
    """Epochs of every contender on every amount of data.

    Args:
        epochs: of the full length.
        paces: measured; empty where nothing was.
        own: epochs of every contender's recipe.
        warmups: warm-up epochs of the recipe; None where it follows the length by itself.
        share: of the full length that the budget leaves.
    """

    epochs: dict[Key, int]
    paces: dict[Key, Pace]
    own: dict[str, int]
    warmups: dict[str, float | None]
    share: float = 1.0

    def overrides(self, grid: Grid, cell: Cell) -> dict[str, Any]:
        """Recipe keys of a cell's length, where it is planned; a warm-up keeps its share of the training."""
        if (cell.contender.name, cell.amount.name) not in self.epochs:
            return cell.overrides(grid.conditions)  # added to study.yaml since
        share = grid.terms.rounds[cell.round]
        full, own = self.epochs[cell.contender.name, cell.amount.name], self.own[cell.contender.name]
        epochs = max(1, round(share * full))
        found: dict[str, Any] = {"train.epochs": epochs, **cell.overrides(grid.conditions)}
        warmup = self.warmups[cell.contender.name]
        if warmup is not None and epochs != own:
            found["schedule.warmup_epochs"] = shortened_warmup(warmup, own, epochs)
        return found

    def seconds(self, cell: Cell, grid: Grid) -> float | None:
        """Estimate of one cell; None where nothing was measured."""
        pace = self.paces.get((cell.contender.name, cell.amount.name))
        if pace is None:
            return None
        return pace.training(self.overrides(grid, cell)["train.epochs"]) + START

    def total(self, grid: Grid) -> float | None:
        """Estimate of the whole study, halving included."""
        return cost(grid, self) if self.paces else None

    def fewest_steps(self) -> int | None:
        """Optimiser steps of the shortest cell at full length; None where nothing was measured."""
        return min((self.epochs[key] * pace.steps for key, pace in self.paces.items()), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "epochs": [[*key, epochs] for key, epochs in self.epochs.items()],
            "paces": [[*key, asdict(pace)] for key, pace in self.paces.items()],
            "own": self.own,
            "warmups": self.warmups,
            "share": self.share,
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> "Plan":
        """What `to_dict` gave."""
        return Plan(
            {(one, amount): epochs for one, amount, epochs in found["epochs"]},
            {(one, amount): Pace(**pace) for one, amount, pace in found["paces"]},
            found["own"],
            found["warmups"],
            found["share"],
        )


def make_plan(
    grid: Grid,
    own: dict[str, int],
    warmups: dict[str, float | None],
    paces: dict[Key, Pace],
    workers: int = 1,
    known: Plan | None = None,
) -> Plan:
    """Choose every cell's epochs.

    Args:
        grid: the study.
        own: epochs of every contender's recipe.
        warmups: its warm-up epochs.
        paces: of every contender on every amount; may be empty where the grid has no budget.
        workers: cells that train at the same time.
        known: the plan so far of a study that was extended since; what it says stays.

    Raises: UserError if even the shortest trainings exceed the budget.
    """
    longest = grid.epochs or max(own.values())

    def length(one: Contender, amount: Amount) -> float:
        """The full length, before the budget shortens it."""
        if grid.terms.equal == "time" and (one.name, amount.name) in paces:
            slowest = max(pace.epoch for (_, named), pace in paces.items() if named == amount.name)
            return longest * slowest / paces[one.name, amount.name].epoch
        return longest if grid.terms.equal == "epochs" else grid.epochs or own[one.name]

    def scaled(share: float) -> Plan:
        lengths = {
            (one.name, amount.name): max(1, int(share * length(one, amount) + 1e-9))
            for one in grid.contenders
            for amount in grid.amounts.each()
        }
        kept = known.epochs if known else {}
        return Plan({**lengths, **kept}, paces, own, warmups, share)

    if known is not None:
        return scaled(known.share)
    budget = (grid.terms.seconds or float("inf")) * workers
    if cost(grid, scaled(1.0)) <= budget:
        return scaled(1.0)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(grid, scaled(middle)) <= budget else (low, middle)
    shortest = 2 ** (len(grid.terms.rounds) - 1)  # epochs that leave every round at least one
    found = scaled(low)
    if cost(grid, found) > budget or min(found.epochs.values()) < shortest:
        least = cost(grid, replace(found, epochs=dict.fromkeys(found.epochs, shortest))) / workers
        raise UserError(
            f"a budget of {grid.terms.budget} is too short for {len(grid.cells())} cells: {shortest} "
            f"epoch{'s' * (shortest > 1)} of each take about {max(least, 60) / 60:.0f} min; take fewer recipes, "
            "amounts or seeds, or a longer budget"
        )
    return found


def survivors(contenders: int) -> int:
    """How many contenders stay after a round: the better half, but two."""
    return min(contenders, max(2, -(-contenders // 2)))


def cost(grid: Grid, plan: Plan) -> float:
    """Seconds of one process for the whole study; of contenders that halving drops, the most expensive are kept."""
    total, slugs = 0.0, grid.slugs()
    single = {slugs[one.name]: one.name for one in grid.contenders}.values()  # of those that share their cells
    first = [
        [cell for cell in grid.cells(round) if cell.seed == grid.seeds[0]] for round in range(len(grid.terms.rounds))
    ]
    for amount in grid.amounts.each():
        left = len(single)
        for cells in first:
            here = [cell for cell in cells if cell.amount == amount and cell.contender.name in single]
            spent = sorted(len(grid.seeds) * (plan.seconds(cell, grid) or 0.0) for cell in here)
            total += sum(spent[-left:])
            left = survivors(left)
    return total
