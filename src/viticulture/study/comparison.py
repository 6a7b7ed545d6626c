# SPDX-License-Identifier: Apache-2.0
"""Compare candidates: ranks by validation, results on test, and a winner only where chance is no explanation.

The leader is the first ViT by validation; other networks are listed for reference (they compete where no two ViTs do).
It is a winner if, on test images and paired seeds, it beats every rival: both intervals of each difference (Student's
over seeds, the bootstrap's over seeds and images) lie above zero. Each has its own level: a wrong winner must beat a
rival that is as good, and to beat the others as well only makes it rarer (an intersection-union test; Berger,
"Multiparameter hypothesis testing and acceptance sampling", Technometrics 1982, 24(4)). `benchmarks.false_winners`
counts them. A study that grows is analyzed several times: each interim analysis spends a part of the level
(`statistics.level_of_analysis`). There is no winner before every training has finished.

The accuracy of classifiers is compared image by image. AP, mIoU and mAP are no means over images; of these, values over
the same draws of test images are compared.
"""

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
from .grid import Candidate, digest
from .measures import Measure, measure
from .outcomes import Outcome
from .statistics import (
    LEVEL,
    Difference,
    Estimate,
    difference,
    difference_of_folds,
    estimate,
    estimate_accuracy,
    estimate_resampled,
    level_of_analysis,
)
from .terms import Subset

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class RankingEntry:
    """One candidate on one training subset, over its finished seeds."""

    candidate: Candidate
    subset: Subset
    outcomes: tuple[Outcome, ...]
    # Accuracy (or another measure) on test images (validation images, where there is no test split), in [0, 1].
    test: Estimate
    val: Estimate | None
    # Its difference to the baseline; None for the baseline, without common seeds, and by another measure.
    versus_baseline: Difference | None

    def mean(self, column: str) -> float | None:
        """Return the mean over seeds of a column of the outcomes' rows, such as seconds or parameters."""
        values = [value for outcome in self.outcomes if (value := outcome.row[column]) is not None]
        return fmean(values) if values else None

    @property
    def tested(self) -> bool:
        """True if its results are of test images."""
        return self.outcomes[0].test is not None

    @property
    def vit(self) -> bool:
        """True if the student attends to tokens."""
        return all((outcome.metadata or {}).get("vit", True) for outcome in self.outcomes)


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison on one data set and one subset of it."""

    data: str
    subset: Subset
    ranking: tuple[RankingEntry, ...]  # best first, by validation where every entry has it
    ranked_by: str
    leader: RankingEntry
    # Candidate -> the leader's difference to it, at the level of this analysis; the closest first.
    rivals: dict[str, Difference]
    # The leader's difference to the best network that is no ViT, with its name; None without.
    reference: tuple[str, Difference] | None
    has_winner: bool
    level: float
    incomplete: dict[str, str]  # candidate -> why its result is not known: its trainings failed, or are not finished

    @property
    def key(self) -> str:
        """Its name in study.json."""
        return f"{self.data}, {self.subset.name}"

    @property
    def measure(self) -> Measure:
        """The measure that candidates are compared by."""
        return measure(self.measured)

    @property
    def measured(self) -> list[str]:
        """Names of the measures of its outcomes."""
        return sorted({outcome.measured for outcome in self.outcomes})

    @property
    def outcomes(self) -> list[Outcome]:
        """The trainings that it rests on."""
        return [outcome for entry in self.ranking for outcome in entry.outcomes]

    @property
    def reported(self) -> str:
        """Split of the results: test, or validation where no result is of test images."""
        return "test" if any(entry.tested for entry in self.ranking) else "validation"

    @property
    def images_interval(self) -> str:
        """The interval over images, in words; "" without one."""
        return self.measure.images.format(self.reported)

    @property
    def not_separated(self) -> list[str]:
        """Rivals that the leader does not beat beyond chance, the closest first."""
        return [name for name, lead in self.rivals.items() if not (lead.separates() and lead.mean > 0)]


class PairedResults:
    """Results of a study's students on the same test images; each file is read once."""

    def __init__(self, study: StudyFolder) -> None:
        self.study, self.overlap = study, study.grid.overlap
        self._correct: dict[str, NDArray[np.int8] | None] = {}
        self._resampled: dict[str, NDArray[np.float64] | None] = {}

    def own_images(self, group: Sequence[Outcome]) -> bool:
        """Return whether folds are tested on different images, as they are unless the data has a test split."""
        names = [self.study.run(outcome.cell).image_names for outcome in group[:2]] if self.overlap else []
        return len({tuple(each.get("test") or each.get("val") or []) for each in names}) > 1

    def correct(self, outcome: Outcome) -> NDArray[np.int8] | None:
        """Return [N], 1 where an image was classified correctly, else 0; None without predictions."""
        name = outcome.cell.name
        if outcome.measured != "accuracy":
            return None
        if name not in self._correct:
            self._correct[name] = None
            with suppress(UserError):  # missing or damaged: the intervals over seeds remain
                saved = read_predictions(self.study.run(outcome.cell))
                self._correct[name] = (saved.predicted == saved.labels).astype(np.int8)
        return self._correct[name]

    def resampled(self, outcome: Outcome) -> NDArray[np.float64] | None:
        """Return [R], its main measure over draws of the test images, where that is not accuracy."""
        name = outcome.cell.name
        if outcome.measured == "accuracy":
            return None
        if name not in self._resampled:
            results = self.study.task(outcome.cell).read_results()
            counting = results.counting if results else None
            main = counting and next(iter(counting.measures)) == outcome.measured
            draws = getattr(counting, "resampled", ()) if main else ()
            self._resampled[name] = np.array(draws) if draws else None
        return self._resampled[name]

    def difference(self, ours: Sequence[Outcome], theirs: Sequence[Outcome], level: float = LEVEL) -> Difference | None:
        """Compare two candidates over the seeds that both have; None without any."""
        by_seed = {outcome.cell.seed: outcome for outcome in theirs}
        pairs = [(outcome, by_seed[outcome.cell.seed]) for outcome in ours if outcome.cell.seed in by_seed]
        if not pairs:
            return None
        gaps = [_subtract(self.correct(our), self.correct(their)) for our, their in pairs]
        scores = [our.score or 0.0 for our, _ in pairs], [their.score or 0.0 for _, their in pairs]
        if self.own_images(ours) and ours[0].measured == "accuracy":
            present = [gap for gap in gaps if gap is not None]
            return difference_of_folds(*scores, present if len(present) == len(gaps) else None, self.overlap, level)
        resampled = _stacked([_subtract(self.resampled(our), self.resampled(their)) for our, their in pairs])
        return difference(*scores, _stacked(gaps), level, resampled, self.overlap)

    def estimate(self, group: Sequence[Outcome]) -> Estimate:
        """Compute the mean over seeds with the interval of the measure."""
        values = [outcome.score or 0.0 for outcome in group]
        if group[0].measured != "accuracy":
            return estimate_resampled(values, _stacked([self.resampled(outcome) for outcome in group]), self.overlap)
        images = [int((outcome.numbers or {}).get("images", 0)) for outcome in group]
        number = sum(images) if self.own_images(group) else images[0]
        return estimate_accuracy(values, number or None, self.overlap)


