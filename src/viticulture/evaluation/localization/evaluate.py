# SPDX-License-Identifier: Apache-2.0
"""Measure where a run's student looks, on images whose objects have boxes (metrics.py holds the metric).

AAL, arXiv:2211.13852, Table C: the mean of the class token's attention in all layers and heads, against true boxes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...data.dataset import Dataset
from ...data.image_set import Images
from ...errors import UserError
from ...models.taps import Taps, layout
from ...models.weights.files import load
from ...scores.objects import box_overlaps
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ..inputs import read_unseen
from ..model import EvaluatedModel, check_one_class, of_run, pictures
from ..saved import checksum_of
from .boxes import boxes_of, in_view
from .metrics import (
    OVERLAPS,
    PUBLISHED,
    Boxes,
    Protocol,
    best_overlaps,
    component_boxes,
    max_box_accuracy,
    score_maps,
)
from .results import Example, Localization

BATCH = 64  # images at once, with the attention of every layer
EXAMPLES = 12


def held_out(dataset: Dataset) -> Images:
    """The images to localize in: the test split, or the validation split where there is none."""
    images = dataset.test or dataset.val
    if images is None:
        raise UserError(f"{dataset.name} has neither test nor validation images; name other data to localize in")
    return images


def other_images(run: RunFolder, data: str) -> Images:
    """Images that the run has never seen: their test split where they declare one, else all of them."""
    config = config_of(run)
    _, data_spec, _ = load(run.weights(run.which()[0]))
    check_one_class(run, data_spec)
    return read_unseen(config, data, data_spec.classes)[0]


def class_taps(student: nn.Module) -> Taps:
    """Taps on the class token's attention. Raises: UserError for a student that has none."""
    where = layout(student)
    if not (where.class_token and where.attention):
        raise UserError(
            f"localization reads the class token's attention, which {type(student).__name__} has not; "
            "it takes a ViT with a class token, such as a run of --student vit_nano or dhvt_nano"
        )
    return Taps(student, frozenset({"class_attention"}))


def localize(
    run: RunFolder, images: Images, boxes: Mapping[str, Boxes], weights: str = "", protocol: Protocol = PUBLISHED
) -> Localization:
    """Look at every image that has a box once, and compare.

    Args:
        run: a run with weights, of a ViT with a class token.
        images: of any split.
        boxes: by the names of the box file, pixels of the originals.
        weights: best, last or ema; by default those that count.
        protocol: which part of an image is shown, and how scores become boxes.

    Raises: UserError if no image has a box, a box lies outside its image, or the student has no class attention.
    """
    if (fit := config_of(run).images.fit) != "crop":
        raise UserError(f"boxes are those of the originals, and {run.path} was shown others (images.fit {fit})")
    weights = weights or run.which()[0]
    known = checksum_of(run, weights)
    subject = replace(of_run(run, weights, BATCH), whole=protocol.whole)
    numbers, true = _in_view(subject, images, boxes)
    part = images.part(torch.tensor(numbers))
    (largest, any_part), shown = _compare(subject, part, true, protocol)
    height, width = subject.data_spec.image_size
    everything = np.array([box_overlaps(np.array([[0.0, 0.0, width, height]]), some).max() for some in true])
    accuracy = max_box_accuracy(largest, protocol.thresholds)
    middle = int(np.searchsorted(protocol.thresholds, accuracy.thresholds[len(OVERLAPS) // 2]))
    examples = [
        Example(
            name=part.records.names[i],
            view=view,
            score=score,
            true=true[i],
            overlap=float(largest[i, middle]),
            box=component_boxes(protocol.levels(score), float(protocol.cuts[middle]))[:1],
        )
        for i, (view, score) in sorted(shown.items())
    ]
    return Localization(
        weights=weights,
        images=len(true),
        left_out=len(images) - len(true),
        largest=accuracy,
        any_part=max_box_accuracy(any_part, protocol.thresholds),
        everything=max_box_accuracy(everything[:, None], np.zeros(1)),
        examples=tuple(examples),
        protocol=protocol.name,
        checksum=known,
    )


def _in_view(subject: EvaluatedModel, images: Images, boxes: Mapping[str, Boxes]) -> tuple[list[int], list[Boxes]]:
    """Places of the images whose boxes are seen, and those boxes in pixels of the view."""
    numbers: list[int] = []
    true: list[Boxes] = []
    for number, given in enumerate(boxes_of(images.records.names, boxes)):
        if given is not None:
            seen = in_view(given, images.extent(number), subject.crop, subject.data_spec.image_size)
            if len(seen):
                numbers.append(number)
                true.append(seen)
    if not true:
        raise UserError("the evaluation's crop cuts off every box; --protocol published shows the whole image")
    return numbers, true


@torch.inference_mode()
def _compare(
    subject: EvaluatedModel, images: Images, true: Sequence[Boxes], protocol: Protocol
) -> tuple[NDArray[np.float64], dict[int, tuple[NDArray[np.uint8], NDArray[np.float32]]]]:
    """How well each image's boxes are found, [2, N, thresholds], and view and scores of the examples by place."""
    taps = class_taps(subject.network)
    overlaps: list[NDArray[np.float64]] = []
    shown: dict[int, tuple[NDArray[np.uint8], NDArray[np.float32]]] = {}
    examples = _spread(len(true))
    for index, pixels in subject.views(images):
        seen = taps(subject.normalized(pixels)).class_attention
        scores = score_maps(seen, subject.data_spec.image_size).cpu().numpy()
        for i, view, score in zip(index.tolist(), pictures(pixels), scores, strict=True):
            overlaps.append(best_overlaps(score, true[i], protocol))
            if i in examples:
                shown[i] = view, score
    return np.stack(overlaps, 1), shown


def _spread(images: int) -> set[int]:
    """Places of the examples among so many images."""
    return set(np.linspace(0, images - 1, min(EXAMPLES, images)).round().astype(int).tolist())
