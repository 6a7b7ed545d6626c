# SPDX-License-Identifier: Apache-2.0
"""Grid of a study: candidates x training subsets x seeds, declared in one YAML file that the user may extend."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

from ..config.references import references
from ..errors import UserError, unknown
from ..keywords import check_fields
from ..text import read_yaml, write_yaml
from .terms import ALL_IMAGES, EQUAL_EPOCHS, Subset, Subsets, Terms

CONDITIONS: dict[str, Any] = {
    "data.val_fraction": 0.1,
    "data.test_fraction": 0.2,
    "data.rule": "balanced",
    "data.split_seed": 0,
    "train.validate": "val",
}
"""Recipe keys that all candidates share, so that all have the same training, validation and test images."""

VARIED = {
    "data.fraction": "--fractions",
    "data.per_class": "--per-class",
    "data.folds": "--folds",
    "data.fold": "--folds",
}
"""Recipe keys that differ between cells -> the option that sets them."""

MEASURES = (
    *("accuracy", "loss", "top5", "divergence", "robustness", "localization", "probe"),  # of classifiers
    *("ap", "ap50", "ap75", "ap_masks", "miou", "pixels", "map", "micro_f1", "macro_f1", "exact", "r2"),
)
"""Measures of published numbers, by their first word. Words joined by underscores are also valid: measures that a guide
or a head logs on held-out images in training, such as `bootstrap_agent_accuracy`."""


TRIALS, FINALISTS = 24, 3
"""Proposals of a search, which train half as long as the candidates, and how many of them become candidates."""


@dataclass(frozen=True)
class Candidate:
    """A recipe with overrides, compared with others under one name.

    Args:
        overrides: dotted recipe keys that differ from the recipe; `row:NAME` is the run of another candidate, on the
            same training subset and from the same seed.
        data: its data set, for a paper's table with several; empty for the study's.
        published: a paper's number, in percent unless its table says otherwise; None where it prints none.
        measure: of the published number: the student's accuracy, or see `outcomes.other_measure`.
        seed_offset: added to the study's seeds, for a second training of the same recipe, such as another teacher.
    """

    name: str
    recipe: str
    overrides: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    published: float | None = None
    measure: str = "accuracy"
    seed_offset: int = 0

    def __post_init__(self) -> None:
        check_fields(f"candidate {self.name}", self)
        if not self.name:
            raise UserError(f"every candidate has a name; that of {self.recipe} is empty")
        kind, slash, _ = self.measure.partition("/")
        if kind not in MEASURES and (slash or "_" not in kind):
            raise unknown(f"measure of candidate {self.name}", kind, MEASURES)

    @property
    def training(self) -> list[Any]:
        """All that decides what is trained; candidates that agree in it share their cells."""
        return [self.recipe, self.overrides, self.data, self.seed_offset]


@dataclass(frozen=True)
class Cell:
    """One training of a study: a candidate, on a subset, from a seed, in a rung of halving."""

    candidate: Candidate
    subset: Subset
    seed: int
    rung: int  # of the study, 0-based; the last one is the full length
    name: str
    fold: dict[str, Any] = field(default_factory=dict)  # recipe keys that hold out the fold; empty without folds

    @property
    def unit(self) -> str:
        """The unit of `seed`: a seed or a fold."""
        return "fold" if self.fold else "seed"

    @property
    def training_seed(self) -> int:
        """Seed of the training's random numbers."""
        return self.seed + self.candidate.seed_offset

    def overrides(self, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """Return recipe keys that choose its training images: those of its seed, whatever the candidate adds to it,
        unless the study's conditions or the candidate choose them."""
        chosen = "data.subset_seed" in {**conditions, **self.candidate.overrides}
        shared = {"data.subset_seed": self.seed} if self.candidate.seed_offset and not chosen else {}
        return {**self.subset.overrides, **shared, **self.fold}


@dataclass(frozen=True)
class Grid:
    """A declared study.

    Args:
        seeds: each is one training of everything; numbers of folds, where there are folds.
        epochs: length of every training; None leaves it to the terms.
        table: the paper's table that is reproduced; empty otherwise.
        search: recipe keys to search -> LOW..HIGH or A,B (search.py).
        folders: candidate -> its name in file names, where a study has given it one; not declared in study.yaml.
    """

    data: str
    candidates: tuple[Candidate, ...]
    subsets: Subsets = ALL_IMAGES
    seeds: tuple[int, ...] = (0, 1, 2)
    conditions: dict[str, Any] = field(default_factory=lambda: dict(CONDITIONS))
    terms: Terms = EQUAL_EPOCHS
    epochs: int | None = None
    table: str = ""
    search: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict, compare=False)  # only declared fields compare

    def __post_init__(self) -> None:
        check_fields("study", self)
        object.__setattr__(self, "seeds", tuple(self.seeds))  # YAML gives a list
        names = [candidate.name for candidate in self.candidates]
        if not names:
            raise UserError("a study compares at least one recipe; name some by --recipes a,b")
        if repeated := [name for name, times in Counter(names).items() if times > 1]:
            raise UserError(f"candidates need different names, got {repeated[0]!r} twice")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds must be different numbers from 0 on, at least one, got {list(self.seeds)}")
        if self.subsets.folds and max(self.seeds) >= self.subsets.folds:
            raise UserError(f"the seeds are the folds' numbers, 0 to {self.subsets.folds - 1}, got {list(self.seeds)}")
        if self.epochs is not None and self.epochs < 1:
            raise UserError(f"epochs must be at least 1, got {self.epochs}")
        if wrong := [key for key in self.conditions if key in VARIED]:
            raise UserError(f"a study varies {wrong[0]} itself; use {VARIED[wrong[0]]}")
        self._check_references(names)

    def _check_references(self, names: list[str]) -> None:
        """Check that every row that is named exists, and that no candidates wait for each other."""
        rows = {candidate.name: references(candidate.overrides) for candidate in self.candidates}
        for key, row in chain.from_iterable(each.items() for each in rows.values()):
            if row not in names:
                raise unknown(f"candidate that {key} names", row, names)
        if any(rows.values()) and self.terms.halving:
            raise UserError("halving cannot be used where a candidate uses another one's run; leave --halving out")
        left = set(names)
        while ready := {name for name in left if not left & set(rows[name].values())}:
            left -= ready
        if left:
            raise UserError(f"candidates wait for each other in a circle: {', '.join(sorted(left))}")

    @property
    def baseline(self) -> Candidate:
        """The candidate that the others are compared with."""
        return self.candidates[0]

    @property
    def unit(self) -> str:
        """The unit of repetition: a seed or a fold."""
        return "fold" if self.subsets.folds else "seed"

    @property
    def share(self) -> float:
        """Share of the budget for the candidates that a study begins with: of a search that is its baseline alone."""
        count = len(self.seeds)
        return count / (count * (1 + FINALISTS) + TRIALS / 2) if self.search else 1.0

    @property
    def overlap(self) -> float:
        """Test images for each training image, where trainings share the latter, as folds do; 0 for seeds."""
        return 1 / (self.subsets.folds - 1) if self.subsets.folds else 0.0

    @property
    def published(self) -> bool:
        """True if there are a paper's numbers to reproduce; otherwise the candidates compete."""
        return any(candidate.published is not None for candidate in self.candidates)

    @cached_property
    def slugs(self) -> Mapping[str, str]:
        """Candidate -> its name in file names; candidates that train the same thing share one.

        Those that a study has given names keep them, whichever candidates are added before them or taken out.
        """
        of_training: dict[str, str] = {}
        for candidate in sorted(self.candidates, key=lambda each: each.name not in self.folders):
            content, saved = digest(candidate.training), self.folders.get(candidate.name, "")
            if content not in of_training:
                taken, stem = {*of_training.values(), *self.folders.values()}, slug(candidate.name)
                tries = (stem if i == 1 else f"{stem}-{i}" for i in count(1))
                free = saved and saved not in of_training.values()
                of_training[content] = saved if free else next(name for name in tries if name not in taken)
        return {candidate.name: of_training[digest(candidate.training)] for candidate in self.candidates}

    def cells(self, rung: int = -1) -> list[Cell]:
        """Return every cell of one rung (the last by default), seed by seed: an early stop leaves whole comparisons."""
        return list(self._rungs[rung])

    @cached_property
    def _rungs(self) -> list[list[Cell]]:
        last = len(self.terms.rungs) - 1
        subsets = [(subset, slug(subset.name)) for subset in self.subsets.each()]

        def cell(candidate: Candidate, subset: Subset, part: str, seed: int, rung: int) -> Cell:
            name = f"{self.slugs[candidate.name]}.{part}.{self.unit}-{seed}"
            name += "" if rung == last else f".rung-{rung + 1}"
            return Cell(candidate, subset, seed, rung, name, self.subsets.fold(seed))

        return [
            [
                cell(candidate, subset, part, seed, rung)
                for seed in self.seeds
                for subset, part in subsets
                for candidate in self.candidates
            ]
            for rung in range(last + 1)
        ]

    @cached_property
    def _positions(self) -> dict[tuple[str, Subset, int, int], Cell]:
        """Every cell by its candidate's name, subset, seed and rung."""
        every = chain.from_iterable(self._rungs)
        return {(cell.candidate.name, cell.subset, cell.seed, cell.rung): cell for cell in every}

    @cached_property
    def _needs(self) -> dict[str, list[str]]:
        """Name of every candidate -> names of those whose runs it uses, in the grid's order."""
        rows = {candidate.name: set(references(candidate.overrides).values()) for candidate in self.candidates}
        return {name: [other for other in rows if other in needed] if needed else [] for name, needed in rows.items()}

    def named(self, name: str) -> list[Cell]:
        """Return the cells that share a folder of that name."""
        return [cell for cell in chain.from_iterable(self._rungs) if cell.name == name]

    def needs(self, cell: Cell) -> list[Cell]:
        """Return the cells whose runs a cell uses; they are trained first."""
        names = self._needs[cell.candidate.name]
        return [self._positions[name, cell.subset, cell.seed, cell.rung] for name in names]

    def to_yaml(self) -> str:
        """Return the declaration as the text of study.yaml."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        plain |= {name: _differences(plain[name]) for name in ("subsets", "terms")}
        plain |= {"candidates": [_differences(candidate) for candidate in self.candidates], "seeds": list(self.seeds)}
        return write_yaml(
            {key: value for key, value in plain.items() if value not in (None, "", {}) or key == "conditions"}
        )

    @staticmethod
    def from_yaml(text: str, name: str) -> "Grid":
        """Read a declaration. Raises: UserError that names what is wrong with it."""
        values = known_keys(Grid, read_yaml(text, name), name)
        for key in ("data", "candidates"):
            if not values.get(key):
                raise UserError(f"{name} must say {key}")
        try:
            entries = [known_keys(Candidate, entry, f"{name}, candidates") for entry in values["candidates"]]
            values["candidates"] = tuple(Candidate(**entry) for entry in entries)
            for key, cls in (("subsets", Subsets), ("terms", Terms)):
                values[key] = cls(**known_keys(cls, values.get(key) or {}, f"{name}, {key}"))
            return Grid(**values)
        except TypeError as error:
            raise UserError(f"{name} is malformed: {error}") from error


def of_recipes(names: Sequence[str]) -> tuple[Candidate, ...]:
    """Return recipes as candidates; a file is called by its stem, unless two share one."""
    short = [Path(name).stem if name.endswith((".yaml", ".yml")) else name for name in names]
    unique = len(set(short)) == len(names)
    return tuple(Candidate(stem if unique else name, name) for stem, name in zip(short, names, strict=True))


def slug(name: str) -> str:
    """Return a name as part of a file name."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower().replace("%", "percent")).strip("-")[:60] or "x"


def digest(content: Any) -> str:
    """Return 16 hexadecimal digits that change with a plain value."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _differences(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from its defaults, as YAML can hold them."""
    defaults = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(value)}
    changed = {key: getattr(value, key) for key, default in defaults.items() if getattr(value, key) != default}
    return {key: list(content) if isinstance(content, tuple) else content for key, content in changed.items()}


def known_keys(cls: Any, raw: Any, name: str) -> dict[str, Any]:
    """Return a file's section as keywords of a dataclass. Raises: UserError naming the nearest to an unknown key."""
    if not isinstance(raw, Mapping):
        raise UserError(f"{name} must hold keys and values, got {type(raw).__name__}")
    valid = [f.name for f in fields(cls) if f.compare]
    for key in raw:
        if key not in valid:
            raise unknown(f"key of {name}", str(key), valid)
    return dict(raw)
