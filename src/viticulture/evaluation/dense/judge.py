# SPDX-License-Identifier: Apache-2.0
"""Measure every set of weights that a run's detector or segmenter keeps, on every split that did not teach it."""

import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.annotations import Annotations, Boxed, Masked
from ...data.dataset import Dataset
from ...data.dense.loader import sizes_of
from ...data.dense.prepare import counts as counts_of
from ...data.images import Images
from ...errors import UserError
from ...training.rundir import RunDir
from .asked import Found, classify_pixels, find, looker_of
from .objects import ObjectsEvaluation, evaluate_objects, mean_boxes
from .pixels import PixelsEvaluation, evaluate_pixels
from .results import FOUND, RESULTS, DenseEvaluations


def judge_dense(run: RunDir, dataset: Dataset) -> DenseEvaluations:
    """Results by WEIGHTS/SPLIT, kept in dense.json; what the one that counts found in each image, in found.json.

    The one that counts: the best weights (the last, where no validation chose), on test (on validation, without test).
    """
    splits = {name: images for name, images in (("test", dataset.test), ("val", dataset.val)) if images is not None}
    train = dataset.annotations["train"]
    counting = f"{run.which()[0]}/{next(iter(splits))}" if splits else ""
    results: dict[str, Any] = {}
    for split, images in splits.items():
        for weights in run.which():
            true, key = dataset.annotations[split], f"{weights}/{split}"
            if isinstance(true, Boxed):
                assert isinstance(train, Boxed)
                results[key], found = _objects(run, weights, images, true, (train, dataset))
                kept: Any = [_plain(each) for each in found]
            else:
                results[key], ious = _pixels(run, weights, images, true, (train, dataset))
                kept = [None if np.isnan(value) else float(value) for value in ious]
            if key == counting:
                run.write(FOUND, json.dumps({"counts": key, "images": kept}) + "\n")
    kind = "objects" if isinstance(train, Boxed) else "pixels"
    evaluations = DenseEvaluations(kind, counting, results)
    run.write(RESULTS, evaluations.to_dict())
    return evaluations


Training = tuple[Annotations, Dataset]
"""Annotations of the training images, for baselines, and the data set that holds them."""


def _objects(
    run: RunDir, weights: str, images: Images, true: Boxed, training: Training
) -> tuple[ObjectsEvaluation, list[Found]]:
    known, dataset = training
    assert isinstance(known, Boxed)
    found = list(find(looker_of(run, weights), images))
    boxes = mean_boxes(known, image_sizes(dataset.train), len(dataset.classes))
    return evaluate_objects(found, true, dataset.classes, image_sizes(images), boxes), found


def _pixels(
    run: RunDir, weights: str, images: Images, true: Masked, training: Training
) -> tuple[PixelsEvaluation, NDArray[np.float64]]:
    known, dataset = training
    frequent = int(counts_of(dataset.classes, known).argmax())
    return evaluate_pixels(classify_pixels(looker_of(run, weights), images), true, dataset.classes, frequent)


def image_sizes(images: Images) -> NDArray[np.int64]:
    """Height and width of every original, [N, 2]."""
    sizes: NDArray[np.int64] = sizes_of(images, torch.arange(len(images))).numpy().astype(np.int64)
    return sizes


def _plain(found: Found) -> dict[str, Any]:
    """Ready for JSON; outlines are left out, which `predict` gives."""
    return {
        "boxes": [[round(side, 2) for side in box] for box in found.boxes.tolist()],
        "scores": [round(score, 5) for score in found.scores.tolist()],
        "labels": found.labels.tolist(),
    }


def restored(content: dict[str, Any]) -> Found:
    """What `_plain` gave of one image."""
    return Found(
        np.array(content["boxes"], dtype=np.float32).reshape(-1, 4),
        np.array(content["scores"], dtype=np.float32),
        np.array(content["labels"], dtype=np.int64),
    )


def read_found(run: RunDir) -> list[Found]:
    """What the weights that count found in each image of the split that counts."""
    try:
        return [restored(each) for each in run.read(FOUND)["images"]]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{run.path / FOUND} is damaged; make it anew: viticulture evaluate {run.path}") from error
