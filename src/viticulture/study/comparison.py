# SPDX-License-Identifier: Apache-2.0
"""What can be concluded: ranks by validation, results on test, and a winner only where chance is no explanation.

The leader is the first ViT by validation; other networks are shown for comparison (they compete where no two ViTs do).
It is a winner if, on test images and paired seeds, it beats every rival: both intervals of each difference (Student's
over seeds, the bootstrap's over seeds and images) lie above zero. Each at its own level: a wrong winner must beat a
rival that is as good, and to beat the others as well only makes it rarer (an intersection-union test; Berger,
"Multiparameter hypothesis testing and acceptance sampling", Technometrics 1982, 24(4)). `benchmarks.false_winners`
counts them. A study that grows until somebody wins asks the question several times: each look spends a part of the
level (`statistics.level_of_look`). Nobody wins before every training that is wanted has come to its end.
"""

# Answers to the same test images, two by two: what they say of a difference besides the spread over seeds.
#
# Of classifiers it is known which images they get right. AP, mIoU and mAP are no means over images; of detectors,
# segmenters and students of several labels their values over the same draws of images are kept instead.
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..tasks.results import read_predictions
from .folder import StudyFolder
from .grid import Candidate, Grid, digest
from .measures import Measure, measure
from .outcomes import Outcome
from .statistics import (
    LEVEL,
    Difference,
    Estimate,
    accuracy,
    difference,
    difference_of_folds,
    estimate,
    level_of_look,
    next_level,
    precision,
)
from .terms import Subset

Number = TypeVar("Number", bound=np.generic)


class Answers:
    """What a study's students said of the test images, each file read once."""

    def __init__(self, study: StudyFolder) -> None:
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
            evaluations = self.study.task(outcome.cell).read_results()
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


NAMED = 4  # candidates in a sentence that are named one by one


@dataclass(frozen=True)
class RankingEntry:
    """One candidate on one training subset, over its finished seeds.

    Args:
        candidate: which.
        subset: of training data.
        outcomes: its finished cells, by rising seed.
        test: accuracy (or another measure) on test images (validation images, where nothing is held out as test), in
            [0, 1].
        val: the same on validation images, which ranks; None without.
        versus_baseline: its difference to the baseline; None for the baseline, without common seeds, and by another
            measure.
    """

    candidate: Candidate
    subset: Subset
    outcomes: tuple[Outcome, ...]
    test: Estimate
    val: Estimate | None
    versus_baseline: Difference | None

    @property
    def score(self) -> float:
        """What ranks it."""
        return self.val.mean if self.val else self.test.mean

    def fact(self, key: str) -> float | None:
        """Mean over seeds of a number of the outcomes' rows, such as seconds or parameters."""
        values = [value for outcome in self.outcomes if (value := outcome.row[key]) is not None]
        return fmean(values) if values else None

    @property
    def tested(self) -> bool:
        """Whether its results are of test images."""
        return self.outcomes[0].test is not None

    @property
    def vit(self) -> bool:
        """Whether the student attends to tokens."""
        return all((outcome.facts or {}).get("vit", True) for outcome in self.outcomes)


@dataclass(frozen=True)
class Comparison:
    """The comparison on one data set and one subset of it.

    Args:
        data: the images.
        subset: of training data.
        standings: best first, by validation where every one has it.
        by: the split that ranked: val or test.
        leader: the first ViT, or else the first.
        rivals: candidate -> the leader's difference to it, at the level of this look; the closest first.
        reference: the leader's difference to the best network that is no ViT, with its name; None without.
        named: whether the leader is a winner.
        level: of the intervals that name one.
        unsettled: candidate -> why it is not known how well it does: its trainings failed, or are not finished.
    """

    data: str
    subset: Subset
    standings: tuple[RankingEntry, ...]
    by: str
    leader: RankingEntry
    rivals: dict[str, Difference]
    reference: tuple[str, Difference] | None
    named: bool
    level: float
    unsettled: dict[str, str]

    @property
    def key(self) -> str:
        """What it is about, as study.json says it."""
        return f"{self.data}, {self.subset.name}"

    @property
    def measure(self) -> Measure:
        """What candidates are compared by."""
        return measure(self.measured)

    @property
    def measured(self) -> list[str]:
        """The names of what is measured of them."""
        return sorted({outcome.measured for standing in self.standings for outcome in standing.outcomes})

    @property
    def outcomes(self) -> list[Outcome]:
        """The trainings that it rests on."""
        return [outcome for standing in self.standings for outcome in standing.outcomes]

    @property
    def reported(self) -> str:
        """The images that results are of: test, or validation where nothing is held out as test. Where some are of
        test, those that are not are told apart."""
        return "test" if any(standing.tested for standing in self.standings) else "validation"

    @property
    def images(self) -> str:
        """Whose interval stands beside Student's over seeds."""
        return self.measure.images.format(self.reported)

    @property
    def close(self) -> list[str]:
        """Rivals that the leader cannot be told apart from, the closest first."""
        return [
            name for name, difference in self.rivals.items() if not (difference.separates() and difference.mean > 0)
        ]


