# SPDX-License-Identifier: Apache-2.0
"""How long every stage trains: pure functions of seconds and measured paces.

    cost(stage) = pace.training(epochs) + RESERVE
    sum of costs <= seconds

Lengths are whole epochs, planned before a stage's first step. One that takes long enough to tell is settled within its
warm-up, where learning is the same for any length, by what its epochs have taken until then, and never again: a
schedule that a clock cuts short could not be resumed bit for bit. Where a method or a guide asks how long it is to
train, the length stays as planned.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..study.step_times import StepTimes
from .choices import FEWEST_EPOCHS, LEAST_STEPS, MOST_EPOCHS, Kind, Rung, kinds

MARGIN = 0.05
"""Share of a budget that is not planned: paces of a few steps err by as much."""
RESERVE = 5.0
"""Seconds that a stage takes besides epochs and evaluation: to open its images, to draw its pictures and its page."""
HASTE = 1.5
"""A larger student takes less time a multiply-add; up to so much less, and it is measured before it is passed over."""

TRIAL_SHARE = 0.05
"""Of a stage's epochs, within its warm-up, until its length is settled."""
TRIAL_SECONDS = 3.0
"""What those epochs must take; fewer tell no more than the steps that were measured before."""
MOST_SLOWNESS = 3.0
"""Factor by which a stage is believed to have been mismeasured; more is a machine that slept, or was busy once."""

PaceOf = Callable[[Kind, bool], StepTimes]
"""Stage, and whether a teacher teaches in it -> its pace."""


@dataclass(frozen=True)
class Length:
    """A stage as far as time goes.

    Args:
        kind: of stage.
        epochs: that it trains.
        seconds: that it takes, all in all.
    """

    kind: Kind
    epochs: int
    seconds: float


def cost(pace: StepTimes, epochs: int) -> float:
    """Seconds of a stage."""
    return pace.training(epochs) + RESERVE


def fitting(pace: StepTimes, seconds: float) -> int:
    """Epochs of a stage that takes so many seconds: 0 where not one fits, and no more than make sense."""
    return max(0, min(MOST_EPOCHS, int((seconds - cost(pace, 0)) / pace.epoch)))


def affords(rung: Rung, pace: StepTimes, seconds: float) -> bool:
    """Whether there is time for a training that deserves the rung."""
    epochs = fitting(pace, seconds)
    return epochs >= rung.epochs and epochs * pace.steps >= LEAST_STEPS


def climb(
    ladder: Sequence[Rung], seconds: Callable[[], float], pace: Callable[[Rung], StepTimes], macs: Callable[[Rung], int]
) -> Rung:
    """The largest rung that the time affords; the first one where it affords none.

    Measuring takes time, and of a large student more than a small budget has. So the paces of larger rungs are guessed
    from their multiply-adds, and only those are measured that might do.

    Args:
        ladder: from cheap to large.
        seconds: that are left; asked again after each measurement.
        pace: measures a rung's student, alone.
        macs: multiply-adds for one image.
    """
    best, ceiling, known = 0, len(ladder), pace(ladder[0]) if len(ladder) > 1 else None
    while known is not None and best + 1 < ceiling:
        guesses = {i: known.scaled(macs(ladder[i]) / macs(ladder[best]) / HASTE) for i in range(best + 1, ceiling)}
        promising = [i for i, guess in guesses.items() if affords(ladder[i], guess, seconds())]
        if not promising:
            break
        measured = pace(ladder[promising[-1]])
        if affords(ladder[promising[-1]], measured, seconds()):
            best, known = promising[-1], measured
        else:
            ceiling = promising[-1]
    return ladder[best]


def divide(seconds: float, images: int, pace: PaceOf, search: bool, startable: bool) -> tuple[Length, ...]:
    """The stages and their lengths; at least one epoch each, or nothing where not even the student's own one fits.

    Args:
        seconds: for all stages.
        images: to learn from.
        pace: of a stage; asked for those that come into question.
        search: whether stages before the student's own are wanted.
        startable: whether the student may start from what it has painted.
    """
    alone = pace("student", False)
    plain = fitting(alone, seconds)
    wanted = kinds(images, plain * alone.steps, startable) if search else (("student", 1.0),)
    while True:
        lengths = _shared(seconds, wanted, pace)
        missing = {length.kind for length in lengths if length.epochs < FEWEST_EPOCHS[length.kind]}
        if not missing or len(wanted) == 1:
            return lengths if lengths[-1].epochs else ()
        gone = missing - {"student"} or {kind for kind, _ in wanted if kind != "student"}
        wanted = tuple(part for part in wanted if part[0] not in gone)


def _shared(seconds: float, wanted: Sequence[tuple[Kind, float]], pace: PaceOf) -> tuple[Length, ...]:
    """Every stage in its share, the last one in what is left of all."""
    lengths, left = list[Length](), seconds
    taught = any(kind == "teacher" for kind, _ in wanted)
    for kind, share in wanted:
        own = pace(kind, taught and kind == "student")
        epochs = fitting(own, left if kind == "student" else share * seconds)
        lengths.append(Length(kind, epochs, cost(own, epochs)))
        left -= lengths[-1].seconds
    return tuple(lengths)


def trial(pace: StepTimes, epochs: int, warmup: float) -> int:
    """Epochs after which a stage's length is settled; 0 where it stays as it is planned.

    Args:
        pace: as it was measured.
        epochs: that are planned.
        warmup: epochs of the warm-up.
    """
    tried = min(math.floor(warmup), math.ceil(TRIAL_SHARE * epochs))
    return tried if tried * pace.epoch >= TRIAL_SECONDS and pace.steps > 1 else 0


def slowness(took: float, wanted: float) -> float:
    """Factor between what was measured and what came, as far as it is believed."""
    return min(max(took / wanted, 1 / MOST_SLOWNESS), MOST_SLOWNESS)


def again(pace: StepTimes, planned: Sequence[float], seconds: float, slowness: float, elapsed: float = 0.0) -> int:
    """Epochs that are left to the first of the stages that are, now that earlier ones have shown how fast it goes.

    Args:
        pace: of the stage, as it was measured.
        planned: seconds that each stage which is left was to take.
        seconds: that were left for them when the stage began.
        slowness: seconds that it took until now over those that were planned.
        elapsed: seconds since the stage began.
    """
    share = planned[0] / sum(planned)
    return max(1, fitting(pace, (share * seconds - elapsed) / slowness))
