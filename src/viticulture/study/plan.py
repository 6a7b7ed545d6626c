# SPDX-License-Identifier: Apache-2.0
"""How long every cell trains: measured paces, a budget, and terms that are equal for all.

    cost of a study = sum over rungs of the time until its processes have trained the cells that are left in the rung,
                      each of which takes (training time of the cell's epochs) + START

    a cell trains round(s F) epochs in a rung of share s, F = floor(f E), neither less than 1, where the terms set E:

    epochs   --epochs, else those of the longest recipe, for all
    recipe   the recipe's own
    time     those that fit into the time in which the slowest candidate, on that subset, trains the former

The budget sets f, the same for all, as the largest in (0, 1] whose cost stays within it. Where it may be one of
several, it is the shortest that leaves `FEW_STEPS` to every cell. How images are shown it chooses too, where nobody
names it: larger, and answered by several views, where `LARGER_EPOCHS` are left to every cell.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from heapq import heapreplace
from math import ceil
from typing import Any

from ..errors import UserError, counted
from ..keywords import annotations, rebuilt
from ..optim import shortened_warmup
from .grid import Candidate, Cell, Grid
from .step_times import StepTimes
from .terms import AUTO, Subset, duration

START = 1.0
"""Seconds that a cell takes besides its epochs and its evaluation, apart from a process's start."""

LARGER_EPOCHS = 60
"""Images are shown larger only where a budget buys so many epochs of them, or all that are wanted."""

FEW_STEPS = 300
"""Optimizer steps below which every method is still near chance."""

IMAGE_SIZE, VIEWS = "images.image_size", "images.eval_views"
"""Recipe keys that a budget may choose for all."""

Key = tuple[str, str]
"""Names of a candidate and a subset."""


@dataclass(frozen=True)
class StudyPlan:
    """Epochs of every candidate on every training subset.

    Args:
        epochs: of the full length.
        paces: measured; empty where nothing was.
        own: epochs of every candidate's recipe.
        warmups: warm-up epochs of the recipe; None where it follows the length by itself.
        share: of the full length that the budget leaves.
        budget: that shortens it; empty where none does.
        shown: recipe keys of how images are shown, the budget's choice for all candidates.
        named: candidates added since -> those of these keys that they name themselves, which the budget leaves.
        longest: epochs of the longest recipe of those planned first; 0 in plans of versions that did not keep it.
    """

    epochs: dict[Key, int]
    paces: dict[Key, StepTimes]
    own: dict[str, int]
    warmups: dict[str, float | None]
    share: float = 1.0
    budget: str = ""
    shown: dict[str, Any] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)
    longest: int = 0

    def shown_to(self, candidate: Candidate) -> dict[str, Any]:
        """Recipe keys of how images are shown that the budget chose for a candidate."""
        unplanned = candidate.name not in self.own  # added to study.yaml since
        own = candidate.overrides if unplanned else self.named.get(candidate.name, ())
        return {key: value for key, value in self.shown.items() if key not in own}

    def size(self, candidate: Candidate) -> dict[str, Any]:
        """The one of these keys that says the images' size, if any does."""
        return {key: value for key, value in self.shown_to(candidate).items() if key == IMAGE_SIZE}

    @property
    def is_ample(self) -> bool:
        """Whether every cell gets as many epochs as larger images deserve."""
        return self.share == 1 or min(self.epochs.values()) >= LARGER_EPOCHS

    def overrides(self, grid: Grid, cell: Cell) -> dict[str, Any]:
        """Recipe keys of how images are shown and of a cell's length, where it is planned; a warm-up keeps its share of
        the training."""
        shown = self.shown_to(cell.candidate)
        if (cell.candidate.name, cell.subset.name) not in self.epochs:
            return {**shown, **cell.overrides(grid.conditions)}  # added to study.yaml since
        share = grid.terms.rungs[cell.rung]
        full, own = self.epochs[cell.candidate.name, cell.subset.name], self.own[cell.candidate.name]
        epochs = rung_epochs(share, full)
        overrides: dict[str, Any] = {"train.epochs": epochs, **shown, **cell.overrides(grid.conditions)}
        warmup = self.warmups[cell.candidate.name]
        if warmup is not None and epochs != own:
            overrides["schedule.warmup_epochs"] = shortened_warmup(warmup, own, epochs)
        return overrides

    def seconds(self, cell: Cell, grid: Grid) -> float | None:
        """Estimate of one cell; None where nothing was measured."""
        pace = self.paces.get((cell.candidate.name, cell.subset.name))
        if pace is None:
            return None
        return pace.training(self.overrides(grid, cell)["train.epochs"]) + START

    def total(self, grid: Grid) -> float | None:
        """Estimate of the whole study, halving included."""
        return cost(grid, self) if self.paces else None

    @property
    def fewest_steps(self) -> int | None:
        """Optimizer steps of the shortest cell at full length; None where nothing was measured."""
        return min((self.epochs[key] * pace.steps for key, pace in self.paces.items()), default=None)

    @property
    def tells(self) -> bool:
        """Whether every cell is long enough to tell how methods rank, as far as is known."""
        return self.fewest_steps is None or self.fewest_steps >= FEW_STEPS

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        epochs = [[*key, epochs] for key, epochs in self.epochs.items()]
        paces = [[*key, asdict(pace)] for key, pace in self.paces.items()]
        return {**vars(self), "epochs": epochs, "paces": paces}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "StudyPlan":
        """Return the plan that `to_dict` wrote. Raises: UserError for anything else."""
        try:
            epochs = rebuilt(list[tuple[str, str, int]], content["epochs"], "epochs")
            paces = rebuilt(list[tuple[str, str, StepTimes]], content["paces"], "paces")
            keyed: dict[str, Any] = {
                "epochs": {(name, subset): count for name, subset, count in epochs},
                "paces": {(name, subset): pace for name, subset, pace in paces},
            }
            kinds = annotations(StudyPlan)
            others = {key: rebuilt(kinds[key], value, key) for key, value in content.items() if key not in keyed}
            return StudyPlan(**keyed, **others)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the plan in study.json is damaged: {error}; bring back a copy of the file") from error


