# SPDX-License-Identifier: Apache-2.0
"""How often a study names a winner that is none, and how often it finds the one there is, by made-up answers.

    python -m benchmarks.false_winners [--studies 2000] [--rows 2,3,5,10] [--seeds 2,3,4,5]

A network of method m, trained from seed s, classifies image i as it should where

    mu_m + base_i + method_mi + seed_ms + chance_msi > 0,    all normal, standard deviations as named below;

mu_m is chosen so that the method's accuracy over all seeds and images is the one wanted, exactly. The first by
validation (half as many images, other ones, the same networks) is named if the study's own rule says so. A false
winner is one that is not the only best. Before: both intervals at Bonferroni's level, without the floor under the
spread of seeds and the factor of the bootstrap. Last, a study that grows from two seeds on and stops as soon as it
names somebody.

Student's interval is part of every rule and the cheapest to compute: it is taken of many studies at once, and only
those that pass are put to the rule.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from viticulture.study.statistics import bootstrap, difference, level_of_analysis

from .clock import count

Draw = np.random.Generator
Answers = NDArray[np.int8]  # [studies, methods, seeds, images], 1 where right
CACHED = 2**21
"""Answers that are drawn at once: more than a processor's cache holds are slower."""


@dataclass(frozen=True)
class Rule:
    """When one method beats another.

    Args:
        level: rivals -> level of the intervals.
        beats: the leader's answers minus a rival's, [S, N], and the level; called where Student's interval lies above
            zero.
        floored: whether the spread of that interval has its floor.
    """

    level: Callable[[int], float]
    beats: Callable[[Answers, float], bool]
    floored: bool = True


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

    def answers(self, draw: Draw, studies: int, seeds: int, images: int) -> Answers:
        """To `images` test images, then half as many for validation."""
        K, N = len(self.accuracies), images + images // 2
        spread = np.array(self.seeds)[:, None]
        total = np.sqrt(1 + self.method**2 + spread**2 + self.chance**2)
        middle = ndtri(np.array(self.accuracies))[:, None] * total
        place = middle + spread * draw.standard_normal((studies, K, seeds))  # [B, K, S]
        image = draw.standard_normal((studies, 1, N), dtype=np.float32)
        image = image + np.float32(self.method) * draw.standard_normal((studies, K, N), dtype=np.float32)
        latent = place.astype(np.float32)[..., None] + image[:, :, None]
        if self.chance:
            latent += np.float32(self.chance) * draw.standard_normal(latent.shape, dtype=np.float32)
        return (latent > 0).view(np.int8)

    def batches(self, studies: int, seeds: int, images: int) -> Iterator[Answers]:
        """The answers of so many studies, the same ones whenever they are asked for."""
        draw = np.random.default_rng(0)
        most = max(1, CACHED // (len(self.accuracies) * seeds * (images + images // 2)))
        for start in range(0, studies, most):
            yield self.answers(draw, min(most, studies - start), seeds, images)


def winners(answers: Answers, images: int, rule: Rule) -> NDArray[np.int64]:
    """The method that each study would name, [B]; -1 for none."""
    B, K, S, _ = answers.shape
    leader = shares(answers[..., images:]).mean(2).argmax(1)
    values = shares(answers[..., :images])  # [B, K, S]
    leads = values[np.arange(B), leader][:, None] - values  # [B, K, S], 0 for the leader
    level = rule.level(K - 1)
    mean, half = leads.mean(2), stdtrit(S - 1, (1 + level) / 2) / S**0.5
    ahead = mean > half * leads.std(2, ddof=1)  # [B, K]
    ahead[np.arange(B), leader] = True
    named = np.full(B, -1)
    for study in np.flatnonzero(ahead.all(1)):
        first, test = leader[study], answers[study, :, :, :images]
        rivals = [rival for rival in np.argsort(mean[study]) if rival != first]  # the closest first
        right = {rival: test[first] - test[rival] for rival in rivals}
        floors = [(np.count_nonzero(right[rival]) / right[rival].size / images) ** 0.5 for rival in rivals]
        if rule.floored and not all(mean[study, rivals] > half * np.array(floors)):
            continue
        if all(rule.beats(right[rival], level) for rival in rivals):
            named[study] = first
    return named


def shares(answers: Answers) -> NDArray[np.float64]:
    """Of images that are classified as they should be."""
    return answers.sum(-1, dtype=np.int32) / answers.shape[-1]


def at(level: float) -> Rule:
    """The study's rule: the level for each rival."""

    def beats(right: Answers, level: float) -> bool:
        values = right.mean(1).tolist()
        return difference(values, [0.0] * len(values), right, level).separates()

    return Rule(lambda rivals: level, beats)


def beat_before(right: Answers, level: float) -> bool:
    """The bootstrap of the rule that this one replaced."""
    S, images = len(right), bootstrap(right, level)
    assert images.low is not None
    return images.mean - (images.mean - images.low) * ((S - 1) / S) ** 0.5 > 0


BEFORE = Rule(lambda rivals: 1 - 0.05 / rivals, beat_before, floored=False)


def worlds(methods: int) -> Iterator[tuple[str, World]]:
    """What could be true where nobody is best alone."""
    alike = (0.7,) * methods
    yield "all equal", World(alike, (0.1,) * methods)
    yield "all equal, seeds differ much", World(alike, (0.2,) * methods, chance=0.2)
    yield "all equal, seeds agree", World(alike, (0.0,) * methods, chance=0.0)
    yield "all equal, spreads 0 to 0.2", World(alike, tuple(np.linspace(0, 0.2, methods).tolist()), chance=0.2)
    if methods > 2:
        yield "two tie, ahead of the rest", World((0.7, 0.7, *(0.5,) * (methods - 2)), (0.1,) * methods)


def named(
    world: World, seeds: int, images: int, rules: Sequence[Rule], studies: int, best: int | None = None
) -> list[float]:
    """Percent of studies in which each rule names a wrong winner, or the right one where there is one."""
    counts = np.zeros(len(rules))
    for answers in world.batches(studies, seeds, images):
        for number, rule in enumerate(rules):
            names = winners(answers, images, rule)
            counts[number] += np.sum(names >= 0 if best is None else names == best)
    return [100 * float(count) / studies for count in counts]


def growing(world: World, looks: int, images: int, spend: bool, studies: int) -> float:
    """Percent of studies from two seeds on, one more a look, that name a winner at one of the looks."""
    winning = 0
    for answers in world.batches(studies, looks + 1, images):
        stopped = np.zeros(len(answers), dtype=bool)
        for look in range(looks):
            rule = at(level_of_analysis(look + 1 if spend else 1))
            stopped |= winners(answers[:, :, : look + 2], images, rule) >= 0
        winning += int(stopped.sum())
    return 100 * winning / studies


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 2 on, with commas between them."""
    values = tuple(map(int, text.split(",")))
    if min(values) < 2:
        raise argparse.ArgumentTypeError(f"must be at least 2, got {min(values)}")
    return values


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=count, default=2000, help="simulated for each number")
    parser.add_argument("--rows", type=numbers, default=(2, 3, 5, 10), help="methods that are compared")
    parser.add_argument("--seeds", type=numbers, default=(2, 3, 4, 5), help="of each method")
    options = parser.parse_args()
    studies, now, began = options.studies, at(level_of_analysis(1)), time.process_time()
    print(f"{studies} studies each; a share of 5 % is known to +- {100 * (0.05 * 0.95 / studies) ** 0.5:.1f}\n")
    lines = "---|" * len(options.seeds)
    print(f"| nobody is best | rows | {' | '.join(f'{seeds} seeds' for seeds in options.seeds)} |\n|---|---|{lines}")
    worst = 0.0
    for methods in options.rows:
        for name, world in worlds(methods):
            cells = []
            for seeds in options.seeds:
                percents = [named(world, seeds, images, [now], studies)[0] for images in (50, 200, 1000)]
                worst = max(worst, *percents)
                cells.append(" / ".join(f"{share:.1f}" for share in percents))
            print(f"| {name} | {methods} | {' | '.join(cells)} |", flush=True)
    print(f"\nfalse winners, %, with 50 / 200 / 1,000 test images; the worst is {worst:.1f}\n")
    print("| one is ahead by | rows | seeds | before | now |\n|---|---|---|---|---|")
    for methods in options.rows:
        for ahead in (0.03, 0.06):
            world = World((0.7 + ahead, *(0.7,) * (methods - 1)), (0.03,) * methods)
            for seeds in options.seeds:
                before, today = named(world, seeds, 1000, [BEFORE, now], studies, best=0)
                print(f"| {100 * ahead:.0f} points | {methods} | {seeds} | {before:.0f} | {today:.0f} |", flush=True)
    print("\npower, %, 1,000 test images, spread of 0.03 over seeds\n\n| looks | full level | spent |\n|---|---|---|")
    for looks in (1, 2, 5, 9):
        world = World((0.7, 0.7), (0.2, 0.2), chance=0.2)
        full, spent = (growing(world, looks, 200, spend, studies) for spend in (False, True))
        print(f"| {looks} | {full:.1f} | {spent:.1f} |", flush=True)
    print("\nfalse winners of two rows that are equal, %, 200 test images")
    print(f"{time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main()
