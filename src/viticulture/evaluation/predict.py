# SPDX-License-Identifier: Apache-2.0
"""Classify images that a person names or holds: what can be read is classified, the rest listed with its reason."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from ..outputs import check_out, csv_text, write_out
from ..training.run_folder import RunFolder
from .inputs import ImageInput, Item, OpenedItems, named, open_items
from .model import EvaluatedModel, check_classes, of_run
from .outputs import check_finite, collect

BATCH = 64  # images that are held decoded
ENDINGS = (".csv", ".json")
Said = TypeVar("Said")


@dataclass(frozen=True)
class Prediction:
    """What a student says of one image.

    Args:
        name: the file; bytes of its name that are no text as Python escapes.
        label: the likeliest class; empty if the image could not be read.
        probability: of that class.
        probabilities: of every class.
        error: why the image could not be read.
        top: the likeliest classes and their probabilities, as many as were asked for.
    """

    name: str
    label: str
    probability: float
    probabilities: dict[str, float] = field(repr=False)
    error: str = ""
    top: tuple[tuple[str, float], ...] = field(default=(), repr=False)


def classify(run: RunFolder, weights: str, images: Sequence[ImageInput], top: int = 1) -> list[Prediction]:
    """Classify files, the images in folders, and pixels, in the order given, as the run's test images were looked at.

    Args:
        run: a run with weights.
        weights: best, last or ema.
        images: files, folders, or what `given.as_images` makes of objects, named `image 0` after their place.
        top: classes to name of each image, at least 1; all where there are fewer.

    Raises: UserError if a path does not exist, there is no image in what was named, or none can be read.
    """
    subject, items = opened_subject(run, weights, images, top)
    check_classes(run, subject.data_spec.classes)
    predictions = ask(subject, items, top)
    check_readable([(prediction.name, prediction.error) for prediction in predictions])
    return predictions


def opened_subject(
    run: RunFolder, weights: str, images: Sequence[ImageInput], top: int
) -> tuple[EvaluatedModel, list[Item]]:
    """A run's student, and the images that are named, one by one; arguments and errors as those of `classify`."""
    if top < 1:
        raise UserError(f"top is how many classes to name, at least 1, got {top}")
    items = list(named(images))
    if not items:
        places = ", ".join(map(str, images))  # folders: all else is an item
        raise UserError(f"no images in {places}; name image files, or folders that hold some")
    return of_run(run, weights, BATCH), items


def check_readable(predictions: Sequence[tuple[str, str]]) -> None:
    """Names and errors of images. Raises: UserError if none could be read."""
    if all(error for _, error in predictions):
        raise UserError(f"no image could be read; {predictions[0][0]}: {predictions[0][1]}")


def ask(subject: EvaluatedModel, items: Sequence[Item], top: int = 1) -> list[Prediction]:
    """One prediction an item, in their order; an image may stand among them more than once."""
    return in_batches(subject, items, lambda opened: ask_opened(subject, opened, top))


def in_batches(
    subject: EvaluatedModel, items: Sequence[Item], predict: "Callable[[OpenedItems], list[Said]]"
) -> list[Said]:
    """What is said of items, a batch at a time opened for a student."""
    predictions: list[Said] = []
    for start in range(0, len(items), BATCH):
        predictions += predict(open_items(subject, items[start : start + BATCH]))
    return predictions


def write(predictions: Sequence[Said], out: Path, as_csv: Callable[[Sequence[Said]], str]) -> None:
    """Predictions as .csv, by a function that makes its text, or as .json. Raises: UserError for another ending."""
    path = check_out(out, *ENDINGS)
    text = as_json(predictions) if path.suffix.lower() == ".json" else as_csv(predictions)
    write_out(path, text)


def as_json(predictions: Sequence[Any]) -> str:
    """A list of objects with the fields of the predictions, which are dataclasses."""
    return json.dumps([asdict(prediction) for prediction in predictions], indent=1, ensure_ascii=False) + "\n"


def class_columns(classes: Sequence[str], others: Sequence[str], holds: str = "probability") -> list[str]:
    """A column a class under its name, or, as `probability of NAME` (what it `holds`) where another has it."""
    return [f"{holds} of {name}" if name in others else name for name in classes]


def as_csv(predictions: Sequence[Prediction], classes: Sequence[str] = ()) -> str:
    """A row an image, a column a class; the classes are those of the first answer where none are named."""
    classes = classes or next(
        (list(prediction.probabilities) for prediction in predictions if prediction.probabilities), []
    )
    places = range(1, max((len(prediction.top) for prediction in predictions), default=1))
    next_best = [f"{what} {k + 1}" for k in places for what in ("label", "probability")]
    first = ["name", "label", "probability", *next_best]
    rows: list[list[object]] = [[*first, *class_columns(classes, [*first, "error"]), "error"]]
    for prediction in predictions:
        probabilities = [prediction.probabilities.get(name) for name in classes]
        others = [value for k in places for value in (prediction.top[k] if prediction.top else (None, None))]
        probability = prediction.probability if prediction.label else None
        rows.append([prediction.name, prediction.label, probability, *others, *probabilities, prediction.error])
    return csv_text(rows)


def ask_opened(subject: EvaluatedModel, opened: OpenedItems, top: int = 1) -> list[Prediction]:
    """One prediction an item, in their order."""
    probabilities = iter(probabilities_of(subject, opened))
    return [
        Prediction(name, "", 0.0, {}, error)
        if error
        else _one(name, subject.data_spec.classes, next(probabilities), top)
        for name, error in zip(opened.names, opened.errors, strict=True)
    ]


def probabilities_of(subject: EvaluatedModel, opened: OpenedItems) -> list[list[float]]:
    """Of every class, for each image that could be read. Raises: UserError where they are no numbers."""
    if (images := opened.images) is None:
        return []
    decide = subject.data_spec.probabilities
    answers = collect(subject.tta_network, subject.batches(images), images.records.names, decide).probabilities
    check_finite(answers)
    rows: list[list[float]] = answers.tolist()
    return rows


def _one(name: str, classes: Sequence[str], probabilities: list[float], top: int) -> Prediction:
    every = dict(zip(classes, probabilities, strict=True))
    ranked = tuple(sorted(every.items(), key=lambda pair: -pair[1])[:top])
    return Prediction(name, *ranked[0], every, top=ranked)