def make_plan(
    grid: Grid,
    own: dict[str, int],
    warmups: dict[str, float | None],
    paces: dict[Key, StepTimes],
    workers: int = 1,
    known: StudyPlan | None = None,
) -> StudyPlan:
    """Choose every cell's epochs.

    Args:
        grid: the study.
        own: epochs of every candidate's recipe.
        warmups: its warm-up epochs.
        paces: of every candidate on every subset; may be empty where the grid has no budget.
        workers: cells that train at the same time.
        known: the plan so far of a study that was extended since; what it says stays, and who is added learns as long.

    Raises: UserError if even the shortest trainings exceed the budget, or halving would train the same epochs twice.
    """
    first, spent = max(own.values()), dict[str, float]()
    if known is not None:  # candidates that study.yaml does not name now may be named again
        own, warmups = {**known.own, **own}, {**known.warmups, **warmups}
        first = known.longest or max(known.own.values())  # not that of who is added since
        for (name, named), epochs in known.epochs.items():
            if pace := known.paces.get((name, named)):
                spent[named] = max(spent.get(named, 0.0), epochs * pace.epoch)
    longest = grid.epochs or first

    def length(candidate: Candidate, subset: Subset) -> float:
        """The full length, before the budget shortens it."""
        if grid.terms.equal == "time" and (candidate.name, subset.name) in paces:
            slowest = max(pace.epoch for (_, named), pace in paces.items() if named == subset.name)
            return longest * slowest / paces[candidate.name, subset.name].epoch
        return longest if grid.terms.equal == "epochs" else grid.epochs or own[candidate.name]

    def shortened(candidate: Candidate, subset: Subset, share: float) -> float:
        """The full length; of who is added since, where time is equal, what the others' time has room for."""
        key = candidate.name, subset.name
        if grid.terms.equal == "time" and key in paces and subset.name in spent:
            return spent[subset.name] / paces[key].epoch
        return share * length(candidate, subset)

    def scaled(share: float) -> StudyPlan:
        lengths = {
            (candidate.name, subset.name): max(1, int(shortened(candidate, subset, share) + 1e-9))
            for candidate in grid.candidates
            for subset in grid.subsets.each()
        }
        kept = known.epochs if known else {}
        if kept and grid.terms.equal == "epochs":
            lengths = dict.fromkeys(lengths, max(kept.values()))
        return StudyPlan({**lengths, **kept}, paces, own, warmups, share, longest=first)

    def within(budget: str) -> StudyPlan:
        """The longest lengths that it affords. Raises: UserError if it is too short."""
        seconds = duration(budget)
        if cost(grid, scaled(1.0), workers) <= seconds:
            return scaled(1.0)
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if cost(grid, scaled(middle), workers) <= seconds else (low, middle)
        shortest = 2 ** (len(grid.terms.rungs) - 1)  # epochs that leave every rung at least one
        plan = scaled(low)
        if cost(grid, plan, workers) > seconds or min(plan.epochs.values()) < shortest:
            least = cost(grid, replace(plan, epochs=dict.fromkeys(plan.epochs, shortest)), workers)
            raise UserError(
                f"a budget of {budget} is too short for {len(grid.cells())} cells: {counted(shortest, 'epoch')} "
                f"of each take{'s' * (shortest == 1)} about {ceil(least / 60)} min; take fewer recipes, "
                "subsets or seeds, a smaller --image-size, or a longer budget"
            )
        return replace(plan, budget=budget)

    if known is not None:
        return replace(scaled(known.share), budget=known.budget)
    for (name, _), full in scaled(1.0).epochs.items():
        each = [rung_epochs(share, full) for share in grid.terms.rungs]
        if len(set(each)) < len(each):
            raise UserError(
                f"halving trains {name} for {', then '.join(map(str, each))} epochs, some of them twice; give it more "
                "epochs (--epochs), or leave --halving out"
            )
    if not grid.terms.budgets:
        return scaled(1.0)
    *shorter, longest_budget = grid.terms.budgets
    for budget in shorter:
        with suppress(UserError):  # not one epoch fits
            plan = within(budget)
            if plan.share == 1 or plan.tells:
                return plan
    return within(longest_budget)


