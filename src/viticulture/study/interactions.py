# SPDX-License-Identifier: Apache-2.0
"""Whether methods stacked on each other gain more than each by itself.

    gain(X) = accuracy(X) - accuracy(baseline),   excess(A + B) = gain(A + B) - gain(A) - gain(B)

seed by seed; a candidate called "A + B" is the sum of those called A and B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .statistics import LEVEL, estimate

FEWEST_SEEDS = 3  # from which an excess is told from chance


@dataclass(frozen=True)
class Interaction:
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


def interactions(accuracies: Mapping[str, Mapping[int, float]], baseline: str) -> list[Interaction]:
    """Every candidate that is a sum of others, in their order.

    Args:
        accuracies: candidate -> seed -> share of held-out images that it gets right.
        baseline: what gains are counted from.
    """
    sums = []
    for name in accuracies:
        parts = tuple(part.strip() for part in name.split(" + "))
        if len(parts) < 2 or baseline not in accuracies or not all(part in accuracies for part in parts):
            continue
        seeds = sorted(set.intersection(*(set(accuracies[candidate]) for candidate in (name, baseline, *parts))))
        gains = {
            candidate: [accuracies[candidate][seed] - accuracies[baseline][seed] for seed in seeds]
            for candidate in (name, *parts)
        }
        together = [sum(values) for values in zip(*(gains[part] for part in parts), strict=True)]
        if seeds:
            sums.append(Interaction(name, parts, tuple(gains[name]), tuple(together)))
    return sums


def told(sums: Sequence[Interaction], overlap: float = 0.0) -> tuple[list[str], list[str]]:
    """Names of the sums that are more than their parts, and of those that are less, beyond chance.

    Student's interval of the excess over seeds leaves out zero; all intervals hold together at `LEVEL` (Bonferroni).
    Sums of fewer than `FEWEST_SEEDS` seeds, or without any spread, are told of neither. `overlap` is that of folds
    (`statistics.estimate`).
    """
    known = [interaction for interaction in sums if len(interaction.excess) >= FEWEST_SEEDS]
    more, less = list[str](), list[str]()
    for interaction in known:
        over_seeds = estimate(interaction.excess, 1 - (1 - LEVEL) / len(known), overlap=overlap)
        if round(over_seeds.sd or 0.0, 9) and over_seeds.low is not None and over_seeds.high is not None:
            more += [interaction.name] if over_seeds.low > 0 else []
            less += [interaction.name] if over_seeds.high < 0 else []
    return more, less
