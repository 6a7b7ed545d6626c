# SPDX-License-Identifier: Apache-2.0
"""How often a study names a winner that is none, and how often it finds the one there is, by made-up answers.

    python -m benchmarks.false_winners [STUDIES]

A network of method m, trained from seed s, classifies image i as it should where

    mu_m + base_i + method_mi + seed_ms + chance_msi > 0,    all normal, standard deviations as named below;

mu_m is chosen so that the method's accuracy over all seeds and images is the one wanted, exactly. The first by
validation (half as many images, other ones, the same networks) is named if the study's own rule says so. A false
winner is one that is not the only best. Before: both intervals at Bonferroni's level, without the floor under the
spread of seeds and the factor of the bootstrap. Last, a study that grows from two seeds on and stops as soon as it
names somebody.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from viticulture.study.conclude.statistics import bootstrap, difference, estimate, level_of_look

Draw = np.random.Generator
Answers = NDArray[np.int8]  # [methods, seeds, images], 1 where right
Rule = Callable[[Answers, int], bool]  # the leader's answers minus a rival's, [S, N], and the rivals


@dataclass(frozen=True)
class World:
    """What is true.

    Args:
        accuracies: of the methods, over all seeds and images.
        seeds: standard deviation over the seeds of each method, latent; 0.1 are about 2 points of accuracy.
        method: how much methods differ in which images they find hard.
        chance: how much the answer to one image changes from seed to seed.
    """

    accuracies: tuple[float, ...]
    seeds: tuple[float, ...]
    method: float = 0.5
    chance: float = 0.5

    def answers(self, draw: Draw, seeds: int, images: int) -> Answers:
        """To `images` test images, then half as many for validation."""
        K, N = len(self.accuracies), images + images // 2
        spread = np.array(self.seeds)[:, None]
        total = np.sqrt(1 + self.method**2 + spread**2 + self.chance**2)
        place = ndtri(np.array(self.accuracies))[:, None] * total + spread * draw.standard_normal((K, seeds))  # [K, S]
        image = draw.standard_normal(N) + self.method * draw.standard_normal((K, N))  # [K, N]
        latent = place.astype(np.float32)[:, :, None] + image.astype(np.float32)[:, None]
        if self.chance:
            latent += np.float32(self.chance) * draw.standard_normal((K, seeds, N), dtype=np.float32)
        return (latent > 0).view(np.int8)


def winner(answers: Answers, images: int, rule: Rule) -> int | None:
    """The method that a study would name."""
    test, leader = answers[:, :, :images], int(answers[:, :, images:].mean((1, 2)).argmax())
    rivals = [method for method in np.argsort(-test.mean((1, 2))) if method != leader]  # the closest first
    clear = all(rule(test[leader] - test[rival], len(rivals)) for rival in rivals)
    return leader if clear else None


def at(level: float) -> Rule:
    """The study's rule."""

    def beats(right: Answers, rivals: int) -> bool:
        values = right.mean(1).tolist()
        low = estimate(values, level).low
        if low is None or low <= 0:
            return False  # the floor only widens; saves most bootstraps
        return difference(values, [0.0] * len(values), right, level).separates()

    return beats


def before(right: Answers, rivals: int) -> bool:
    """The rule that this one replaced."""
    S, values, level = len(right), right.mean(1), 1 - 0.05 / rivals
    low = estimate(values.tolist(), level).low
    if low is None or low <= 0:
        return False
    images = bootstrap(right, level)
    assert images.low is not None
    return images.mean - (images.mean - images.low) * ((S - 1) / S) ** 0.5 > 0


def worlds(methods: int) -> Iterator[tuple[str, World]]:
    """What could be true where nobody is best alone."""
    alike = (0.7,) * methods
    yield "all equal", World(alike, (0.1,) * methods)
    yield "all equal, seeds differ much", World(alike, (0.2,) * methods, chance=0.2)
    yield "all equal, seeds agree", World(alike, (0.0,) * methods, chance=0.0)
    yield "all equal, spreads 0 to 0.2", World(alike, tuple(np.linspace(0, 0.2, methods).tolist()), chance=0.2)
    if methods > 2:
        yield "two tie, ahead of the rest", World((0.7, 0.7, *(0.5,) * (methods - 2)), (0.1,) * methods)


def share(world: World, seeds: int, images: int, rule: Rule, studies: int, best: int | None) -> float:
    """Percent of studies that name a wrong winner, or the right one where there is one."""
    draw = np.random.default_rng(0)
    found = [winner(world.answers(draw, seeds, images), images, rule) for _ in range(studies)]
    return 100 * sum(one is not None and (best is None or one == best) for one in found) / studies


def growing(world: World, looks: int, images: int, spend: bool, studies: int) -> float:
    """Percent of studies from two seeds on, one more a look, that name a winner at one of the looks."""
    draw, named = np.random.default_rng(0), 0
    rules = [at(level_of_look(number + 1 if spend else 1)) for number in range(looks)]
    for _ in range(studies):
        answers = world.answers(draw, looks + 1, images)
        named += any(winner(answers[:, : look + 2], images, rules[look]) is not None for look in range(looks))
    return 100 * named / studies


def main() -> None:
    """Print the tables."""
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    now = at(level_of_look(1))
    print(f"{studies} studies each; a share of 5 % is known to +- {100 * (0.05 * 0.95 / studies) ** 0.5:.1f}\n")
    print("| nobody is best | rows | seeds 2 | 3 | 5 |\n|---|---|---|---|---|")
    worst = 0.0
    for methods in (2, 3, 5, 10):
        for name, world in worlds(methods):
            told = []
            for seeds in (2, 3, 5):
                shares = [share(world, seeds, images, now, studies, None) for images in (50, 200, 1000)]
                worst = max(worst, *shares)
                told.append(" / ".join(f"{one:.1f}" for one in shares))
            print(f"| {name} | {methods} | {' | '.join(told)} |", flush=True)
    print(f"\nfalse winners, %, with 50 / 200 / 1,000 test images; the worst is {worst:.1f}\n")
    print("| one is ahead by | rows | seeds | before | now |\n|---|---|---|---|---|")
    for methods in (2, 5, 10):
        for ahead in (0.03, 0.06):
            world = World((0.7 + ahead, *(0.7,) * (methods - 1)), (0.03,) * methods)
            for seeds in (2, 3, 5):
                shares = [share(world, seeds, 1000, rule, studies, 0) for rule in (before, now)]
                print(
                    f"| {100 * ahead:.0f} points | {methods} | {seeds} | {shares[0]:.0f} | {shares[1]:.0f} |",
                    flush=True,
                )
    print("\npower, %, 1,000 test images, spread of 0.03 over seeds\n\n| looks | full level | spent |\n|---|---|---|")
    for looks in (1, 2, 5, 9):
        world = World((0.7, 0.7), (0.2, 0.2), chance=0.2)
        shares = [growing(world, looks, 200, spend, studies) for spend in (False, True)]
        print(f"| {looks} | {shares[0]:.1f} | {shares[1]:.1f} |", flush=True)
    print("\nfalse winners of two rows that are equal, %, 200 test images")


if __name__ == "__main__":
    main()