def check_budget(grid: Grid, plan: StudyPlan, workers: int = 1) -> None:
    """Raises: UserError, with the time that would do, for a named budget that shortens trainings to fewer steps than
    can rank methods."""
    steps = plan.fewest_steps
    if steps is None or plan.tells or plan.share == 1 or grid.terms.budget in ("", AUTO):
        return
    factor = min(FEW_STEPS / steps, 1 / plan.share)
    enough = replace(plan, epochs={key: ceil(factor * epochs) for key, epochs in plan.epochs.items()})
    one = replace(grid, seeds=grid.seeds[:1])
    times = [ceil(cost(each, enough, workers) / 60) for each in (grid, one)]
    fewer = f", of one {grid.unit} about {times[1]} min" if len(grid.seeds) > 1 else ""
    raise UserError(
        f"a budget of {grid.terms.budget} leaves {counted(steps, 'step')} to the shortest of {len(grid.cells())} "
        f"trainings, too few to tell how methods rank (from {FEW_STEPS} on): all of them take about {times[0]} min"
        f"{fewer}; give --budget {times[0]}m, or fewer recipes, subsets or {grid.unit}s, or --epochs without a budget"
    )


def dearest(choices: Sequence[dict[str, Any]], planned: Callable[[dict[str, Any]], StudyPlan]) -> StudyPlan:
    """The plan of the dearest way of showing images that a budget affords; of the cheapest where it affords no other.

    Args:
        choices: recipe keys, from cheap to dear.
        planned: measures and plans with them.

    Raises: UserError if even the cheapest exceeds the budget.
    """
    plan = planned(choices[0])
    for keys in choices[1:]:
        if not plan.is_ample:
            break
        try:
            tried = planned(keys)
        except UserError:  # not one epoch fits
            break
        if not tried.is_ample:
            break
        plan = tried
    return plan


def rung_epochs(share: float, full: int) -> int:
    """Epochs of a training in a rung of such a share of the full length."""
    return max(1, round(share * full))


def survivors(candidates: int) -> int:
    """How many candidates stay after a rung: the better half, but two."""
    return min(candidates, max(2, -(-candidates // 2)))


def cost(grid: Grid, plan: StudyPlan, workers: int = 1) -> float:
    """Seconds until the last of so many processes, each of which takes the next cell when it is free, is done with the
    whole study; of candidates that halving drops, the most expensive are kept."""
    slugs = grid.slugs()
    single = {*{slugs[candidate.name]: candidate.name for candidate in grid.candidates}.values()}  # some share cells
    left, total = len(single), 0.0
    for rung in range(len(grid.terms.rungs)):
        of_rung = [cell for cell in grid.cells(rung) if cell.seed == grid.seeds[0]]  # other seeds' take as long
        first = [cell for cell in of_rung if cell.candidate.name in single]
        seconds = {(cell.subset, cell.candidate.name): plan.seconds(cell, grid) or 0.0 for cell in first}
        kept = {
            key
            for subset in grid.subsets.each()
            for key in sorted((key for key in seconds if key[0] == subset), key=lambda key: seconds[key])[-left:]
        }
        free = [0.0] * workers
        for took in [seconds[key] for key in seconds if key in kept] * len(grid.seeds):
            heapreplace(free, free[0] + took)
        total += max(free)
        left = survivors(left)
    return total
