# SPDX-License-Identifier: Apache-2.0
"""Answers to the same test images, two by two: what they say of a difference besides the spread over seeds.

Of classifiers it is known which images they get right. AP, mIoU and mAP are no means over images; of detectors,
segmenters and students of several labels their values over the same draws of images are kept instead.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...evaluation.judged import read_judged
from ...evaluation.results import read_predictions
from ..folder import StudyDir
from ..run.outcomes import Outcome
from .statistics import LEVEL, Difference, Estimate, accuracy, difference, precision


class Answers:
    """What a study's students said of the test images, each file read once."""

    def __init__(self, study: StudyDir) -> None:
        self.study = study
        self._known: dict[str, NDArray[np.bool_] | None] = {}
        self._drawn: dict[str, NDArray[np.float64] | None] = {}

    def right(self, outcome: Outcome) -> NDArray[np.bool_] | None:
        """[N] whether each image was classified as it should be."""
        name = outcome.cell.name
        if outcome.cell.candidate.measure != "accuracy":
            return None
        if name not in self._known:
            run = self.study.run(outcome.cell)
            self._known[name] = None
            with suppress(UserError):  # missing or damaged: the intervals over seeds are left
                kept = read_predictions(run)
                self._known[name] = kept.predicted == kept.labels
        return self._known[name]

    def drawn(self, outcome: Outcome) -> NDArray[np.float64] | None:
        """[R] its score over draws of the test images, by what counts of it where that is no accuracy."""
        if outcome.measured == "accuracy":
            return None
        if outcome.cell.name not in self._drawn:
            judged = read_judged(self.study.run(outcome.cell))
            counting = judged.counting if judged else None
            draws = counting.resampled if counting and next(iter(counting.measures)) == outcome.measured else ()
            self._drawn[outcome.cell.name] = np.array(draws) if draws else None
        return self._drawn[outcome.cell.name]


def paired(
    answers: Answers, ours: Sequence[Outcome], theirs: Sequence[Outcome], level: float = LEVEL
) -> Difference | None:
    """Difference over the seeds that both have; None without any."""
    by_seed = {outcome.cell.seed: outcome for outcome in theirs}
    pairs = [(outcome, by_seed[outcome.cell.seed]) for outcome in ours if outcome.cell.seed in by_seed]
    if not pairs:
        return None
    columns = [(answers.right(our), answers.right(their)) for our, their in pairs]
    right = None
    if all(a is not None and b is not None and len(a) == len(b) for a, b in columns):
        right = np.stack([a.astype(np.int8) - b.astype(np.int8) for a, b in columns if a is not None and b is not None])
    drawn = _stacked([_less(answers.drawn(our), answers.drawn(their)) for our, their in pairs])
    values = [(score(our) or 0.0, score(their) or 0.0) for our, their in pairs]
    return difference([a for a, _ in values], [b for _, b in values], right, level, drawn)


def estimated(answers: Answers, group: Sequence[Outcome]) -> Estimate:
    """Mean over seeds with the interval that suits the measure."""
    values = [score(outcome) or 0.0 for outcome in group]
    if group[0].measured != "accuracy":
        return precision(values, _stacked([answers.drawn(outcome) for outcome in group]))
    return accuracy(values, _images(group))


def _less(ours: NDArray[np.float64] | None, theirs: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """Differences of draws, which are the same for equal numbers of images; None where one is not known."""
    return None if ours is None or theirs is None or ours.shape != theirs.shape else ours - theirs


def _stacked(rows: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    """[S, R]; None where a row is missing or longer than another."""
    known = [row for row in rows if row is not None]
    return np.stack(known) if len(known) == len(rows) and len({row.shape for row in known}) == 1 else None


def score(outcome: Outcome) -> float | None:
    """On test images; on validation images, where nothing is held out as test."""
    return outcome.test if outcome.test is not None else outcome.val


def _images(group: Sequence[Outcome]) -> int | None:
    """How many images an accuracy was counted on; None for another measure."""
    numbers = group[0].numbers or {}
    return int(numbers.get("images", 0)) or None if group[0].cell.candidate.measure == "accuracy" else None
