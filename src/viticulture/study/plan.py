# SPDX-License-Identifier: Apache-2.0
"""Length of every cell, from measured step times, a budget, and terms that are equal for all.

    cost of a study = sum over rungs of the time until its processes have trained the cells that are left in the rung,
                      each of which takes (training time of the cell's epochs) + START

    a cell trains round(s F) epochs in a rung of fraction s, F = floor(f E), both at least 1, where the terms set E:

    epochs   --epochs, else those of the longest recipe, for all
    recipe   the recipe's own
    time     those that fit into the time in which the slowest candidate, on that subset, trains the former

The budget sets f, the same for all, as the largest in (0, 1] whose cost stays within it. Of several budgets it is the
shortest that leaves `MIN_RANKING_STEPS` to every cell. Unless they are given, it also chooses larger images and
test-time augmentation, where `LARGER_EPOCHS` are left to every cell.
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

START = 1.0  # seconds that a cell takes besides its epochs and its evaluation, apart from a process's start

LARGER_EPOCHS = 60  # images are larger only where a budget allows this number of epochs with them, or the full length

MIN_RANKING_STEPS = 300  # optimizer steps below which every method is still near chance

IMAGE_SIZE, EVAL_VIEWS = "images.image_size", "images.eval_views"  # recipe keys that a budget may choose for all

Key = tuple[str, str]  # names of a candidate and a subset


@dataclass(frozen=True)
class StudyPlan:
    """Epochs of every candidate on every training subset."""

    epochs: dict[Key, int]
    step_times: dict[Key, StepTimes]
    recipe_epochs: dict[str, int]
    warmups: dict[str, float | None]  # warm-up epochs of the recipe; None where it follows the length by itself
    scale: float = 1.0  # fraction of the full length that the budget leaves
    budget: str = ""
    # Recipe keys of image size and test-time augmentation that the budget chose for all candidates.
    image_keys: dict[str, Any] = field(default_factory=dict)
    # Candidates added later, or of trained networks -> those of these keys that they set.
    fixed_keys: dict[str, list[str]] = field(default_factory=dict)
    max_epochs: int = 0

    def budget_keys(self, candidate: Candidate) -> dict[str, Any]:
        """Return the image keys that the budget chose for a candidate."""
        unplanned = candidate.name not in self.recipe_epochs  # added to study.yaml later
        fixed = candidate.overrides if unplanned else self.fixed_keys.get(candidate.name, ())
        return {key: value for key, value in self.image_keys.items() if key not in fixed}

    def image_size(self, candidate: Candidate) -> dict[str, Any]:
        """Return the key of the image size that the budget chose for a candidate, if it did."""
        return {key: value for key, value in self.budget_keys(candidate).items() if key == IMAGE_SIZE}

    @property
    def allows_larger_images(self) -> bool:
        """True if every cell gets enough epochs for larger images."""
        return self.scale == 1 or min(self.epochs.values()) >= LARGER_EPOCHS

    def overrides(self, grid: Grid, cell: Cell) -> dict[str, Any]:
        """Return recipe keys of a cell's images and length, as far as planned; a warm-up keeps its fraction of the
        training."""
        keys = {**self.budget_keys(cell.candidate), **cell.overrides(grid.conditions)}
        if (cell.candidate.name, cell.subset.name) not in self.epochs:
            return keys  # added to study.yaml later
        full, in_recipe = self.epochs[cell.candidate.name, cell.subset.name], self.recipe_epochs[cell.candidate.name]
        epochs = rung_epochs(grid.terms.rungs[cell.rung], full)
        keys = {"train.epochs": epochs, **keys}
        warmup = self.warmups[cell.candidate.name]
        if warmup is not None and epochs != in_recipe:
            keys["schedule.warmup_epochs"] = shortened_warmup(warmup, in_recipe, epochs)
        return keys

    def seconds(self, cell: Cell, grid: Grid) -> float | None:
        """Estimate the time of one cell; None where nothing was measured."""
        times = self.step_times.get((cell.candidate.name, cell.subset.name))
        return None if times is None else times.training(self.overrides(grid, cell)["train.epochs"]) + START

    def total(self, grid: Grid) -> float | None:
        """Estimate the time of the whole study, halving included."""
        return cost(grid, self) if self.step_times else None

    @property
    def min_steps(self) -> int | None:
        """Optimizer steps of the shortest cell at full length; None where nothing was measured."""
        return min((self.epochs[key] * times.steps for key, times in self.step_times.items()), default=None)

    @property
    def about(self) -> str:
        """Word before a time that all trainings take: of some, it is exceeded."""
        return "about" if self.step_times.keys() >= self.epochs.keys() else "more than"

    @property
    def allows_ranking(self) -> bool:
        """True if every cell is long enough for a ranking of methods, as far as is known."""
        return self.min_steps is None or self.min_steps >= MIN_RANKING_STEPS

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        epochs = [[*key, epochs] for key, epochs in self.epochs.items()]
        return {
            **vars(self),
            "epochs": epochs,
            "step_times": [[*key, asdict(times)] for key, times in self.step_times.items()],
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "StudyPlan":
        """Return the plan that `to_dict` wrote. Raises: UserError for anything else."""
        lists = {"epochs": list[tuple[str, str, int]], "step_times": list[tuple[str, str, StepTimes]]}
        kinds = {**annotations(StudyPlan), **lists}
        try:
            values = {key: rebuilt(kinds[key], value, key) for key, value in content.items()}
            values |= {key: {(name, subset): value for name, subset, value in values[key]} for key in lists}
            return StudyPlan(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the plan in study.json is damaged: {error}; restore a copy of the file") from error


def make_plan(
    grid: Grid,
    recipe_epochs: dict[str, int],
    warmups: dict[str, float | None],
    step_times: dict[Key, StepTimes],
    workers: int = 1,
    previous: StudyPlan | None = None,
) -> StudyPlan:
    """Choose every cell's epochs.

    Args:
        step_times: of every candidate on every subset; may be empty where the grid has no budget.
        previous: the previous plan of a study that was extended: it stays, and added candidates train as long.

    Raises: UserError if even the shortest trainings exceed the budget, or halving would train the same epochs twice.
    """
    max_epochs, spent = max(recipe_epochs.values()), dict[str, float]()
    if previous is not None:  # candidates that study.yaml does not name at present may be named again
        recipe_epochs, warmups = {**previous.recipe_epochs, **recipe_epochs}, {**previous.warmups, **warmups}
        max_epochs = previous.max_epochs or max(previous.recipe_epochs.values())  # not that of added candidates
        for (name, subset_name), epochs in previous.epochs.items():
            if times := previous.step_times.get((name, subset_name)):
                spent[subset_name] = max(spent.get(subset_name, 0.0), epochs * times.epoch)
    longest, equal_time = grid.epochs or max_epochs, grid.terms.equal == "time"

    def length(candidate: Candidate, subset: Subset, scale: float) -> float:
        """Return the scaled length; of candidates that were added, where time is equal, the epochs that fit into the
        others' time."""
        times = step_times.get((candidate.name, subset.name)) if equal_time else None
        if times and subset.name in spent:
            return spent[subset.name] / times.epoch
        if times:
            slowest = max(each.epoch for (_, name), each in step_times.items() if name == subset.name)
            return scale * (longest * slowest / times.epoch)
        return scale * (longest if grid.terms.equal == "epochs" else grid.epochs or recipe_epochs[candidate.name])

    def scaled(scale: float) -> StudyPlan:
        lengths = {
            (candidate.name, subset.name): max(1, int(length(candidate, subset, scale) + 1e-9))
            for candidate in grid.candidates
            for subset in grid.subsets.each()
        }
        planned = previous.epochs if previous else {}
        if planned and grid.terms.equal == "epochs":
            lengths = dict.fromkeys(lengths, max(planned.values()))
        return StudyPlan({**lengths, **planned}, step_times, recipe_epochs, warmups, scale, max_epochs=max_epochs)

    def within(budget: str) -> StudyPlan:
        """Return the plan of the longest lengths that fit. Raises: UserError if the budget is too short."""
        seconds = grid.share * duration(budget)
        if cost(grid, scaled(1.0), workers) <= seconds:
            return scaled(1.0)
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if cost(grid, scaled(middle), workers) <= seconds else (low, middle)
        shortest = 2 ** (len(grid.terms.rungs) - 1)  # epochs that leave every rung at least one
        plan = scaled(low)
        if cost(grid, plan, workers) > seconds or min(plan.epochs.values()) < shortest:
            min_cost = cost(grid, replace(plan, epochs=dict.fromkeys(plan.epochs, shortest)), workers)
            raise UserError(
                f"a budget of {budget} is too short for {len(grid.cells())} cells: {counted(shortest, 'epoch')} of "
                f"each take{'s' * (shortest == 1)} {plan.about} {ceil(min_cost / grid.share / 60)} min; use fewer "
                "recipes, subsets or seeds, a smaller --image-size, or a longer budget"
            )
        return replace(plan, budget=budget)

    if previous is not None:
        return replace(scaled(previous.scale), budget=previous.budget)
    for (name, _), full in scaled(1.0).epochs.items():
        each = [rung_epochs(fraction, full) for fraction in grid.terms.rungs]
        if len(set(each)) < len(each):
            raise UserError(
                f"halving trains {name} for {', then '.join(map(str, each))} epochs, some of them twice; use more "
                "epochs (--epochs), or leave --halving out"
            )
    if not grid.terms.budgets:
        return scaled(1.0)
    *shorter, longest_budget = grid.terms.budgets
    for budget in shorter:
        with suppress(UserError):  # not one epoch fits
            plan = within(budget)
            if plan.scale == 1 or plan.allows_ranking:
                return plan
    return within(longest_budget)


