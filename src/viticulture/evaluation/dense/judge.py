# SPDX-License-Identifier: Apache-2.0
"""Measure every set of weights that a run's detector or segmenter keeps, on every split that did not teach it."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.annotated import prepare_annotated_test
from ...data.dataset import Dataset
from ...data.image_set import Images
from ...data.open import open_source
from ...data.target_checks import counts as counts_of
from ...data.targets.objects import Annotations, Boxed
from ...errors import UserError
from ...text import shell_word
from ...training.progress import showing
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ..other import taught_by
from ..saved import keep_results, name_of, of_each
from .objects import ObjectsEvaluation, evaluate_objects, mean_boxes
from .pixels import evaluate_pixels
from .results import FOUND, RESULTS, DenseEvaluations, Evaluation, read_dense
from .subject import DenseSubject, Found, classify_pixels, find, of_run


def judge_dense(run: RunFolder, dataset: Dataset) -> DenseEvaluations:
    """Results by WEIGHTS/SPLIT, kept in dense.json; what the one that counts found in each image, in found.json.

    The one that counts: the best weights (the last, where no validation chose), on test (on validation, without test).
    The score from which its boxes count is the best of the same weights on validation images, on test images too. A
    split whose images show no object, or no labeled pixel, is left out.
    """
    shown = {name: counts_of(dataset.classes, dataset.annotations[name]).any() for name in dataset.held_out}
    splits = {name: images for name, images in dataset.held_out.items() if shown[name]}
    train = dataset.annotations["train"]
    baseline = _baseline(train, dataset)
    counting = f"{run.which()[0]}/{next(iter(splits))}" if splits else ""
    by_split: dict[str, dict[str, Judged]] = {}
    thresholds: dict[str, float] = {}
    for split in reversed(splits):  # validation first
        by_split[split] = _judged(run, splits[split], dataset.annotations[split], baseline, thresholds)
        thresholds = _thresholds({weights: evaluation for weights, (evaluation, _) in by_split[split].items()})
    every = {f"{weights}/{split}": by_split[split][weights] for split in splits for weights in by_split[split]}
    if counting:
        run.write(FOUND, json.dumps({"counts": counting, "images": every[counting][1]}) + "\n")
    results = {key: evaluation for key, (evaluation, _) in every.items()}
    evaluations = DenseEvaluations(counting, results, _kind(train))
    keep_results(run, RESULTS, evaluations)
    return evaluations


def judge_other(run: RunFolder, data: str) -> tuple[DenseEvaluations, list[str]]:
    """The same for images that the run has never seen, by WEIGHTS/DATA, and what a person should know of them.

    Boxes count from the score on that the run's own images chose. Nothing is kept. What needs no learning is not judged
    beside: it takes the run's own images.

    Raises: UserError where nothing in them is of the run's classes.
    """
    config = config_of(run)
    source = open_source(data, config.method_class.batch_spec.contents)
    classes = of_run(run).data_spec.classes
    with showing("reading images") as progress:
        skip = config.data.skip_unreadable
        masks = config.values["method"].get("masks", False)
        images, true, notes = prepare_annotated_test(source, classes, config.images, skip, progress, masks)
    if not counts_of(classes, true).any():
        raise UserError(f"nothing in {data} is of the run's classes, so there is nothing to measure by it")
    by_weights = _judged(run, images, true, None, _thresholds(read_dense(run) or {}))
    results = {f"{weights}/{name_of(data)}": evaluation for weights, (evaluation, _) in by_weights.items()}
    return DenseEvaluations(f"{run.which()[0]}/{name_of(data)}", results, _kind(true)), [
        *notes,
        *taught_by(run, images),
    ]


def _kind(known: Annotations) -> str:
    return "objects" if isinstance(known, Boxed) else "pixels"


Baseline = NDArray[np.float64] | int
"""What needs no learning: mean boxes (objects.mean_boxes), or the most frequent class of the training pixels."""


def _baseline(train: Annotations, dataset: Dataset) -> Baseline:
    if isinstance(train, Boxed):
        return mean_boxes(train, image_sizes(dataset.train), len(dataset.classes))
    return int(counts_of(dataset.classes, train).argmax())


Judged = tuple[Evaluation, list[Any]]
"""The numbers, and what found.json keeps of each image."""


def _thresholds(results: Mapping[str, Evaluation]) -> dict[str, float]:
    """The score from which boxes count, by weights; of several splits the last one's, validation."""
    return {
        key.partition("/")[0]: result.threshold
        for key, result in results.items()
        if isinstance(result, ObjectsEvaluation)
    }


def _judged(
    run: RunFolder, images: Images, true: Annotations, baseline: Baseline | None, thresholds: Mapping[str, float]
) -> dict[str, Judged]:
    """Of every kept set of weights; where there is no threshold, these images choose it."""
    return of_each(
        run, lambda weights: judge_images(of_run(run, weights), images, true, baseline, thresholds.get(weights))
    )


def judge_images(
    subject: DenseSubject,
    images: Images,
    true: Annotations,
    baseline: Baseline | None = None,
    threshold: float | None = None,
) -> Judged:
    """What a network finds in images, beside what is there; where there is no threshold, these images choose it."""
    classes = subject.data_spec.classes
    if isinstance(true, Boxed):
        detections = list(find(subject, images))
        boxes = None if isinstance(baseline, int) else baseline
        evaluation = evaluate_objects(detections, true, classes, image_sizes(images), boxes, threshold)
        return evaluation, [_plain(each) for each in detections]
    frequent = baseline if isinstance(baseline, int) else None
    pixels, ious = evaluate_pixels(classify_pixels(subject, images), true, classes, frequent)
    return pixels, [None if np.isnan(value) else float(value) for value in ious]


def image_sizes(images: Images) -> NDArray[np.int64]:
    """Height and width of every original, [N, 2]."""
    sizes: NDArray[np.int64] = images.sizes(torch.arange(len(images))).numpy().astype(np.int64)
    return sizes


def _plain(detections: Found) -> dict[str, Any]:
    """Ready for JSON; outlines are left out, which `predict` gives."""
    return {
        "boxes": [[round(side, 2) for side in box] for box in detections.boxes.tolist()],
        "scores": detections.scores.tolist(),  # whole: one of them is the least that counts
        "labels": detections.labels.tolist(),
    }


def restored(content: dict[str, Any]) -> Found:
    """What `_plain` gave of one image."""
    return Found(
        np.array(content["boxes"], dtype=np.float32).reshape(-1, 4),
        np.array(content["scores"], dtype=np.float32),
        np.array(content["labels"], dtype=np.int64),
    )


def read_found(run: RunFolder) -> list[Found]:
    """What the weights that count found in each image of the split that counts."""
    try:
        return [restored(each) for each in run.read(FOUND)["images"]]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{run.path / FOUND} is damaged; make it anew: viticulture evaluate {shell_word(run.path)}"
        ) from error
