# SPDX-License-Identifier: Apache-2.0
"""Honest yardsticks: what classifiers without any learning of features reach on the same images and labels."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from ..data.dataset import Dataset
from ..data.image_set import CachedImages, Images
from ..errors import UserError
from ..keywords import rebuilt
from ..text import shell_word
from ..training.run_folder import RunFolder
from .saved import read_saved

FILE = "references.json"
SIDE = 16  # pixels, to which larger images are shrunk
MOST_IMAGES = 2000  # to learn from; more would take logistic regression longer than many a training


@dataclass(frozen=True)
class References:
    """What a run's page shows beside its accuracy.

    Args:
        split: of which the accuracies are.
        accuracy: by name, in [0, 1].
        images: of each class, by split.
    """

    split: str
    accuracy: Mapping[str, float]
    images: Mapping[str, tuple[int, ...]]


def judge_references(run: RunFolder, dataset: Dataset) -> None:
    """Write references.json: images of each class, and what chance and plain classifiers reach on the images that
    count. Nothing is learnt from many images, or from those that are decoded anew each time."""
    labels = {name: some.records.labels for name, some in {"train": dataset.train, **dataset.held_out}.items()}
    counts = {name: np.bincount(some[some >= 0], minlength=len(dataset.classes)) for name, some in labels.items()}
    split, held = next(iter(dataset.held_out.items()), ("val", None))
    accuracy = {}
    if dataset.classes and held is not None:
        commonest = int(counts["train"].argmax())
        accuracy["always the commonest class"] = float((labels[split] == commonest).double().mean())
        small = len(dataset.train) <= MOST_IMAGES and isinstance(dataset.train, CachedImages)
        if small and isinstance(held, CachedImages) and (counts["train"] > 0).sum() > 1:
            accuracy |= reference_lines(dataset.train, held)
    images = {name: tuple(some.tolist()) for name, some in counts.items()} if dataset.classes else {}
    run.write(FILE, asdict(References(split, accuracy, images)))


def add_reference(run: RunFolder, other: RunFolder, counts: str, top1: float | None) -> None:
    """Add another run's accuracy on the same images to the references, such as that of a small CNN.

    Args:
        run: whose references.
        other: the other run.
        counts: the key of its result that counts.
        top1: its accuracy; None where it is not evaluated yet.

    Raises: UserError if a run is not evaluated yet, or on other images.
    """
    known = read_references(run)
    if known is None or top1 is None:
        lacking = run if known is None else other
        raise UserError(
            f"{lacking.path} holds no results yet; to have them: viticulture evaluate {shell_word(lacking.path)}"
        )
    if run.image_names.get(known.split) != other.image_names.get(counts.partition("/")[2]):
        raise UserError(
            f"{run.path} and {other.path} were tested on different images; train both on the same data and splits"
        )
    name = f"{other.read('run.json')['student']['name']} ({other.path.name})"
    run.write(FILE, asdict(References(known.split, {**known.accuracy, name: top1}, known.images)))


def read_references(run: RunFolder) -> References | None:
    """What was kept; None where nothing was yet."""
    return read_saved(run, FILE, partial(rebuilt, References))


def reference_lines(train: Images, test: Images) -> dict[str, float]:
    """Top-1 accuracy on raw pixels in [0, 1] of logistic regression (L2, C = 1) and of the nearest neighbor.

    Larger images are shrunk to 16 x 16 pixels.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    seen, test_pixels = raw_pixels(train), raw_pixels(test)
    labels, truth = train.records.labels.numpy(), test.records.labels.numpy()
    classifiers = {
        "logistic regression on pixels": LogisticRegression(max_iter=2000),
        "nearest neighbor on pixels": KNeighborsClassifier(1),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many classes taken for numbers, no convergence
        return {
            name: float((classifier.fit(seen, labels).predict(test_pixels) == truth).mean())
            for name, classifier in classifiers.items()
        }


def raw_pixels(images: Images) -> np.ndarray:
    """[N, 3 S S] float32 in [0, 1], S at most 16: larger images are shrunk."""
    assert isinstance(images, CachedImages)
    pixels = [images.take(some).float() / 255 for some in torch.split(torch.arange(len(images)), 256)]
    small = [F.interpolate(some, (SIDE, SIDE), mode="area") if max(some.shape[2:]) > SIDE else some for some in pixels]
    flat: np.ndarray = torch.cat(small).flatten(1).numpy()
    return flat
