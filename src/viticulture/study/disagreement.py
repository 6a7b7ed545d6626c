# SPDX-License-Identifier: Apache-2.0
"""Test images that one method recognizes and another does not, with where both look.

Which images those are, the cells' answers tell; pictures need the images and the students. They are gathered once and
kept in the study's disagreement.npz, so that the page can be drawn without either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..analysis.attention import class_map
from ..analysis.galleries import Gallery, Group, read_galleries, save_galleries
from ..data.image_set import Images
from ..errors import UserError
from ..evaluation.model import of_run, pictures
from ..models.taps import Taps
from ..tasks.results import PREDICTIONS, read_predictions
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of, dataset_of
from .cell import data_of
from .comparison import Comparison, RankingEntry
from .folder import StudyFolder
from .grid import Candidate

FILE = "disagreement.npz"
PART = "disagreement"
EACH = 6  # images a direction
UNREADABLE = (UserError, OSError, KeyError, TypeError, ValueError, AttributeError)
"""What reading images that were moved, or a damaged run, raises."""


@dataclass(frozen=True, eq=False)
class _Side:
    """Images that the first of a pair gets right and the second does not.

    Args:
        pair: better and worse.
        chosen: places of the images in the split, the clearest first.
        said: [S, N], what the second says, by seed.
    """

    pair: tuple[RankingEntry, RankingEntry]
    chosen: NDArray[np.int64]
    said: NDArray[np.int32]


def opponents(verdict: Comparison, baseline: Candidate | None) -> tuple[RankingEntry, RankingEntry] | None:
    """The two that a person wants to see beside one another first: the leader, and the baseline or the second."""
    others = [standing for standing in verdict.standings if standing is not verdict.leader]
    if not others:
        return None
    return verdict.leader, next((standing for standing in others if standing.candidate == baseline), others[0])


def disagreements(study: StudyFolder, verdict: Comparison) -> Sequence[Gallery]:
    """A gallery for each direction; what was gathered before of the same images is read, else gathered and kept.

    Raises: UserError for damaged answers, or where pictures are to be gathered and the images cannot be read any more.
    """
    pair = opponents(verdict, study.grid.baseline)
    if pair is not None and study.grid.overlap:
        pair = _of_one_fold(*pair)
    if pair is None or not all(
        (study.run(o.cell).path / PREDICTIONS).exists() for standing in pair for o in standing.outcomes
    ):
        return ()
    truth = read_predictions(study.run(pair[0].outcomes[0].cell)).labels
    sides = _sides(study, pair, truth)
    about = [
        [
            [[standing.candidate.name, *_trained(standing)] for standing in side.pair],
            side.chosen.tolist(),
            verdict.subset.name,
        ]
        for side in sides
    ]
    known = read_galleries(study.path / FILE, about)
    if known is None and sides:
        try:
            images, classes = _images(study, pair[0])
        except UNREADABLE as error:
            raise UserError(f"The {verdict.reported} images cannot be shown: {error}") from error
        known = {PART: [_gallery(study, images, classes, side, truth) for side in sides]}
        save_galleries(study.path / FILE, known, about)
    return known[PART] if known else ()


def _of_one_fold(first: RankingEntry, second: RankingEntry) -> tuple[RankingEntry, RankingEntry] | None:
    """A pair by the first fold that both have finished: folds are tested on other images each."""
    shared = {o.cell.seed for o in first.outcomes} & {o.cell.seed for o in second.outcomes}
    if not shared:
        return None
    kept = [tuple(o for o in standing.outcomes if o.cell.seed == min(shared)) for standing in (first, second)]
    return replace(first, outcomes=kept[0]), replace(second, outcomes=kept[1])


def _sides(study: StudyFolder, pair: tuple[RankingEntry, RankingEntry], truth: NDArray[np.int32]) -> list[_Side]:
    """Both directions, as far as there are such images."""
    first, second = pair
    shared = sorted({o.cell.seed for o in first.outcomes} & {o.cell.seed for o in second.outcomes})
    if not shared:
        return []
    ours, theirs = _said(study, first, shared), _said(study, second, shared)
    if ours.shape != theirs.shape:
        return []
    gap = (ours == truth).mean(0) - (theirs == truth).mean(0)  # [N], from -1 to 1
    sides = []
    for better, worse, sign, answers in ((first, second, 1, theirs), (second, first, -1, ours)):
        chosen = _varied(np.argsort(-sign * gap, kind="stable"), sign * gap, truth)[:EACH]
        if len(chosen):
            sides.append(_Side((better, worse), chosen, answers))
    return sides


def _varied(order: NDArray[np.int64], gap: NDArray[np.float64], truth: NDArray[np.int32]) -> NDArray[np.int64]:
    """Images with a gap above zero, the clearest of each class first, so that no class fills the page alone."""
    order = order[gap[order] > 0]
    seen: dict[int, int] = {}
    turns = []
    for label in truth[order].tolist():
        turns.append(seen.get(label, 0))
        seen[label] = turns[-1] + 1
    return order[np.argsort(turns, kind="stable")]


def _said(study: StudyFolder, standing: RankingEntry, seeds: Sequence[int]) -> NDArray[np.int32]:
    """[S, N] predicted classes."""
    by_seed = {o.cell.seed: o for o in standing.outcomes}
    return np.stack([read_predictions(study.run(by_seed[seed].cell)).predicted for seed in seeds])


def _trained(standing: RankingEntry) -> list[Any]:
    """Which training is looked into."""
    outcome = standing.outcomes[0]
    return [outcome.cell.name, (outcome.facts or {}).get("started")]


def _gallery(
    study: StudyFolder, images: Images, classes: Sequence[str], side: _Side, truth: NDArray[np.int32]
) -> Gallery:
    """The images of one direction, with what the worse one says instead."""
    better, worse = side.pair
    views_and_maps = [_looks(study.run(standing.outcomes[0].cell), images, side.chosen) for standing in side.pair]
    groups: list[Group] = []
    for i, number in enumerate(side.chosen.tolist()):
        wrong = [int(answer) for answer in side.said[:, number] if answer != truth[number]]
        taken = classes[max(set(wrong), key=wrong.count)]
        pictures: list[NDArray[Any]] = []
        for view, seen_there in (shown[i] for shown in views_and_maps if shown):
            known = any(np.array_equal(view, picture) for picture in pictures)
            pictures += [seen_there] if known else [view, seen_there]
        pictures = pictures or [images.original(number)]
        name = images.records.names[number].rsplit("/", 1)[-1]
        groups.append((pictures, [f"is {classes[int(truth[number])]}", f"{worse.candidate.name} says {taken}", name]))
    seen = [standing.candidate.name for standing, maps in zip(side.pair, views_and_maps, strict=True) if maps]
    note = (
        f"Beside each image, as it is shown: where the class token of {' and of '.join(seen)} looks in the last layer."
        if seen
        else ""
    )
    return Gallery(f"{better.candidate.name} is right, {worse.candidate.name} is not", groups, note)


def _images(study: StudyFolder, standing: RankingEntry) -> tuple[Images, Sequence[str]]:
    """The split that was asked about."""
    run = study.run(standing.outcomes[0].cell)
    dataset = dataset_of(run, config_of(run), data_of(study, standing.candidate))
    images = dataset.test if dataset.test is not None else dataset.val
    if images is None:
        raise UserError("nothing is held out")
    return images, dataset.classes


def _looks(
    run: RunFolder, images: Images, chosen: NDArray[np.int64]
) -> list[tuple[NDArray[np.uint8], NDArray[np.floating]]]:
    """Images as the student is shown them, and maps of its class token's attention in the last layer; none for students
    without plain attention."""
    try:
        subject = of_run(run, batch_size=len(chosen))
        taps = Taps(subject.network, frozenset({"attention"}))
        assert taps.layout is not None
        ((_, pixels),) = subject.views(images.part(torch.from_numpy(chosen)))
        with torch.inference_mode():
            readings = taps(subject.normalized(pixels))
        maps = class_map(readings.attention[-1], taps.layout.grid(subject.data_spec.image_size)).cpu().numpy()
    except (UserError, ValueError, RuntimeError, IndexError):
        return []
    return list(zip(pictures(pixels), maps, strict=True))
