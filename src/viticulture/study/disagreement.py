# SPDX-License-Identifier: Apache-2.0
"""Test images that one method classifies correctly and another does not, with the attention of both.

The images follow from the cells' predictions; pictures need the images and the students. They are drawn once and saved
in the study's disagreement.npz, so that the page can be drawn without either.
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
MAX_IMAGES = 6  # per direction
UNREADABLE = (UserError, OSError, KeyError, TypeError, ValueError, AttributeError)
"""Errors of reading images that were moved, or a damaged run."""


@dataclass(frozen=True, eq=False)
class _Direction:
    """Images that the first of a pair classifies correctly and the second does not."""

    pair: tuple[RankingEntry, RankingEntry]
    chosen: NDArray[np.int64]
    predicted: NDArray[np.int32]


def default_pair(comparison: Comparison, baseline: Candidate | None) -> tuple[RankingEntry, RankingEntry] | None:
    """Return the two candidates to show first: the leader, and the baseline or the second."""
    others = [entry for entry in comparison.ranking if entry is not comparison.leader]
    if not others:
        return None
    return comparison.leader, next((entry for entry in others if entry.candidate == baseline), others[0])


def disagreements(study: StudyFolder, comparison: Comparison) -> Sequence[Gallery]:
    """Return a gallery for each direction: the saved one of the same images, or else a new one, which is saved.

    Raises: UserError for damaged predictions, or for pictures that must be drawn of images that cannot be read.
    """
    pair = default_pair(comparison, study.grid.baseline)
    if pair is not None and study.grid.overlap:
        pair = _of_one_fold(*pair)
    if pair is None or not all(
        (study.run(o.cell).path / PREDICTIONS).exists() for entry in pair for o in entry.outcomes
    ):
        return ()
    truth = read_predictions(study.run(pair[0].outcomes[0].cell)).labels
    if truth.ndim > 1:  # several labels an image
        return ()
    directions = _directions(study, pair, truth)
    content = [
        [
            [[entry.candidate.name, *_training(entry)] for entry in direction.pair],
            direction.chosen.tolist(),
            comparison.subset.name,
        ]
        for direction in directions
    ]
    saved = read_galleries(study.path / FILE, content)
    if saved is None and directions:
        try:
            run = study.run(pair[0].outcomes[0].cell)
            dataset = dataset_of(run, config_of(run), data_of(study, pair[0].candidate))
            images = dataset.test if dataset.test is not None else dataset.val
            if images is None:
                raise UserError("there are no held-out images")
        except UNREADABLE as error:
            raise UserError(f"The {comparison.reported} images cannot be shown: {error}") from error
        saved = {PART: [_gallery(study, images, dataset.classes, direction, truth) for direction in directions]}
        save_galleries(study.path / FILE, saved, content)
    return saved[PART] if saved else ()


def _of_one_fold(first: RankingEntry, second: RankingEntry) -> tuple[RankingEntry, RankingEntry] | None:
    """Restrict a pair to the first fold that both have finished: every fold is tested on other images."""
    shared = {o.cell.seed for o in first.outcomes} & {o.cell.seed for o in second.outcomes}
    if not shared:
        return None
    of_fold = [tuple(o for o in entry.outcomes if o.cell.seed == min(shared)) for entry in (first, second)]
    return replace(first, outcomes=of_fold[0]), replace(second, outcomes=of_fold[1])


def _directions(
    study: StudyFolder, pair: tuple[RankingEntry, RankingEntry], truth: NDArray[np.int32]
) -> list[_Direction]:
    """Return both directions, as far as there are such images."""
    first, second = pair
    shared = sorted({o.cell.seed for o in first.outcomes} & {o.cell.seed for o in second.outcomes})
    if not shared:
        return []
    ours, theirs = _predicted(study, first, shared), _predicted(study, second, shared)
    if ours.shape != theirs.shape:
        return []
    gap = (ours == truth).mean(0) - (theirs == truth).mean(0)  # [N], from -1 to 1
    directions = []
    for better, worse, sign, predicted in ((first, second, 1, theirs), (second, first, -1, ours)):
        chosen = _varied(np.argsort(-sign * gap, kind="stable"), sign * gap, truth)[:MAX_IMAGES]
        if len(chosen):
            directions.append(_Direction((better, worse), chosen, predicted))
    return directions


def _varied(order: NDArray[np.int64], gap: NDArray[np.float64], truth: NDArray[np.int32]) -> NDArray[np.int64]:
    """Order images with a gap above zero: the clearest of each class first, so that classes alternate."""
    order = order[gap[order] > 0]
    counts: dict[int, int] = {}
    turns = []
    for label in truth[order].tolist():
        turns.append(counts.get(label, 0))
        counts[label] = turns[-1] + 1
    return order[np.argsort(turns, kind="stable")]


def _predicted(study: StudyFolder, entry: RankingEntry, seeds: Sequence[int]) -> NDArray[np.int32]:
    """Read the predicted classes, [S, N]."""
    by_seed = {o.cell.seed: o for o in entry.outcomes}
    return np.stack([read_predictions(study.run(by_seed[seed].cell)).predicted for seed in seeds])


def _training(entry: RankingEntry) -> list[Any]:
    """Return what identifies the training whose attention is drawn."""
    outcome = entry.outcomes[0]
    return [outcome.cell.name, (outcome.metadata or {}).get("started")]


def _gallery(
    study: StudyFolder, images: Images, classes: Sequence[str], direction: _Direction, truth: NDArray[np.int32]
) -> Gallery:
    """Draw the images of one direction, with the class that the worse candidate predicts."""
    better, worse = direction.pair
    attention = [_attention(study.run(entry.outcomes[0].cell), images, direction.chosen) for entry in direction.pair]
    groups: list[Group] = []
    for i, number in enumerate(direction.chosen.tolist()):
        wrong = [int(label) for label in direction.predicted[:, number] if label != truth[number]]
        predicted = classes[max(set(wrong), key=wrong.count)]
        shown: list[NDArray[Any]] = []
        for view, attended in (views_and_maps[i] for views_and_maps in attention if views_and_maps):
            repeated = any(np.array_equal(view, picture) for picture in shown)
            shown += [attended] if repeated else [view, attended]
        shown = shown or [images.original(number)]
        name = images.records.names[number].rsplit("/", 1)[-1]
        lines = [f"is {classes[int(truth[number])]}", f"{worse.candidate.name} predicts {predicted}", name]
        groups.append((shown, lines))
    names = [entry.candidate.name for entry, maps in zip(direction.pair, attention, strict=True) if maps]
    note = f"Next to each input image: attention of the class token in the last layer of {' and of '.join(names)}."
    title = f"{better.candidate.name} is correct, {worse.candidate.name} is not"
    return Gallery(title, groups, note if names else "")


def _attention(
    run: RunFolder, images: Images, chosen: NDArray[np.int64]
) -> list[tuple[NDArray[np.uint8], NDArray[np.floating]]]:
    """Return input images, and maps of the class token's attention in the last layer; nothing for students without
    plain attention."""
    try:
        model = of_run(run, batch_size=len(chosen))
        taps = Taps(model.network, frozenset({"attention"}))
        assert taps.layout is not None
        ((_, pixels),) = model.views(images.part(torch.from_numpy(chosen)))
        with torch.inference_mode():
            readings = taps(model.normalized(pixels))
        maps = class_map(readings.attention[-1], taps.layout.grid(model.data_spec.image_size)).cpu().numpy()
    except (UserError, ValueError, RuntimeError, IndexError):
        return []
    return list(zip(pictures(pixels), maps, strict=True))
