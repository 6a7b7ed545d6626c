# SPDX-License-Identifier: Apache-2.0
"""Pictures of a detector's or a segmenter's predictions for its page: correct, missed and mistaken."""

from dataclasses import replace
from math import inf

import numpy as np
import torch
from PIL import Image

from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.images.format import displayed
from ..data.targets.objects import Boxed, Masked
from ..evaluation.dense.draw import Picture, counted_words, draw_classes, draw_judged
from ..evaluation.dense.judge import read_found
from ..evaluation.dense.objects import ObjectsEvaluation
from ..evaluation.dense.results import FOUND, DenseEvaluations
from ..evaluation.dense.subject import Found, classify_pixels, of_run
from ..training.run_folder import RunFolder
from .galleries import FILE, MAX_SIDE, Gallery, Group, save_galleries, shrunk

MAX_IMAGES = 12
MAX_PICTURE_SIDE = 2 * MAX_SIDE


def save_annotated_pictures(run: RunFolder, dataset: Dataset, evaluations: DenseEvaluations) -> None:
    """Draw images of the split that counts, evenly from the worst to the best, and save them for the page."""
    split = evaluations.counts.partition("/")[2]
    images = dataset.held_out.get(split)
    result = evaluations.counting
    if images is None or result is None:
        return
    true = dataset.annotations[split]
    if isinstance(true, Boxed):
        assert isinstance(result, ObjectsEvaluation)
        gallery = _objects(images, true, read_found(run), dataset.classes, result.threshold)
    else:
        gallery = _pixels(run, images, true, run.read(FOUND)["images"])
    gallery = replace(gallery, note=gallery.note + displayed(dataset.image_settings.channels))
    save_galleries(run.path / FILE, {"dense": [gallery]}, max_side=MAX_PICTURE_SIDE)


def _objects(
    images: Images, true: Boxed, detections: list[Found], classes: tuple[str, ...], threshold: float
) -> Gallery:
    counts = [counted_words(each, objects, threshold) for each, objects in zip(detections, true.objects, strict=True)]
    order = sorted(range(len(detections)), key=lambda i: -(counts[i]["wrong"] + counts[i]["missed"]))
    groups: list[Group] = []
    for i in _evenly(order):
        picture = draw_judged(_original(images, i), detections[i], true.objects[i], classes, threshold)
        caption = ", ".join(f"{count} {kind}" for kind, count in counts[i].items())
        groups.append(([shrunk(picture, MAX_PICTURE_SIDE)], [images.records.names[i], caption]))
    note = (
        f"Boxes with a score of at least {threshold:.2f}. Blue: correct. Orange: no object, or another class. Yellow: "
        "missed. The worst images come first."
    )
    return Gallery("Correct, missed and mistaken", groups, note)


def _pixels(run: RunFolder, images: Images, true: Masked, ious: list[float | None]) -> Gallery:
    """Draw truth and prediction; `ious` holds each image's mIoU, or None without labeled pixels, which comes last."""
    known = [inf if iou is None else iou for iou in ious]
    numbers = _evenly(sorted(range(len(images)), key=known.__getitem__))
    predicted = dict(enumerate(classify_pixels(of_run(run), images.part(torch.tensor(numbers)))))
    groups: list[Group] = []
    for place, i in enumerate(numbers):
        image, mask = _original(images, i), true.original(i)
        drawn = [image, draw_classes(image, mask), draw_classes(image, predicted[place])]
        share = "no labeled pixels" if (iou := ious[i]) is None else f"mIoU {100 * iou:.0f} %"
        caption = [images.records.names[i], f"image, truth, prediction: {share}"]
        groups.append(([shrunk(picture, MAX_PICTURE_SIDE) for picture in drawn], caption))
    note = "Unlabeled pixels have no color in the truth. The worst images come first."
    return Gallery("Classes of pixels", groups, note)


def _evenly(order: list[int]) -> list[int]:
    """Return up to `MAX_IMAGES` of them, evenly spaced."""
    places = np.unique(np.linspace(0, len(order) - 1, min(MAX_IMAGES, len(order))).round().astype(int))
    return [order[place] for place in places]


def _original(images: Images, i: int) -> Picture:
    """Return an image in the size that its boxes and masks refer to."""
    (height, width), image = images.extent(i), images.original(i)
    return image if image.shape[:2] == (height, width) else np.asarray(Image.fromarray(image).resize((width, height)))