def verdicts(study: StudyFolder, outcomes: Iterable[Outcome]) -> list[Comparison]:
    """One for every data set and subset with finished cells of the full length; the largest subset comes last."""
    grid, groups = study.grid, dict[tuple[str, Subset], list[Outcome]]()
    for outcome in outcomes:
        groups.setdefault((outcome.cell.candidate.data or grid.data, outcome.cell.subset), []).append(outcome)
    wanted = [
        (data, subset)
        for data in dict.fromkeys(candidate.data or grid.data for candidate in grid.candidates)
        for subset in grid.subsets.each()
    ]
    looks = study.facts.get("looks", {})
    reached = (_verdict(study, *key, groups.get(key, []), looks.get(f"{key[0]}, {key[1].name}", [])) for key in wanted)
    return [verdict for verdict in reached if verdict is not None]


def record(study: StudyFolder, reached: Iterable[Comparison]) -> None:
    """Keep in study.json which comparisons were looked at, each by the marks of its looks in their order."""
    known = study.facts.get("looks", {})
    looks = dict(known)
    for verdict in reached:
        seen, mark = looks.get(verdict.key, []), _fingerprint(verdict.outcomes)
        settled = verdict.rivals and not verdict.unsettled and not study.grid.published
        if settled and mark not in _marks(seen, verdict.outcomes):
            looks[verdict.key] = [*seen, mark]
    if looks != known:
        study.update(looks=looks)


def _verdict(
    study: StudyFolder, data: str, subset: Subset, outcomes: Sequence[Outcome], looks: Sequence[str | int]
) -> Comparison | None:
    """None where nothing is finished; looks: marks of the trainings of which this comparison was seen."""
    grid, last = study.grid, len(study.grid.terms.rungs) - 1
    answers = Answers(study)
    groups: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.cell.seed):
        if outcome.status == "finished" and outcome.cell.rung == last and outcome.score is not None:
            groups.setdefault(outcome.cell.candidate.name, []).append(outcome)
    groups = {name: groups[name] for name in (candidate.name for candidate in grid.candidates) if name in groups}
    if not groups:
        return None
    unsettled = {
        outcome.cell.candidate.name: "have failed" if outcome.status == "failed" else "are not finished"
        for outcome in sorted(outcomes, key=lambda outcome: outcome.status == "failed")
        if outcome.status == "failed" or (outcome.status not in ("finished", "dropped") and outcome.cell.rung == last)
    }
    baseline = groups.get(grid.baseline.name)
    standings = [
        RankingEntry(
            group[0].cell.candidate,
            subset,
            tuple(group),
            estimated(answers, group),
            estimate([o.val or 0.0 for o in group], overlap=grid.overlap)
            if all(o.val is not None for o in group)
            else None,
            paired(answers, group, baseline)
            if baseline and name != grid.baseline.name and group[0].measured == baseline[0].measured
            else None,
        )
        for name, group in groups.items()
    ]
    by = "val" if all(standing.val for standing in standings) else "test"
    standings.sort(key=lambda standing: -(standing.score if by == "val" else standing.test.mean))
    leader = next((standing for standing in standings if standing.vit), standings[0])
    others = [standing for standing in standings if standing is not leader]
    if leader.vit and any(other.vit for other in others):
        others = [other for other in others if other.vit]
    rests_on = [outcome for group in groups.values() for outcome in group]
    mark, marks = _fingerprint(rests_on), _marks(looks, rests_on)
    level = level_of_look(1 + (marks.index(mark) if mark in marks else len(marks)))
    rivals = {
        other.candidate.name: lead
        for other in others
        if (lead := paired(answers, leader.outcomes, other.outcomes, level)) is not None
    }
    rivals = dict(sorted(rivals.items(), key=lambda item: item[1].mean))
    clear = all(lead.separates() and lead.mean > 0 for lead in rivals.values())
    named = clear and len(rivals) == len(others) > 0 and not unsettled and not grid.published
    outside = (standing for standing in standings if not standing.vit and standing not in others)
    best = next((standing for standing in outside if standing is not leader), None)
    beside = paired(answers, leader.outcomes, best.outcomes) if best else None
    reference = (best.candidate.name, beside) if best and beside else None
    return Comparison(data, subset, tuple(standings), by, leader, rivals, reference, named, level, unsettled)


def _marks(looks: Sequence[str | int], rests_on: Sequence[Outcome]) -> list[str | int]:
    """Of looks, one of which may be at these trainings: it was once known by their number."""
    return [_fingerprint(rests_on) if look == len(rests_on) else look for look in looks]


def _fingerprint(outcomes: Iterable[Outcome]) -> str:
    """Digest that tells a look at these trainings from one at others."""
    return digest(sorted(outcome.cell.name for outcome in outcomes))


