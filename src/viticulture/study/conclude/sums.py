# SPDX-License-Identifier: Apache-2.0
"""Whether methods stacked on each other gain more than each by itself.

    gain(X) = accuracy(X) - accuracy(baseline),   excess(A + B) = gain(A + B) - gain(A) - gain(B)

seed by seed; a candidate called "A + B" is the sum of those called A and B.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sum:
    """A sum of candidates; shares, one a seed that all of them have.

    Args:
        name: of the sum.
        parts: names of the candidates that it stacks.
        gain: over the baseline.
        parts_gain: of all parts together.
    """

    name: str
    parts: tuple[str, ...]
    gain: tuple[float, ...]
    parts_gain: tuple[float, ...]

    @property
    def excess(self) -> tuple[float, ...]:
        """What it gains beyond its parts; below zero they stand in each other's way."""
        return tuple(gain - parts for gain, parts in zip(self.gain, self.parts_gain, strict=True))


def sums(accuracies: Mapping[str, Mapping[int, float]], baseline: str) -> list[Sum]:
    """Every candidate that is a sum of others, in their order.

    Args:
        accuracies: candidate -> seed -> share of test images that it gets right.
        baseline: what gains are counted from.
    """
    found = []
    for name in accuracies:
        parts = tuple(part.strip() for part in name.split(" + "))
        if len(parts) < 2 or baseline not in accuracies or not all(part in accuracies for part in parts):
            continue
        seeds = sorted(set.intersection(*(set(accuracies[one]) for one in (name, baseline, *parts))))
        gains = {one: [accuracies[one][seed] - accuracies[baseline][seed] for seed in seeds] for one in (name, *parts)}
        together = [sum(values) for values in zip(*(gains[part] for part in parts), strict=True)]
        if seeds:
            found.append(Sum(name, parts, tuple(gains[name]), tuple(together)))
    return found