def compare(study: StudyFolder, outcomes: Iterable[Outcome]) -> list[Comparison]:
    """Compare on every data set and subset with finished cells of the full length; the largest subset comes last."""
    grid, groups = study.grid, dict[tuple[str, Subset], list[Outcome]]()
    for outcome in outcomes:
        groups.setdefault((outcome.cell.candidate.data or grid.data, outcome.cell.subset), []).append(outcome)
    keys = [
        (data, subset)
        for data in dict.fromkeys(candidate.data or grid.data for candidate in grid.candidates)
        for subset in grid.subsets.each()
    ]
    analyses = study.metadata.get("interim_analyses", {})
    compared = (
        _compare(study, *key, groups.get(key, []), analyses.get(f"{key[0]}, {key[1].name}", [])) for key in keys
    )
    return [comparison for comparison in compared if comparison is not None]


def record_analyses(study: StudyFolder, comparisons: Iterable[Comparison]) -> None:
    """Write into study.json which comparisons were analyzed: fingerprints of their trainings, in order."""
    before = study.metadata.get("interim_analyses", {})
    analyses = dict(before)
    for comparison in comparisons:
        earlier, fingerprint = analyses.get(comparison.key, []), _fingerprint(comparison.outcomes)
        complete = comparison.rivals and not comparison.incomplete and not study.grid.published
        if complete and fingerprint not in earlier:
            analyses[comparison.key] = [*earlier, fingerprint]
    if analyses != before:
        study.update(interim_analyses=analyses)


