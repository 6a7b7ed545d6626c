# SPDX-License-Identifier: Apache-2.0
"""Lengths of the stages: pure functions of seconds and measured step times.

    seconds(stage) = times.training(epochs) + RESERVE,   sum of seconds(stage) <= seconds of the budget

Lengths are whole epochs, planned before a stage's first step. A long enough stage is calibrated within its warm-up,
where training is the same for any length, by the time of its first epochs. Then its length is fixed, so that it resumes
bit for bit. Where a method or a guide depends on the length, it stays as planned.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..study.step_times import StepTimes
from .choices import MAX_EPOCHS, MIN_STAGE_EPOCHS, Kind, SizedStudent, stage_shares

MARGIN = 0.05  # share of a budget that is not planned: step times from a few steps err by as much
RESERVE = 5.0  # seconds of a stage besides epochs and evaluation: opening its images, drawing its pictures and its page
SPEEDUP = 1.5
"""A larger student takes less time per MAC; up to this factor less, and it is measured before it is ruled out."""

CALIBRATION_SHARE = 0.05  # of a stage's epochs, within its warm-up, until its length is fixed
CALIBRATION_SECONDS = 3.0  # minimum time of those epochs; less says no more than the steps that were measured before
MAX_SLOWDOWN = 3.0
"""Largest factor between measured and actual time that is believed; more is a machine that slept, or was busy once."""

TimesOf = Callable[[Kind, bool], StepTimes]  # stage, and whether a teacher teaches in it -> its step times


@dataclass(frozen=True)
class StageLength:
    """Epochs and seconds of a stage, everything included."""

    kind: Kind
    epochs: int
    seconds: float


def stage_seconds(times: StepTimes, epochs: int) -> float:
    """Return the seconds of a stage."""
    return times.training(epochs) + RESERVE


def epochs_within(times: StepTimes, seconds: float) -> int:
    """Return the epochs of a stage of this many seconds: 0 where not one fits, and at most `MAX_EPOCHS`."""
    return max(0, min(MAX_EPOCHS, int((seconds - stage_seconds(times, 0)) / times.epoch)))


def has_time_for(candidate: SizedStudent, times: StepTimes, seconds: float) -> bool:
    """True if the time buys a training that is long enough for the candidate."""
    epochs = epochs_within(times, seconds)
    return epochs >= candidate.epochs and epochs * times.steps >= candidate.steps


def largest_that_fits(
    candidates: Sequence[SizedStudent],
    seconds: Callable[[], float],
    measure: Callable[[SizedStudent], StepTimes],
    macs: Callable[[SizedStudent], int],
) -> SizedStudent:
    """Return the largest candidate that there is time for; the first one where there is time for none. Measuring takes
    time, and of a large student more than a small budget has. So the step times of larger candidates are estimated from
    their MACs, and only those that might fit are measured. `seconds`: returns what is left, after each measurement.
    """
    best, ceiling, times = 0, len(candidates), measure(candidates[0]) if len(candidates) > 1 else None
    while times is not None and best + 1 < ceiling:
        larger = range(best + 1, ceiling)
        estimates = {i: times.scaled(macs(candidates[i]) / macs(candidates[best]) / SPEEDUP) for i in larger}
        promising = [i for i, estimate in estimates.items() if has_time_for(candidates[i], estimate, seconds())]
        if not promising:
            break
        measured = measure(candidates[promising[-1]])
        if has_time_for(candidates[promising[-1]], measured, seconds()):
            best, times = promising[-1], measured
        else:
            ceiling = promising[-1]
    return candidates[best]


def divide_time(seconds: float, images: int, times: TimesOf, search: bool, startable: bool) -> tuple[StageLength, ...]:
    """Return the stages and their lengths of at least one epoch; () where not even the student's fits."""
    alone = times("student", False)
    plain = epochs_within(alone, seconds)
    shares = stage_shares(images, plain * alone.steps, startable) if search else (("student", 1.0),)
    while True:
        lengths = _shared(seconds, shares, times)
        short = {length.kind for length in lengths if length.epochs < MIN_STAGE_EPOCHS[length.kind]}
        if not short or len(shares) == 1:
            return lengths if lengths[-1].epochs else ()
        dropped = short - {"student"} or {kind for kind, _ in shares if kind != "student"}
        shares = tuple(part for part in shares if part[0] not in dropped)


def _shared(seconds: float, shares: Sequence[tuple[Kind, float]], times: TimesOf) -> tuple[StageLength, ...]:
    """Return every stage within its share, the last one within what is left of all."""
    lengths, left = list[StageLength](), seconds
    taught = any(kind == "teacher" for kind, _ in shares)
    for kind, share in shares:
        measured = times(kind, taught and kind == "student")
        epochs = epochs_within(measured, left if kind == "student" else share * seconds)
        lengths.append(StageLength(kind, epochs, stage_seconds(measured, epochs)))
        left -= lengths[-1].seconds
    return tuple(lengths)


def calibration_epochs(times: StepTimes, epochs: int, warmup: float) -> int:
    """Return the epochs after which a stage's length is fixed; 0 where it stays as planned."""
    first = min(math.floor(warmup), math.ceil(CALIBRATION_SHARE * epochs))
    return first if first * times.epoch >= CALIBRATION_SECONDS and times.steps > 1 else 0


def slowdown_of(actual: float, planned: float) -> float:
    """Return the factor between planned and actual seconds, within `MAX_SLOWDOWN`."""
    return min(max(actual / planned, 1 / MAX_SLOWDOWN), MAX_SLOWDOWN)


def remaining_epochs(
    times: StepTimes, planned: Sequence[float], seconds: float, slowdown: float, elapsed: float = 0.0
) -> int:
    """Return the epochs left to the first of the remaining stages, now that the actual speed is known.

    Args:
        planned: seconds of each remaining stage.
        slowdown: actual over planned seconds until now.
        elapsed: seconds since the stage began.
    """
    share = planned[0] / sum(planned)
    return max(1, epochs_within(times, (share * seconds - elapsed) / slowdown))