def conclusion(grid: Grid, reached: Sequence[Comparison], finished: int, cells: int) -> str:
    """The study's conclusion in one sentence or two, about the largest training subset."""
    left = "" if finished == cells else f" ({finished} of {cells} trainings are finished.)"
    if not reached:
        known = "Nothing that was held out has been measured" if finished else "Nothing is finished yet"
        return f"{known}: {finished} of {cells} trainings."
    if grid.published:
        return _beside_published(grid, reached) + left
    verdict = reached[-1]
    leader = verdict.leader
    who, where = leader.candidate.name, f"{subject(verdict.data)}, {verdict.subset.name}"
    images = f"{verdict.reported} images"
    share = _percent(leader.test, grid.unit)
    gets = f"gets {share} of the {images} right"
    if verdict.measure.of:
        gets = f"reaches {verdict.measure.of} of {share} on the {images}"
    if not verdict.rivals:
        return f"{who} {gets} on {where}; there is nothing finished to compare it with.{left}"
    beside = _beside_reference(verdict)
    closest = verdict.close[0] if verdict.close else next(iter(verdict.rivals))
    lead = verdict.rivals[closest]
    if verdict.named:
        what = f"{who} grows the best ViT" if leader.vit else f"{who}, which is no ViT, does best"
        return f"{what} on {where}: it {gets}, {_points(lead)} points more than {closest}, the closest.{beside}{left}"
    if verdict.unsettled:
        why = max(verdict.unsettled.values())  # failures first
        names = _some([name for name, known in verdict.unsettled.items() if known == why])
        reason = f"none is named while trainings of {names} {why}"
    elif lead.over_seeds.sd is None:
        reason = f"with one common {grid.unit} no spread is known; train at least three"
    elif lead.mean <= 0:
        reason = f"on {verdict.reported} {closest} is no worse ({_points(lead)} points between them)"
    else:
        reason = f"its lead over {closest}, {_points(lead)} points, may be chance"
        if needed := lead.seeds_needed(next_level(verdict.level)):
            seeds = max(needed, len(lead.over_seeds.values) + 1)
            reason += f"; about {seeds} seeds would show a lead of this size"
    words = f"{who} is first by {_split(verdict)} and {gets}, but {reason}."
    return f"No winner on {where}: {words}{beside}{left}"


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many others there are."""
    shown = names if len(names) <= NAMED + 1 else names[:NAMED]
    others = f" and {len(names) - NAMED} others" if len(shown) < len(names) else ""
    return f"{', '.join(shown)}{others}"


def _beside_reference(verdict: Comparison) -> str:
    """How the leader stands to the best network that is no ViT."""
    if verdict.reference is None:
        return ""
    name, difference = verdict.reference
    if not difference.separates():
        return f" It cannot be told apart from {name}, which is no ViT ({_points(difference)} points)."
    return (
        f" {name}, which is no ViT, does {'worse' if difference.mean > 0 else 'better'} ({_points(difference)} points)."
    )


def _beside_published(grid: Grid, reached: Sequence[Comparison]) -> str:
    rows = [
        standing for verdict in reached for standing in verdict.standings if standing.candidate.published is not None
    ]
    if not rows:
        return f"{grid.table}: no row that has a published number is finished yet."
    gaps = [100 * standing.test.mean - (standing.candidate.published or 0.0) for standing in rows]
    inside = [
        standing
        for standing in rows
        if standing.test.low is not None
        and standing.test.high is not None
        and 100 * standing.test.low <= (standing.candidate.published or 0.0) <= 100 * standing.test.high
    ]
    words = f"{grid.table}: ours minus published is {fmean(gaps):+.1f} points on average over {len(rows)} rows"
    if len(rows) > 1:
        words += f", from {min(gaps):+.1f} to {max(gaps):+.1f}"
    if any(standing.test.sd is not None for standing in rows):
        words += f"; {len(inside)} of the published numbers lie inside our 95 % intervals"
    return words + "."


def subject(data: str) -> str:
    """What to call a data set: a folder's or file's name without the way to it."""
    return data.removesuffix("/*").rstrip("/").rsplit("/", 1)[-1] or data


def _split(verdict: Comparison) -> str:
    return "validation" if verdict.by == "val" else "test"


def _percent(accuracy: Estimate, unit: str) -> str:
    if accuracy.low is None or accuracy.high is None:
        return f"{100 * accuracy.mean:.1f} %"
    low, high = max(0.0, 100 * accuracy.low), min(100.0, 100 * accuracy.high)
    return f"{100 * accuracy.mean:.1f} % (95 % interval {low:.1f} to {high:.1f}, {len(accuracy.values)} {unit}s)"


def _points(difference: Difference) -> str:
    interval = f" ({100 * difference.span[0]:.1f} to {100 * difference.span[1]:.1f})" if difference.span else ""
    return f"{100 * difference.mean:.1f}{interval}"
