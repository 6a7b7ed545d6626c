# SPDX-License-Identifier: Apache-2.0
"""Localization of a run's student on images whose objects have boxes (metrics.py defines the metric).

AAL, arXiv:2211.13852, Table C: the mean of the class token's attention in all layers and heads, against true boxes.
Results are saved in localization.json in the run's folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...data.dataset import Dataset
from ...data.image_set import Images
from ...errors import UserError
from ...keywords import rebuilt
from ...models.layout import layout
from ...models.taps import Taps
from ...models.weights.files import load
from ...scores.objects import box_overlaps
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ..inputs import read_unseen
from ..model import EvaluatedModel, check_one_class, of_run, pictures
from ..saved import checksum_of, read_each
from .boxes import boxes_of, in_view
from .metrics import (
    OVERLAPS,
    PUBLISHED,
    BoxAccuracy,
    Boxes,
    Protocol,
    best_overlaps,
    component_boxes,
    max_box_accuracy,
    score_maps,
)

FILE = "localization.json"
BATCH = 64  # images, with the attention of every layer
EXAMPLES = 12


@dataclass(frozen=True, eq=False)
class Example:
    """One image as the student's input."""

    name: str
    view: NDArray[np.uint8]
    score: NDArray[np.float32]
    true: Boxes  # its boxes, pixels of the view
    overlap: float  # the best intersection over union of `box` and a true box
    box: Boxes  # around the largest part at the threshold that is best at the middle overlap; empty without such a part


@dataclass(frozen=True)
class Localization:
    """MaxBoxAcc of one set of weights on one set of images."""

    weights: str
    images: int
    left_out: int
    largest: BoxAccuracy  # by the box of the largest part (MaxBoxAcc)
    any_part: BoxAccuracy  # by the best of all parts' boxes (MaxBoxAccV2)
    everything: BoxAccuracy  # by a box around the whole image, which needs no student
    examples: tuple[Example, ...] = ()
    protocol: str = PUBLISHED.name
    checksum: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {key: value for key, value in asdict(replace(self, examples=())).items() if key != "examples"}


def held_out(dataset: Dataset) -> Images:
    """Return the test split, or the validation split if there is none."""
    images = dataset.test or dataset.val
    if images is None:
        raise UserError(f"{dataset.name} has neither test nor validation images; name other data to localize in")
    return images


def other_images(run: RunFolder, data: str) -> Images:
    """Read images that are not the run's: their test split if they declare one, else all of them."""
    config = config_of(run)
    _, data_spec, _ = load(run.weights(run.which()[0]))
    check_one_class(run, data_spec)
    return read_unseen(config, data, data_spec.classes)[0]


def class_taps(student: nn.Module) -> Taps:
    """Return taps on the class token's attention. Raises: UserError for a student without one."""
    where = layout(student)
    if not (where.class_token and where.attention):
        raise UserError(
            f"localization reads the class token's attention, and {type(student).__name__} has none; it needs a ViT "
            "with a class token, such as a run of --student vit_nano or dhvt_nano"
        )
    return Taps(student, frozenset({"class_attention"}))


def localize(
    run: RunFolder, images: Images, boxes: Mapping[str, Boxes], weights: str = "", protocol: Protocol = PUBLISHED
) -> Localization:
    """Evaluate localization on every image that has a box.

    Args:
        boxes: by the names of the box file, pixels of the originals.

    Raises: UserError if no image has a box, a box lies outside its image, or the student has no class attention.
    """
    if (fit := config_of(run).images.fit) != "crop":
        raise UserError(f"boxes refer to the originals, and {run.path} was trained with images.fit {fit}")
    weights = weights or run.which()[0]
    checksum = checksum_of(run, weights)
    model = replace(of_run(run, weights, BATCH), whole=protocol.whole)
    numbers, true = _in_view(model, images, boxes)
    part = images.part(torch.tensor(numbers))
    (largest, any_part), drawn = _compare(model, part, true, protocol)
    height, width = model.data_spec.image_size
    everything = np.array([box_overlaps(np.array([[0.0, 0.0, width, height]]), some).max() for some in true])
    accuracy = max_box_accuracy(largest, protocol.thresholds)
    middle = int(np.searchsorted(protocol.thresholds, accuracy.thresholds[len(OVERLAPS) // 2]))
    cut = float(protocol.cuts[middle])
    examples = [
        Example(
            name=part.records.names[i],
            view=view,
            score=score,
            true=true[i],
            overlap=float(largest[i, middle]),
            box=component_boxes(protocol.levels(score), cut)[:1],
        )
        for i, (view, score) in sorted(drawn.items())
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
        checksum=checksum,
    )


def _in_view(model: EvaluatedModel, images: Images, boxes: Mapping[str, Boxes]) -> tuple[list[int], list[Boxes]]:
    """Return the places of the images with boxes inside the crop, and these boxes in pixels of the model's input."""
    numbers: list[int] = []
    true: list[Boxes] = []
    for number, original in enumerate(boxes_of(images.records.names, boxes)):
        if original is not None:
            cropped = in_view(original, images.extent(number), model.crop, model.data_spec.image_size)
            if len(cropped):
                numbers.append(number)
                true.append(cropped)
    if not true:
        raise UserError("the evaluation's crop cuts off every box; --protocol published uses the whole image")
    return numbers, true


@torch.inference_mode()
def _compare(
    model: EvaluatedModel, images: Images, true: Sequence[Boxes], protocol: Protocol
) -> tuple[NDArray[np.float64], dict[int, tuple[NDArray[np.uint8], NDArray[np.float32]]]]:
    """Return the overlaps of each image's boxes, [2, N, thresholds], and view and scores of the examples by place."""
    taps = class_taps(model.network)
    overlaps: list[NDArray[np.float64]] = []
    drawn: dict[int, tuple[NDArray[np.uint8], NDArray[np.float32]]] = {}
    examples = set(np.linspace(0, len(true) - 1, min(EXAMPLES, len(true))).round().astype(int).tolist())
    for index, pixels in model.views(images):
        attention = taps(model.normalized(pixels)).class_attention
        scores = score_maps(attention, model.data_spec.image_size).cpu().numpy()
        for i, view, score in zip(index.tolist(), pictures(pixels), scores, strict=True):
            overlaps.append(best_overlaps(score, true[i], protocol))
            if i in examples:
                drawn[i] = view, score
    return np.stack(overlaps, 1), drawn


def save(run: RunFolder, data: str, result: Localization) -> None:
    """Write the numbers into the run's localization.json, next to those of other weights, data and protocols."""
    protocol = "" if result.protocol == PUBLISHED.name else f", {result.protocol}"
    every = {**read_localizations(run), f"{result.weights}/{data}{protocol}": result}
    run.write(FILE, {name: entry.to_dict() for name, entry in every.items()})


def read_localizations(run: RunFolder) -> dict[str, Localization]:
    """Read all results of the run's current weights, by weights and data."""
    return read_each(run, FILE, partial(rebuilt, Localization))
