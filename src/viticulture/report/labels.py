# SPDX-License-Identifier: Apache-2.0
"""Positions of a chart's labels, clear of its lines and of one another."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, hypot
from typing import NamedTuple

from rich.cells import cell_len

LETTER, LINE = 6.0, 13  # pixels of a column of text, and from one line of text to the next
UP, DOWN = 9, 3  # pixels of text above and below its base line
ABOVE, BELOW = -4, 12  # pixels from a level to the base line of its label
STEP = 6  # pixels between positions that are tried
DOT = 3  # pixels between points of a curve that are tested

Curve = Sequence[tuple[float, float]]


class Box(NamedTuple):
    """Part of a chart, in pixels that count downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point lies inside."""
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def overlaps(self, other: "Box") -> bool:
        """Return whether two boxes share points."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


class Level(NamedTuple):
    """A horizontal line and the position of its label: beginning at x, or ending there; in the legend if x is None."""

    name: str
    row: float
    x: float | None
    y: float
    ends: bool


def text_box(x: float, y: float, text: str, fraction: float = 0.5) -> Box:
    """Return the box of a text on a base line y, with a fraction of it left of x."""
    width = LETTER * cell_len(text)
    return Box(x - fraction * width, y - UP, x + (1 - fraction) * width, y + DOWN)


def place_levels(
    levels: Sequence[tuple[str, float]],
    curves: Sequence[Curve],
    others: Sequence[Curve],
    taken: Sequence[Box],
    plot: Box,
) -> list[Level]:
    """Find a position for the label of every level, from the uppermost level down.

    The label of a level that all curves have passed stands below it on the right, others above it on the left. Where
    something is drawn there, it moves along the line, or to its other side; without room it goes to the legend.
    """
    lines = [*curves, *others, *([(plot.left, row), (plot.right, row)] for _, row in levels)]
    dots = [dot for line in lines for dot in _dots(line)]
    boxes, placed = list(taken), []
    for name, row in sorted(levels, key=lambda level: level[1]):
        passed = all(curve[-1][1] < row for curve in curves) and row + BELOW + DOWN < plot.bottom
        level = Level(name, row, None, row, passed)
        for x, y in _positions(name, row, passed, plot):
            box = text_box(x, y, name, float(passed))
            while above := [other for other in boxes if box.overlaps(other)]:
                y = max(other.bottom for other in above) - DOWN + LINE
                box = text_box(x, y, name, float(passed))
            if box.bottom <= plot.bottom and not any(box.holds(*dot) for dot in dots):
                boxes.append(box)
                level = level._replace(x=x, y=y)
                break
        placed.append(level)
    return placed


def _positions(name: str, row: float, passed: bool, plot: Box) -> Iterator[tuple[float, float]]:
    """Yield ends of base lines of a label that fits, best first."""
    width_left = plot.right - plot.left - 8 - LETTER * cell_len(name)
    for offset in (BELOW, ABOVE) if passed else (ABOVE, BELOW):
        for step in range(1 + int(max(width_left, 0) / STEP)):
            yield (plot.right - 4 - STEP * step if passed else plot.left + 4 + STEP * step), row + offset


def _dots(line: Curve) -> Iterator[tuple[float, float]]:
    """Yield points along a line, so close that text on the line covers one."""
    for (a, b), (c, d) in pairwise(line):
        steps = ceil(hypot(c - a, d - b) / DOT) or 1
        yield from ((a + (c - a) * i / steps, b + (d - b) * i / steps) for i in range(steps))
    yield from line[-1:]
