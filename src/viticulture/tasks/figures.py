# SPDX-License-Identifier: Apache-2.0
"""The parts of a page as plain data: tasks describe them, and `report` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..analysis.galleries import MAX_SIDE, Gallery
from ..table import Table

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LineChart:
    """Lines by name, each through its points (x, y); without lines the title and the note alone."""

    title: str
    lines: Mapping[str, Points]
    x: str
    y: str
    note: str = ""
    max_y: float = inf


@dataclass(frozen=True)
class RowChart:
    """A dot for each named value, row by row."""

    title: str
    values: Mapping[str, float]
    label: str


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Counts [C, C] by the names of rows and columns."""

    title: str
    counts: Any
    names: Sequence[str]
    note: str


@dataclass(frozen=True)
class Pictures:
    """Galleries, one below the other; `max_side` is the longer side of a picture on the page, pixels."""

    galleries: Sequence[Gallery]
    max_side: int = MAX_SIDE


@dataclass(frozen=True)
class ColorKey:
    """The color of each class in pictures, RGB."""

    colors: Mapping[str, tuple[int, int, int]]


Part = Table | LineChart | RowChart | HeatMap | Pictures | ColorKey


@dataclass(frozen=True)
class TaskSection:
    """A section of a page; parts that are lists stand one below the other."""

    title: str
    parts: Sequence[Part | Sequence[Part]]
    side_by_side: bool = False
    sortable: bool = False
    folded: bool = False


@dataclass(frozen=True)
class TaskPage:
    """The parts of a run's page that depend on its task.

    Args:
        tile: label, value and note of the number that counts; None before the run is evaluated.
        levels: lines across the chart of the number that counts, shares by name.
    """

    answer: str = ""
    tile: tuple[str, str, str] | None = None
    before: Sequence[TaskSection] = ()
    after: Sequence[TaskSection] = ()
    levels: Mapping[str, float] = field(default_factory=dict)
