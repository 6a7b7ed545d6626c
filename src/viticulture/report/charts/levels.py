# SPDX-License-Identifier: Apache-2.0
"""Lines across a chart, such as what chance reaches, with their words where nothing else is drawn."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, hypot
from typing import NamedTuple

from rich.cells import cell_len

LETTER, LINE = 6.0, 13  # pixels of a column of words, and from one line of words to the next
UP, DOWN = 9, 3  # pixels that words reach over and under their base line
ABOVE, BELOW = -4, 12  # pixels from a line to the base line of its words
STEP = 6  # pixels between places that are tried
DOT = 3  # pixels between points of a curve that are looked at

Pixels = Sequence[tuple[float, float]]


class Box(NamedTuple):
    """Part of a chart, in pixels that count downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        """Whether a point lies inside."""
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def meets(self, other: "Box") -> bool:
        """Whether the two overlap."""
        beside = self.left < other.right and other.left < self.right
        return beside and self.top < other.bottom and other.top < self.bottom


class Level(NamedTuple):
    """A line across, and where its words stand: beginning at x, or ending there; nowhere where x is None."""

    name: str
    row: float
    x: float | None
    y: float
    ends: bool


def words_at(x: float, y: float, name: str, share: float = 0.5) -> Box:
    """What words cover, a share of which lies left of x, on a base line y."""
    width = LETTER * cell_len(name)
    return Box(x - share * width, y - UP, x + (1 - share) * width, y + DOWN)


def place_levels(
    levels: Sequence[tuple[str, float]],
    curves: Sequence[Pixels],
    others: Sequence[Pixels],
    taken: Sequence[Box],
    plot: Box,
) -> list[Level]:
    """Every line with a place for its words, from the uppermost line down.

    Words of a line that all curves have passed stand below it on the right, others above it on the left. Where
    something is drawn there, they move along the line, or to its other side; where it is all along, they have no place.

    Args:
        levels: name and row of each line.
        curves: what the lines are compared with.
        others: what is drawn besides, such as upright lines.
        taken: what other words cover.
        plot: inside the axes.
    """
    lines = [*curves, *others, *([(plot.left, row), (plot.right, row)] for _, row in levels)]
    dots = [dot for line in lines for dot in _dots(line)]
    boxes, placed = list(taken), []
    for name, row in sorted(levels, key=lambda level: level[1]):
        passed = all(curve[-1][1] < row for curve in curves) and row + BELOW + DOWN < plot.bottom
        level = Level(name, row, None, row, passed)
        for x, y in _places(name, row, passed, plot):
            box = words_at(x, y, name, float(passed))
            while above := [other for other in boxes if box.meets(other)]:
                y = max(other.bottom for other in above) - DOWN + LINE
                box = words_at(x, y, name, float(passed))
            if box.bottom <= plot.bottom and not any(box.holds(*dot) for dot in dots):
                boxes.append(box)
                level = level._replace(x=x, y=y)
                break
        placed.append(level)
    return placed


def _places(name: str, row: float, passed: bool, plot: Box) -> Iterator[tuple[float, float]]:
    """Ends of base lines of words that fit, best first."""
    room = plot.right - plot.left - 8 - LETTER * cell_len(name)
    for offset in (BELOW, ABOVE) if passed else (ABOVE, BELOW):
        for step in range(1 + int(max(room, 0) / STEP)):
            yield (plot.right - 4 - STEP * step if passed else plot.left + 4 + STEP * step), row + offset


def _dots(line: Pixels) -> Iterator[tuple[float, float]]:
    """Points along a line, so close that words on it cover one."""
    for (a, b), (c, d) in pairwise(line):
        steps = ceil(hypot(c - a, d - b) / DOT) or 1
        yield from ((a + (c - a) * i / steps, b + (d - b) * i / steps) for i in range(steps))
    yield from line[-1:]
