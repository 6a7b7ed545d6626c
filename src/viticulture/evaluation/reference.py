# SPDX-License-Identifier: Apache-2.0
"""Reference accuracies on the same images and labels: chance, and classifiers on raw pixels."""

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
COMMONEST = "always the most common class"
ON_PIXELS = "logistic regression on pixels", "nearest neighbor on pixels"
SIDE = 16  # pixels, to which larger images are resized
MAX_IMAGES = 2000  # for training; with more, logistic regression would take longer than many trainings


@dataclass(frozen=True)
class References:
    """Accuracies that a run's page compares with."""

    split: str
    accuracy: Mapping[str, float]
    images: Mapping[str, tuple[int, ...]]


def evaluate_references(run: RunFolder, dataset: Dataset) -> None:
    """Write references.json: images per class, and accuracies of chance and plain classifiers, next to those of other
    runs on the same images.

    Classifiers need few images, all in the decoded-image cache.
    """
    labels = {name: some.records.labels for name, some in {"train": dataset.train, **dataset.held_out}.items()}
    counts = {name: np.bincount(some[some >= 0], minlength=len(dataset.classes)) for name, some in labels.items()}
    split, held = next(iter(dataset.held_out.items()), ("val", None))
    accuracy = {}
    if dataset.classes and held is not None:
        commonest = int(counts["train"].argmax())
        accuracy[COMMONEST] = float((labels[split] == commonest).double().mean())
        small = len(dataset.train) <= MAX_IMAGES and isinstance(dataset.train, CachedImages)
        if small and isinstance(held, CachedImages) and (counts["train"] > 0).sum() > 1:
            accuracy |= pixel_accuracies(dataset.train, held)
    images = {name: tuple(some.tolist()) for name, some in counts.items()} if dataset.classes else {}
    earlier = read_references(run)
    if earlier is not None and (earlier.split, earlier.images) == (split, images):
        accuracy |= {name: value for name, value in earlier.accuracy.items() if name not in (COMMONEST, *ON_PIXELS)}
    run.write(FILE, asdict(References(split, accuracy, images)))


def add_reference(run: RunFolder, other: RunFolder, counts: str, top1: float | None) -> None:
    """Add another run's accuracy on the same images to the references, such as that of a small CNN.

    Raises: UserError if a run is not evaluated yet, or on other images.
    """
    references = read_references(run)
    if references is None or top1 is None:
        lacking = run if references is None else other
        raise UserError(
            f"{lacking.path} holds no results yet; to have them: viticulture evaluate {shell_word(lacking.path)}"
        )
    if run.image_names.get(references.split) != other.image_names.get(counts.partition("/")[2]):
        raise UserError(
            f"{run.path} and {other.path} were tested on different images; train both on the same data and splits"
        )
    name = f"{other.read('run.json')['student']['name']} ({other.path.name})"
    run.write(FILE, asdict(References(references.split, {**references.accuracy, name: top1}, references.images)))


def read_references(run: RunFolder) -> References | None:
    """Read references.json; None if there is none."""
    return read_saved(run, FILE, partial(rebuilt, References))


def pixel_accuracies(train: Images, test: Images) -> dict[str, float]:
    """Compute top-1 accuracy on raw pixels in [0, 1] of logistic regression (L2, C = 1) and of the nearest neighbor."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    train_pixels, test_pixels = raw_pixels(train), raw_pixels(test)
    labels, truth = train.records.labels.numpy(), test.records.labels.numpy()
    classifiers = dict(zip(ON_PIXELS, (LogisticRegression(max_iter=2000), KNeighborsClassifier(1)), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many classes interpreted as numbers, no convergence
        return {
            name: float((classifier.fit(train_pixels, labels).predict(test_pixels) == truth).mean())
            for name, classifier in classifiers.items()
        }


def raw_pixels(images: Images) -> np.ndarray:
    """Return [N, 3 S S] float32 in [0, 1], S at most 16: larger images are resized."""
    assert isinstance(images, CachedImages)
    pixels = [images.take(some).float() / 255 for some in torch.split(torch.arange(len(images)), 256)]
    small = [F.interpolate(some, (SIDE, SIDE), mode="area") if max(some.shape[2:]) > SIDE else some for some in pixels]
    flat: np.ndarray = torch.cat(small).flatten(1).numpy()
    return flat
