# SPDX-License-Identifier: Apache-2.0
"""Options of a study, in groups; imports nothing that takes time."""

import os
import re
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, Literal

from ..errors import UserError, shortened
from ..keywords import check_fields

AUTO = "auto"  # a budget that is chosen when step times are known

CHOICES = ("1h", "2h", "4h", "1night")  # values of `AUTO`: the shortest that allows a ranking

UNITS = {"": 60.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "night": 36000.0, "d": 86400.0}


def duration(words: str) -> float:
    """Return the seconds of a time such as 90s, 30m, 2h, 1night (ten hours) or 1d. Raises: UserError for others."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(words).lower())
    if not match or match[2] not in UNITS or not 0 < float(match[1]) * UNITS[match[2]] < inf:
        only = "; only `train` counts the time of processors" if "core" in str(words) else ""
        raise UserError(f"a budget is a time such as 90s, 30m, 2h or 1night, got {shortened(repr(words))}{only}")
    return float(match[1]) * UNITS[match[2]]


def budget_text(budget: str | float) -> str:
    """Return a budget as text; a bare number from YAML or Python counts minutes."""
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    return f"{budget:f}".rstrip("0").rstrip(".") if number else str(budget)


@dataclass(frozen=True)
class Subsets:
    """Subsets of the training images; all images by default.

    Args:
        fractions: of every class's training images, such as 0.05,0.1,1.
        per_class: training images of every class, such as 20,50.
        folds: cross-validation: divide the images into this many folds; train everything once for each fold on the
            other folds and test on it (only validate where the data has its own test split). Replaces seeds.
    """

    fractions: tuple[float, ...] = ()
    per_class: tuple[int, ...] = ()
    folds: int = 0

    def __post_init__(self) -> None:
        check_fields("subsets", self)
        object.__setattr__(self, "fractions", tuple(self.fractions))
        object.__setattr__(self, "per_class", tuple(self.per_class))
        for share in self.fractions:
            if not 0 < share <= 1:
                raise UserError(f"fractions must lie in (0, 1], got {share}; ten percent is 0.1")
        for images in self.per_class:
            if images < 1:
                raise UserError(f"per_class must be at least 1, got {images}")
        if self.folds and self.folds < 2:
            raise UserError(f"folds must be at least 2, got {self.folds}; five or ten are usual")
        for subset, other in pairwise(self.each()):  # plans and folders identify a subset by its name
            if subset.name == other.name:
                raise UserError(
                    f"subsets are named by six digits, and {subset.value} and {other.value} are both "
                    f"{subset.name}; leave one of them out"
                )

    def fold(self, number: int) -> dict[str, Any]:
        """Return recipe keys that hold out a fold; none without folds."""
        return {"data.folds": self.folds, "data.fold": number} if self.folds else {}

    def each(self) -> list["Subset"]:
        """Return the subsets, smallest first within each kind."""
        subsets = [Subset("data.per_class", images) for images in sorted(set(self.per_class))]
        subsets += [Subset("data.fraction", share) for share in sorted(set(self.fractions))]
        return subsets or [Subset("", 1)]


@dataclass(frozen=True)
class Subset:
    """One training subset: the recipe key that sets it (none for all images) and its value."""

    key: str
    value: float

    @property
    def name(self) -> str:
        """Name for tables."""
        if self.key == "data.per_class":
            return f"{self.value:g} a class"
        return "all images" if self.value == 1 else f"{100 * self.value:g} %"

    @property
    def overrides(self) -> dict[str, Any]:
        """Recipe keys that set it."""
        return {self.key: self.value} if self.key else {}


@dataclass(frozen=True)
class Terms:
    """Length of the trainings.

    Args:
        budget: time for the whole study on this machine, such as 90m (or 90) or 2h; shortens the trainings to fit, and
            uses the largest images that leave enough epochs, unless --image-size is given. auto: an hour, or as much of
            a night as the shortest training needs for a ranking of methods. Empty: no limit.
        equal: what cells share. epochs: the same epochs for all (--epochs, else the longest recipe's); time: the same
            minutes for all with the same training subset; recipe: every recipe's own length.
        halving: train briefly first and continue with the better half, twice; the baseline always stays.
    """

    budget: str = ""
    equal: Literal["epochs", "time", "recipe"] = "epochs"
    halving: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.budget, bool) and isinstance(self.budget, int | float):
            object.__setattr__(self, "budget", budget_text(self.budget))
        check_fields("terms", self)
        if self.equal == "time" and not self.budget:
            raise UserError("equal time needs a budget to divide; give one, such as --budget 2h")
        for budget in self.budgets:
            duration(budget)

    @property
    def budgets(self) -> tuple[str, ...]:
        """Values of the budget, shortest first; empty without one."""
        named = (self.budget,) if self.budget else ()
        return CHOICES if self.budget == AUTO else named

    @property
    def rungs(self) -> tuple[float, ...]:
        """Fractions of the full length that are trained one after the other."""
        return (0.25, 0.5, 1.0) if self.halving else (1.0,)


@dataclass(frozen=True)
class Where:
    """A study's folder, and the processes that train it.

    Args:
        out: the study's folder; a new one under studies/ when left out.
        workers: processes that train at the same time, each on its own GPU if there are GPUs; 0 starts one per GPU,
            and one without GPUs.
        ray: address of a Ray cluster whose machines share the study's folder, such as ray://head:10001; `local` starts
            one on this machine (extra `ray`).
        slurm: write a script for a SLURM array, study.sbatch, instead of training here.
    """

    out: str = ""
    workers: int = 0
    ray: str = ""
    slurm: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.out, os.PathLike):
            object.__setattr__(self, "out", os.fspath(self.out))
        check_fields("where", self)
        if self.workers < 0:
            raise UserError(f"workers must not be negative, got {self.workers}")
        if sum((self.workers > 0, bool(self.ray), self.slurm)) > 1:
            raise UserError("give one of --workers, --ray and --slurm")


ALL_IMAGES = Subsets()
EQUAL_EPOCHS = Terms()
OWN_LENGTHS = Terms(equal="recipe")
HERE = Where()