def check_budget(grid: Grid, plan: StudyPlan, workers: int = 1) -> None:
    """Check that a given budget leaves enough steps for a ranking. Raises: UserError with the time that would do."""
    steps = plan.min_steps
    if steps is None or plan.allows_ranking or plan.scale == 1 or grid.terms.budget in ("", AUTO):
        return
    factor = min(MIN_RANKING_STEPS / steps, 1 / plan.scale)
    enough = replace(plan, epochs={key: ceil(factor * epochs) for key, epochs in plan.epochs.items()})
    one = replace(grid, seeds=grid.seeds[:1])
    times = [ceil(cost(each, enough, workers) / each.share / 60) for each in (grid, one)]
    fewer = f", of one {grid.unit} {plan.about} {times[1]} min" if len(grid.seeds) > 1 else ""
    budget = f"--budget {times[0]}m" if plan.about == "about" else "a longer --budget"
    raise UserError(
        f"a budget of {grid.terms.budget} leaves {counted(steps, 'step')} to the shortest of {len(grid.cells())} "
        f"trainings, too few for a ranking of methods (at least {MIN_RANKING_STEPS}): all of them take "
        f"{plan.about} {times[0]} min{fewer}; use {budget}, or fewer recipes, subsets or {grid.unit}s, or --epochs "
        "without a budget"
    )