def _compare(
    study: StudyFolder, data: str, subset: Subset, outcomes: Sequence[Outcome], analyses: Sequence[str]
) -> Comparison | None:
    """Compare on one subset; None where nothing is finished. `analyses`: fingerprints of its earlier analyses."""
    grid, last = study.grid, len(study.grid.terms.rungs) - 1
    paired = PairedResults(study)
    groups: dict[str, list[Outcome]] = {candidate.name: [] for candidate in grid.candidates}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.cell.seed):
        if outcome.status == "finished" and outcome.cell.rung == last and outcome.score is not None:
            groups[outcome.cell.candidate.name].append(outcome)
    groups = {name: group for name, group in groups.items() if group}
    if not groups:
        return None
    incomplete = {
        outcome.cell.candidate.name: "have failed" if outcome.status == "failed" else "are not finished"
        for outcome in sorted(outcomes, key=lambda outcome: outcome.status == "failed")
        if outcome.status == "failed" or (outcome.status not in ("finished", "dropped") and outcome.cell.rung == last)
    }
    baseline = groups.get(grid.baseline.name, [])

    def entry(name: str, group: list[Outcome]) -> RankingEntry:
        values = [outcome.val for outcome in group if outcome.val is not None]
        comparable = baseline and name != grid.baseline.name and group[0].measured == baseline[0].measured
        return RankingEntry(
            group[0].cell.candidate,
            subset,
            tuple(group),
            paired.estimate(group),
            estimate(values, overlap=grid.overlap) if len(values) == len(group) else None,
            paired.difference(group, baseline) if comparable else None,
        )

    ranking = [entry(name, group) for name, group in groups.items()]
    ranked_by = "val" if all(each.val for each in ranking) else "test"
    ranking.sort(key=lambda each: -(each.val if each.val and ranked_by == "val" else each.test).mean)
    leader = next((each for each in ranking if each.vit), ranking[0])
    others = [each for each in ranking if each is not leader]
    if leader.vit and any(other.vit for other in others):
        others = [other for other in others if other.vit]
    fingerprint = _fingerprint(outcome for group in groups.values() for outcome in group)
    level = level_of_analysis(1 + (analyses.index(fingerprint) if fingerprint in analyses else len(analyses)))
    leads = {other.candidate.name: paired.difference(leader.outcomes, other.outcomes, level) for other in others}
    compared_leads = [(name, lead) for name, lead in leads.items() if lead is not None]
    rivals = dict(sorted(compared_leads, key=lambda item: item[1].mean))
    beats_all = all(lead.separates() and lead.mean > 0 for lead in rivals.values())
    has_winner = beats_all and len(rivals) == len(others) > 0 and not incomplete and not grid.published
    outside = (each for each in ranking if not each.vit and each not in others and each is not leader)
    best = next(outside, None)
    gap = paired.difference(leader.outcomes, best.outcomes) if best else None
    reference = (best.candidate.name, gap) if best and gap else None
    return Comparison(data, subset, tuple(ranking), ranked_by, leader, rivals, reference, has_winner, level, incomplete)


def _fingerprint(outcomes: Iterable[Outcome]) -> str:
    """Return a digest of the analyzed trainings."""
    return digest(sorted(outcome.cell.name for outcome in outcomes))


def _subtract(ours: NDArray[Number] | None, theirs: NDArray[Number] | None) -> NDArray[Number] | None:
    """Subtract image by image, or draw by draw of as many images; None where one is not known."""
    return None if ours is None or theirs is None or ours.shape != theirs.shape else np.subtract(ours, theirs)


def _stacked(rows: Sequence[NDArray[Number] | None]) -> NDArray[Number] | None:
    """Stack rows as [S, R]; None where a row is missing or longer than another."""
    present = [row for row in rows if row is not None]
    return np.stack(present) if len(present) == len(rows) and len({row.shape for row in present}) == 1 else None
