# SPDX-License-Identifier: Apache-2.0
"""What a study compares: candidates x training subsets x seeds, declared in one YAML file that a person may extend."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cached_property
from itertools import count
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
"""Recipe keys that every candidate shares, so that all learn from, choose by and are tested on the same images."""

VARIED = {
    "data.fraction": "--fractions",
    "data.per_class": "--per-class",
    "data.folds": "--folds",
    "data.fold": "--folds",
}
"""Recipe keys that differ between cells -> the option that says how."""

OF_CLASSES = "accuracy", "loss", "top5", "divergence", "robustness", "localization", "probe"
OF_OBJECTS_PIXELS_LABELS = "ap", "ap50", "ap75", "ap_masks", "miou", "pixels", "map", "micro_f1", "macro_f1", "exact"
MEASURES = *OF_CLASSES, *OF_OBJECTS_PIXELS_LABELS
"""What a published number may be, by the first word of its measure; besides, whatever a guide or a head measures on
held-out images in training, such as `bootstrap_agent_accuracy`: words joined by underscores."""


@dataclass(frozen=True)
class Candidate:
    """A recipe with overrides, compared with others under one name.

    Args:
        name: what people call it.
        recipe: a shipped recipe or a YAML file.
        overrides: dotted recipe keys that differ from the recipe; `row:NAME` is the run of another candidate, on the
            same training subset and from the same seed.
        data: its own data set, for a paper's table with several; empty for the study's.
        published: a paper's number, in percent unless its table says otherwise; None where it prints none.
        measure: what the published number is: the student's accuracy, or see `measures.other_measure`.
        seed_offset: added to the study's seeds, for a second training of the same thing, such as another teacher.
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
    """One training of a study: a candidate, on a subset, from a seed, in a rung of halving.

    Args:
        candidate: what is trained.
        subset: on how much data.
        seed: from which seed.
        rung: which of the study's rungs, 0-based; the last one is the full length.
        name: of its folder; cells that train the same thing share one.
        fold: recipe keys that hold out the fold of the number `seed`; empty where it is a seed alone.
    """

    candidate: Candidate
    subset: Subset
    seed: int
    rung: int
    name: str
    fold: dict[str, Any] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """What `seed` numbers: a seed or a fold."""
        return "fold" if self.fold else "seed"

    @property
    def training_seed(self) -> int:
        """What the training's own randomness follows from."""
        return self.seed + self.candidate.seed_offset

    def overrides(self, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """Recipe keys that say which images it learns from: those of its seed, whatever the candidate adds to it,
        unless the study's conditions or the candidate choose them."""
        chosen = "data.subset_seed" in {**conditions, **self.candidate.overrides}
        shared = {"data.subset_seed": self.seed} if self.candidate.seed_offset and not chosen else {}
        return {**self.subset.overrides, **shared, **self.fold}


@dataclass(frozen=True)
class Grid:
    """A declared study.

    Args:
        data: where the images are.
        candidates: what is compared; the first one is the baseline of all differences.
        subsets: of training data.
        seeds: each is one training of everything; the number of its fold, where there are folds.
        conditions: recipe keys that hold for every cell.
        terms: how long the cells train.
        epochs: length of every training; None leaves it to the terms.
        table: the paper's table that is reproduced; empty otherwise.
        folders: candidate -> its name in file names, where a study has given it one; no part of what is declared.
    """

    data: str
    candidates: tuple[Candidate, ...]
    subsets: Subsets = ALL_IMAGES
    seeds: tuple[int, ...] = (0, 1, 2)
    conditions: dict[str, Any] = field(default_factory=lambda: dict(CONDITIONS))
    terms: Terms = EQUAL_EPOCHS
    epochs: int | None = None
    table: str = ""
    folders: dict[str, str] = field(default_factory=dict, compare=False)  # what is declared is what compares

    def __post_init__(self) -> None:
        check_fields("study", self)
        object.__setattr__(self, "seeds", tuple(self.seeds))  # a list of YAML's
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
            raise UserError(f"{wrong[0]} is what a study varies; use {VARIED[wrong[0]]}")
        self._check_references(names)

    def _check_references(self, names: list[str]) -> None:
        """Every row that is named exists, and none waits for itself."""
        wanted = {candidate.name: list(references(candidate.overrides).values()) for candidate in self.candidates}
        for key, row in [pair for candidate in self.candidates for pair in references(candidate.overrides).items()]:
            if row not in names:
                raise unknown(f"candidate that {key} names", row, names)
        if any(wanted.values()) and self.terms.halving:
            raise UserError("candidates that learn from each other cannot be halved; leave --halving out")
        left = set(names)
        while ready := {name for name in left if not left & set(wanted[name])}:
            left -= ready
        if left:
            raise UserError(f"candidates wait for each other in a circle: {', '.join(sorted(left))}")

    @property
    def baseline(self) -> Candidate:
        """What the others are compared with."""
        return self.candidates[0]

    @property
    def unit(self) -> str:
        """What is repeated: a seed or a fold."""
        return "fold" if self.subsets.folds else "seed"

    @property
    def overlap(self) -> float:
        """Images that a training is tested on for each that it learns from, where trainings share the latter, as folds
        do; 0 for seeds."""
        return 1 / (self.subsets.folds - 1) if self.subsets.folds else 0.0

    @property
    def published(self) -> bool:
        """Whether there are a paper's numbers to reproduce; otherwise the candidates compete."""
        return any(candidate.published is not None for candidate in self.candidates)

    def slugs(self) -> dict[str, str]:
        """Candidate -> its name in file names; candidates that train the same thing share one.

        Those that a study has given names keep them, whichever candidates are added before them or taken out.
        """
        return dict(self._slugs)

    @cached_property
    def _slugs(self) -> dict[str, str]:
        of_training: dict[str, str] = {}
        for candidate in sorted(self.candidates, key=lambda each: each.name not in self.folders):
            content, kept = digest(candidate.training), self.folders.get(candidate.name, "")
            if content not in of_training:
                taken = {*of_training.values(), *self.folders.values()}
                mine = kept and kept not in of_training.values()
                of_training[content] = kept if mine else _unused(candidate.name, taken)
        return {candidate.name: of_training[digest(candidate.training)] for candidate in self.candidates}

    def cells(self, rung: int = -1) -> list[Cell]:
        """Every cell of one rung (the last by default), seed by seed, so that an early stop leaves whole
        comparisons."""
        return list(self._rungs[rung])

    @cached_property
    def _rungs(self) -> list[list[Cell]]:
        """The cells of every rung."""
        return [self._rung(rung) for rung in range(len(self.terms.rungs))]

    def _rung(self, rung: int) -> list[Cell]:
        slugs, subsets = self._slugs, [(subset, slug(subset.name)) for subset in self.subsets.each()]
        mark = "" if rung == len(self.terms.rungs) - 1 else f".rung-{rung + 1}"
        return [
            Cell(candidate, subset, seed, rung, f"{slugs[candidate.name]}.{named}.{self.unit}-{seed}{mark}", fold)
            for seed, fold in ((seed, self.subsets.fold(seed)) for seed in self.seeds)
            for subset, named in subsets
            for candidate in self.candidates
        ]

    @cached_property
    def _places(self) -> dict[tuple[str, Subset, int, int], Cell]:
        """Every cell by its candidate's name, subset, seed and rung."""
        every = [cell for cells in self._rungs for cell in cells]
        return {(cell.candidate.name, cell.subset, cell.seed, cell.rung): cell for cell in every}

    @cached_property
    def _needs(self) -> dict[str, list[str]]:
        """Name of every candidate -> of those that it learns from, in the grid's order."""
        named = {candidate.name: set(references(candidate.overrides).values()) for candidate in self.candidates}
        order = [candidate.name for candidate in self.candidates]
        return {name: [other for other in order if other in wanted] if wanted else [] for name, wanted in named.items()}

    def named(self, name: str) -> list[Cell]:
        """The cells that share a folder of that name."""
        return [cell for cells in self._rungs for cell in cells if cell.name == name]

    def needs(self, cell: Cell) -> list[Cell]:
        """The cells whose runs a cell learns from; they are trained first."""
        wanted = self._needs[cell.candidate.name]
        return [self._places[name, cell.subset, cell.seed, cell.rung] for name in wanted]

    def to_yaml(self) -> str:
        """The declaration as a file."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        plain["candidates"] = [_differences(candidate) for candidate in self.candidates]
        plain["subsets"] = _differences(self.subsets)
        plain["terms"] = _differences(self.terms)
        plain["seeds"] = list(self.seeds)
        kept = {key: value for key, value in plain.items() if value not in (None, "", {}) or key == "conditions"}
        return write_yaml(kept)

    @staticmethod
    def from_yaml(text: str, name: str) -> "Grid":
        """A declaration. Raises: UserError naming what is wrong with it."""
        values = known_keys(Grid, read_yaml(text, name), name)
        for key in ("data", "candidates"):
            if not values.get(key):
                raise UserError(f"{name} must say {key}")
        try:
            values["candidates"] = tuple(
                Candidate(**known_keys(Candidate, entry, f"{name}, candidates")) for entry in values["candidates"]
            )
            values["subsets"] = Subsets(**known_keys(Subsets, values.get("subsets") or {}, f"{name}, subsets"))
            values["terms"] = Terms(**known_keys(Terms, values.get("terms") or {}, f"{name}, terms"))
            return Grid(**values)
        except TypeError as error:
            raise UserError(f"{name} is malformed: {error}") from error


def of_recipes(names: Sequence[str]) -> tuple[Candidate, ...]:
    """Recipes by their names; a file by its own name, without folder and ending, where no two are alike."""
    short = [Path(name).stem if name.endswith((".yaml", ".yml")) else name for name in names]
    clear = len(set(short)) == len(names)
    return tuple(Candidate(short[i] if clear else name, name) for i, name in enumerate(names))


def slug(name: str) -> str:
    """A name as part of a file name."""
    words = name.lower().replace("%", "percent")
    return re.sub(r"[^a-z0-9_]+", "-", words).strip("-")[:60] or "x"


def digest(content: Any) -> str:
    """16 hexadecimal digits that change with a plain value."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _unused(name: str, taken: Iterable[str]) -> str:
    stem, known = slug(name), set(taken)
    tries = (stem if i == 1 else f"{stem}-{i}" for i in count(1))
    return next(slug_tried for slug_tried in tries if slug_tried not in known)


def _differences(value: Any) -> dict[str, Any]:
    """The fields of a dataclass's object that are not its defaults, as YAML can hold them."""
    contents = {f.name: (getattr(value, f.name), _default(f)) for f in fields(value)}
    return {
        key: list(content) if isinstance(content, tuple) else content
        for key, (content, default) in contents.items()
        if content != default
    }


def _default(option: Field[Any]) -> Any:
    """What a field is where nobody says it; MISSING, which nothing equals, where it must be said."""
    return option.default if option.default_factory is MISSING else option.default_factory()


def known_keys(cls: Any, raw: Any, name: str) -> dict[str, Any]:
    """Keywords for a dataclass out of a file's section. Raises: UserError naming the nearest of a key that has none."""
    if not isinstance(raw, Mapping):
        raise UserError(f"{name} must hold keys and values, got {type(raw).__name__}")
    valid = [f.name for f in fields(cls) if f.compare]
    for key in raw:
        if key not in valid:
            raise unknown(f"key of {name}", str(key), valid)
    return dict(raw)