def most_expensive(choices: Sequence[dict[str, Any]], planned: Callable[[dict[str, Any]], StudyPlan]) -> StudyPlan:
    """Return the plan of the most expensive image keys that a budget affords; of the cheapest if it affords none."""
    plan = planned(choices[0])
    for keys in choices[1:]:
        if not plan.allows_larger_images:
            break
        try:
            larger = planned(keys)
        except UserError:  # not one epoch fits
            break
        if not larger.allows_larger_images:
            break
        plan = larger
    return plan


def rung_epochs(fraction: float, full: int) -> int:
    """Return the epochs of a training in a rung of this fraction of the full length."""
    return max(1, round(fraction * full))


def survivors(candidates: int) -> int:
    """Return how many candidates stay after a rung: the better half, but two."""
    return min(candidates, max(2, -(-candidates // 2)))


def cost(grid: Grid, plan: StudyPlan, workers: int = 1) -> float:
    """Return the seconds until the last of several processes, each of which takes the next cell when it is free, has
    finished the whole study; halving is assumed to keep the most expensive candidates."""
    single = {
        *{grid.slugs[candidate.name]: candidate.name for candidate in grid.candidates}.values()
    }  # some share cells
    left, total = len(single), 0.0
    for rung in range(len(grid.terms.rungs)):
        of_rung = [cell for cell in grid.cells(rung) if cell.seed == grid.seeds[0]]  # other seeds' take as long
        first = [cell for cell in of_rung if cell.candidate.name in single]
        seconds = {(cell.subset, cell.candidate.name): plan.seconds(cell, grid) or 0.0 for cell in first}
        remaining = {
            key
            for subset in grid.subsets.each()
            for key in sorted((key for key in seconds if key[0] == subset), key=lambda key: seconds[key])[-left:]
        }
        free = [0.0] * workers
        for cell_seconds in [seconds[key] for key in seconds if key in remaining] * len(grid.seeds):
            heapreplace(free, free[0] + cell_seconds)
        total += max(free)
        left = survivors(left)
    return total
