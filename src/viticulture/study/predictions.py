# SPDX-License-Identifier: Apache-2.0
"""Answers to the same test images, two by two: what they say of a difference besides the spread over seeds.

Of classifiers it is known which images they get right. AP, mIoU and mAP are no means over images; of detectors,
segmenters and students of several labels their values over the same draws of images are kept instead.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..evaluation.headline import read_judged
from ..evaluation.results import read_predictions
from .folder import StudyDir
from .outcomes import Outcome
from .statistics import LEVEL, Difference, Estimate, accuracy, difference, difference_of_folds, precision

Number = TypeVar("Number", bound=np.generic)


class Answers:
    """What a study's students said of the test images, each file read once."""

    def __init__(self, study: StudyDir) -> None:
        self.study = study
        self._known: dict[str, NDArray[np.int8] | None] = {}
        self._drawn: dict[str, NDArray[np.float64] | None] = {}
        self._tested: dict[str, list[str]] = {}

    @property
    def overlap(self) -> float:
        """Of the study's folds; 0 for seeds."""
        return self.study.grid.overlap

    def apart(self, group: Sequence[Outcome]) -> bool:
        """Whether folds are tested on images of their own, as they are unless the data declares its test."""
        return bool(self.overlap) and len({tuple(self._names(outcome)) for outcome in group[:2]}) > 1

    def _names(self, outcome: Outcome) -> list[str]:
        """Of the images that count."""
        name = outcome.cell.name
        if name not in self._tested:
            names = self.study.run(outcome.cell).image_names
            self._tested[name] = names.get("test") or names.get("val") or []
        return self._tested[name]

    def right(self, outcome: Outcome) -> NDArray[np.int8] | None:
        """[N] 1 where an image was classified as it should be, else 0."""
        name = outcome.cell.name
        if outcome.measured != "accuracy":
            return None
        if name not in self._known:
            run = self.study.run(outcome.cell)
            self._known[name] = None
            with suppress(UserError):  # missing or damaged: the intervals over seeds are left
                kept = read_predictions(run)
                self._known[name] = (kept.predicted == kept.labels).astype(np.int8)
        return self._known[name]

    def drawn(self, outcome: Outcome) -> NDArray[np.float64] | None:
        """[R] its score over draws of the test images, by what counts of it where that is no accuracy."""
        if outcome.measured == "accuracy":
            return None
        if outcome.cell.name not in self._drawn:
            evaluations = read_judged(self.study.run(outcome.cell))
            counting = evaluations.counting if evaluations else None
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
    gaps = [_less(answers.right(our), answers.right(their)) for our, their in pairs]
    values = [(our.score or 0.0, their.score or 0.0) for our, their in pairs]
    scores = [a for a, _ in values], [b for _, b in values]
    if answers.apart(ours) and ours[0].measured == "accuracy":
        known = [gap for gap in gaps if gap is not None]
        return difference_of_folds(*scores, known if len(known) == len(gaps) else None, answers.overlap, level)
    drawn = _stacked([_less(answers.drawn(our), answers.drawn(their)) for our, their in pairs])
    return difference(*scores, _stacked(gaps), level, drawn, answers.overlap)


def estimated(answers: Answers, group: Sequence[Outcome]) -> Estimate:
    """Mean over seeds with the interval that suits the measure."""
    values = [outcome.score or 0.0 for outcome in group]
    if group[0].measured != "accuracy":
        return precision(values, _stacked([answers.drawn(outcome) for outcome in group]), answers.overlap)
    counted = [_images(outcome) for outcome in group]
    images = sum(counted) if answers.apart(group) else counted[0]
    return accuracy(values, images or None, answers.overlap)


def _less(ours: NDArray[Number] | None, theirs: NDArray[Number] | None) -> NDArray[Number] | None:
    """Ours less theirs, image by image, or draw by draw of as many images; None where one is not known."""
    return None if ours is None or theirs is None or ours.shape != theirs.shape else np.subtract(ours, theirs)


def _stacked(rows: Sequence[NDArray[Number] | None]) -> NDArray[Number] | None:
    """[S, R]; None where a row is missing or longer than another."""
    known = [row for row in rows if row is not None]
    return np.stack(known) if len(known) == len(rows) and len({row.shape for row in known}) == 1 else None


def _images(outcome: Outcome) -> int:
    """How many images an accuracy was counted on; 0 where that is not known."""
    return int((outcome.numbers or {}).get("images", 0))
