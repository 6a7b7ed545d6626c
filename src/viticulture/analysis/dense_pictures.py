# SPDX-License-Identifier: Apache-2.0
"""What a page shows of a detector's or a segmenter's images: what is right, what is missed or taken for another."""

from dataclasses import replace
from math import inf

import numpy as np
import torch
from PIL import Image

from ..data.channels import shown
from ..data.dataset import Dataset
from ..data.images import Images
from ..data.targets.objects import Boxed, Masked
from ..evaluation.dense.draw import Picture, counted_words, draw_classes, draw_judged
from ..evaluation.dense.judge import read_found
from ..evaluation.dense.objects import ObjectsEvaluation
from ..evaluation.dense.results import FOUND, DenseEvaluations
from ..evaluation.dense.subject import Found, classify_pixels, of_run
from ..training.run_folder import RunFolder
from .galleries import FILE, LONGEST, Gallery, Group, keep_galleries, shrunk

MOST = 12
LARGEST = 2 * LONGEST


def gather_dense_pictures(run: RunFolder, dataset: Dataset, evaluations: DenseEvaluations) -> None:
    """Draw images of the split that counts and keep them for the page: the worst first, evenly down to the best."""
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
    gallery = replace(gallery, note=gallery.note + shown(dataset.image_settings.channels))
    keep_galleries(run.path / FILE, {"dense": [gallery]}, longest=LARGEST)


def _objects(images: Images, true: Boxed, detections: list[Found], classes: tuple[str, ...], least: float) -> Gallery:
    words = [counted_words(each, objects, least) for each, objects in zip(detections, true.objects, strict=True)]
    order = sorted(range(len(detections)), key=lambda i: -(words[i]["wrong"] + words[i]["missed"]))
    groups: list[Group] = []
    for i in _spread(order):
        picture = draw_judged(_original(images, i), detections[i], true.objects[i], classes, least)
        caption = ", ".join(f"{count} {kind}" for kind, count in words[i].items())
        groups.append(([shrunk(picture, LARGEST)], [images.records.names[i], caption]))
    note = (
        f"Boxes with a score of at least {least:.2f}. Blue: right. Orange: nothing there, or another class. Yellow: "
        "missed. The worst images come first."
    )
    return Gallery("Found, missed and mistaken", groups, note)


def _pixels(run: RunFolder, images: Images, true: Masked, ious: list[float | None]) -> Gallery:
    """Of each image its mIoU; None where no pixel has a class, which comes last."""
    known = [inf if iou is None else iou for iou in ious]
    numbers = _spread(sorted(range(len(images)), key=lambda i: known[i]))
    predicted = dict(enumerate(classify_pixels(of_run(run), images.part(torch.tensor(numbers)))))
    groups: list[Group] = []
    for place, i in enumerate(numbers):
        image, mask = _original(images, i), true.original(i)
        whole = [image, draw_classes(image, mask), draw_classes(image, predicted[place])]
        share = "no pixel has a class" if (iou := ious[i]) is None else f"mIoU {100 * iou:.0f} %"
        pictures = [shrunk(picture, LARGEST) for picture in whole]
        groups.append((pictures, [images.records.names[i], f"image, truth, answer: {share}"]))
    note = "Pixels without a class are left as they are in the truth. The worst images come first."
    return Gallery("Classes of pixels", groups, note)


def _spread(order: list[int]) -> list[int]:
    """A few of them, evenly."""
    places = np.unique(np.linspace(0, len(order) - 1, min(MOST, len(order))).round().astype(int))
    return [order[place] for place in places]


def _original(images: Images, i: int) -> Picture:
    """The image as large as its boxes and masks mean it."""
    height, width = images.extent(i)
    shown = images.original(i)
    return shown if shown.shape[:2] == (height, width) else np.asarray(Image.fromarray(shown).resize((width, height)))
