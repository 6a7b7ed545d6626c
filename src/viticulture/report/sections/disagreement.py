# SPDX-License-Identifier: Apache-2.0
"""Test images that one method recognises and another does not, with where both look."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...analysis.attention_maps import class_map
from ...data.images import Images
from ...errors import UserError
from ...evaluation.subject import of_run
from ...models.taps import Taps
from ...study.conclude.verdict import Standing
from ...study.run.cell import ANSWERS, place, read_answers
from ...study.study import Study
from ...training.rundir import RunDir
from ...training.session import dataset_of, recipe_of
from ..charts.figures import image_grid
from ..charts.marks import text
from .attention import heat
from .class_differences import opponents

EACH = 6
Pixels = NDArray[np.uint8]


def disagreement(study: Study) -> str:
    """Pictures for both directions; a sentence where the images cannot be read any more."""
    pair = opponents(study)
    if pair is None or not all(_complete(study, one) for one in pair):
        return ""
    one, other = pair
    shared = sorted({o.cell.seed for o in one.outcomes} & {o.cell.seed for o in other.outcomes})
    try:
        ours, theirs, truth = _answers(study, one, shared), _answers(study, other, shared), _truth(study, one)
    except UserError as error:
        return f'<p class="note">{text(error)}</p>'
    if ours.shape != theirs.shape or not len(shared):
        return ""
    gap = (ours == truth).mean(0) - (theirs == truth).mean(0)  # [N], from -1 to 1
    try:
        images, classes = _images(study, one)
    except (UserError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:  # moved, or damaged
        return f'<p class="note">The test images cannot be shown: {text(error)}</p>'
    html = ""
    for better, worse, sign, said in ((one, other, 1, theirs), (other, one, -1, ours)):
        chosen = np.argsort(-sign * gap, kind="stable")[:EACH]
        chosen = chosen[sign * gap[chosen] > 0]
        if len(chosen):
            html += _grid(study, images, classes, chosen, (better, worse), said, truth)
    return html


def _grid(
    study: Study,
    images: Images,
    classes: Sequence[str],
    chosen: NDArray[np.int64],
    pair: tuple[Standing, Standing],
    said: NDArray[np.int32],
    truth: NDArray[np.int32],
) -> str:
    """Images that the first of a pair gets right and the second does not, with what the second says instead."""
    better, worse = pair
    looks = [_looks(study.folder.run(one.outcomes[0].cell), images, chosen) for one in pair]
    groups = []
    for i, number in enumerate(chosen.tolist()):
        wrong = [int(answer) for answer in said[:, number] if answer != truth[number]]
        taken = classes[max(set(wrong), key=wrong.count)]
        pictures: list[Pixels] = []
        for view, seen_there in (looked[i] for looked in looks if looked):
            known = any(np.array_equal(view, picture) for picture in pictures)
            pictures += [seen_there] if known else [view, seen_there]
        pictures = pictures or [images.original(number)]
        name = images.records.names[number].rsplit("/", 1)[-1]
        groups.append((pictures, [f"is {classes[int(truth[number])]}", f"{worse.contender.name} says {taken}", name]))
    seen = [one.contender.name for one, maps in zip(pair, looks, strict=True) if maps]
    note = (
        f"Beside each image, as it is shown: where the class token of {' and of '.join(seen)} looks in the last layer."
        if seen
        else ""
    )
    return image_grid(f"{better.contender.name} is right, {worse.contender.name} is not", groups, note)


def _complete(study: Study, one: Standing) -> bool:
    return all((study.folder.run(outcome.cell).path / ANSWERS).exists() for outcome in one.outcomes)


def _answers(study: Study, one: Standing, seeds: Sequence[int]) -> NDArray[np.int32]:
    """[S, N] predicted classes."""
    found = {o.cell.seed: o for o in one.outcomes}
    return np.stack([read_answers(study.folder.run(found[seed].cell))["predicted"] for seed in seeds])


def _truth(study: Study, one: Standing) -> NDArray[np.int32]:
    return read_answers(study.folder.run(one.outcomes[0].cell))["labels"]


def _images(study: Study, one: Standing) -> tuple[Images, Sequence[str]]:
    """The split that was asked about."""
    run = study.folder.run(one.outcomes[0].cell)
    dataset = dataset_of(run, recipe_of(run), place(study.folder, one.contender))
    images = dataset.test if dataset.test is not None else dataset.val
    if images is None:
        raise UserError("nothing is held out")
    return images, dataset.classes


def _looks(run: RunDir, images: Images, chosen: NDArray[np.int64]) -> list[tuple[Pixels, Pixels]]:
    """Images as the student is shown them, and maps of its class token's attention in the last layer; none for students
    without plain attention."""
    try:
        subject = of_run(run, batch_size=len(chosen))
        taps = Taps(subject.network, frozenset({"attention"}))
        assert taps.layout is not None
        ((_, pixels),) = subject.views(images.part(torch.from_numpy(chosen)))
        with torch.inference_mode():
            seen = taps(subject.normalised(pixels))
        maps = class_map(seen.attention[-1], taps.layout.grid(subject.task.image_size))
    except (UserError, ValueError, RuntimeError, IndexError):
        return []
    return list(zip(pixels.permute(0, 2, 3, 1).numpy(), map(heat, maps), strict=True))
