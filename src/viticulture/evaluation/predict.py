# SPDX-License-Identifier: Apache-2.0
"""Classify images that a person names or holds: what can be read is classified, the rest listed with its reason."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..data.channels import RGB, Kept
from ..data.decode import DecodedImage, Unreadable, decode, image_size
from ..data.images import Records, StoredImages
from ..data.resample import squeeze
from ..data.sources.files import FileReader
from ..data.sources.folders import images_among, scan
from ..data.sources.source import readable
from ..disk import write_whole
from ..errors import UserError
from ..outputs import check_out, csv_text
from ..training.rundir import RunDir
from .accuracy import collect
from .evaluate import check_classes
from .given import Pixels
from .subject import Subject, of_run

BATCH = 64  # images that are held decoded
ENDINGS = (".csv", ".json")
MAX_SENT_PIXELS = 50_000_000
"""Largest image that is decoded for somebody who sent it: 150 MB of RGB, a third of what a file named here may take."""

Said = TypeVar("Said")
Item = tuple[str, Path | Pixels | BinaryIO]
"""A name, and the image: a file here, pixels, or an open file, such as one that somebody sent, at its start."""


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
    probabilities: dict[str, float]
    error: str = ""
    top: tuple[tuple[str, float], ...] = ()


def classify(run: RunDir, weights: str, images: Sequence[Path | Pixels], top: int = 1) -> list[Prediction]:
    """Classify files, the images in folders, and pixels, in the order given, as the run's test images were looked at.

    Args:
        run: a run with weights.
        weights: best, last or ema.
        images: files, folders, or [H, W, C] of numbers; pixels are named `image 0` after their place.
        top: classes to name of each image, at least 1; all where there are fewer.

    Raises: UserError if a path does not exist, there is no image in what was named, or none can be read.
    """
    subject, items = opened_subject(run, weights, images, top)
    check_classes(run, subject.task.classes)
    predictions = ask(subject, items, top)
    check_readable([(prediction.name, prediction.error) for prediction in predictions])
    return predictions


def opened_subject(
    run: RunDir, weights: str, images: Sequence[Path | Pixels], top: int
) -> tuple[Subject, list[tuple[str, Path | Pixels]]]:
    """A run's student, and the images that are named, one by one; arguments and errors as those of `classify`."""
    if top < 1:
        raise UserError(f"top is how many classes to name, at least 1, got {top}")
    items = [item for i, image in enumerate(images) for item in _items(i, image)]
    if not items:
        named = ", ".join(str(image) for image in images if isinstance(image, Path))
        raise UserError(f"no images in {named or 'nothing'}; name image files, or folders that hold some")
    return of_run(run, weights, BATCH), items


def check_readable(told: Sequence[tuple[str, str]]) -> None:
    """Names and errors of images. Raises: UserError if none could be read."""
    if all(error for _, error in told):
        raise UserError(f"no image could be read; {told[0][0]}: {told[0][1]}")


def ask(subject: Subject, items: Sequence[Item], top: int = 1) -> list[Prediction]:
    """One prediction an item, in their order; an image may stand among them more than once."""
    return in_batches(subject, items, lambda opened: ask_opened(subject, opened, top))


def in_batches(subject: Subject, items: Sequence[Item], asked: "Callable[[OpenedItems], list[Said]]") -> list[Said]:
    """What is said of items, a batch at a time opened for a student."""
    said: list[Said] = []
    for start in range(0, len(items), BATCH):
        said += asked(open_items(subject, items[start : start + BATCH]))
    return said


def write(predictions: Sequence[Said], out: Path, as_csv: Callable[[Sequence[Said]], str]) -> None:
    """Predictions as .csv, by a function that makes its text, or as .json. Raises: UserError for another ending."""
    path = check_out(out, *ENDINGS)
    text = as_json(predictions) if path.suffix.lower() == ".json" else as_csv(predictions)
    write_whole(path, text)


def as_json(predictions: Sequence[Any]) -> str:
    """A list of objects with the fields of the predictions, which are dataclasses."""
    return json.dumps([asdict(prediction) for prediction in predictions], indent=1, ensure_ascii=False) + "\n"


def as_csv(predictions: Sequence[Prediction], classes: Sequence[str] = ()) -> str:
    """A row an image, a column a class; the classes are those of the first answer where none are named."""
    classes = classes or next(
        (list(prediction.probabilities) for prediction in predictions if prediction.probabilities), []
    )
    places = range(1, max((len(prediction.top) for prediction in predictions), default=1))
    next_best = [f"{what} {k + 1}" for k in places for what in ("label", "probability")]
    rows: list[list[object]] = [["name", "label", "probability", *next_best, *classes, "error"]]
    for prediction in predictions:
        probabilities = [prediction.probabilities.get(name) for name in classes]
        others = [value for k in places for value in (prediction.top[k] if prediction.top else (None, None))]
        probability = prediction.probability if prediction.label else None
        rows.append([prediction.name, prediction.label, probability, *others, *probabilities, prediction.error])
    return csv_text(rows)


def _items(place: int, image: Path | Pixels) -> Iterator[tuple[str, Path | Pixels]]:
    """Names and files or pixels of what stands at a place of the list."""
    if not isinstance(image, Path):
        yield f"image {place}", image
    elif image.is_dir():
        for name in sorted(file.path for file in images_among(scan(image)[0])):
            yield str(image / name), image / name
    elif image.is_file():
        yield str(image), image
    elif image.exists():
        raise UserError(f"{image} is no file")  # a pipe would be waited for
    else:
        raise UserError(f"there is no file or folder {image}")


@dataclass(frozen=True, eq=False)
class OpenedItems:
    """Images as a run's store keeps them.

    Args:
        images: those that could be read, in order; None where none could.
        names: of all items, as text.
        errors: why an item could not be read; empty where it could.
    """

    images: StoredImages | None
    names: list[str]
    errors: list[str]


def open_items(subject: Subject, items: Sequence[Item], most: int | None = None) -> OpenedItems:
    """Decode images for a run's student; what cannot be read is told with its reason.

    Args:
        subject: the student.
        items: the images.
        most: pixels of an open file; larger ones are not decoded. None: as many as a file here may have.
    """
    side, fit = subject.image_settings.store_size, subject.image_settings.fitting
    assert side is not None, "a run's recipe is settled"
    pixels: list[Tensor] = []
    sizes: list[tuple[int, int]] = []
    errors: list[str] = []
    for name, image in items:
        try:
            picture = _decoded(name, image, side, subject.image_settings.kept, most)
            picture = fit(picture, name) if fit is not None else picture
        except Unreadable as error:
            errors.append(error.reason)
        except OSError as error:
            errors.append(error.strerror or str(error))
        else:
            pixels.append(torch.from_numpy(squeeze(picture.pixels, side)).permute(2, 0, 1))
            sizes.append((picture.height, picture.width))
            errors.append("")
    names = [readable(name) for name, _ in items]
    if not pixels:
        return OpenedItems(None, names, errors)
    known = [name for name, error in zip(names, errors, strict=True) if not error]
    records = Records(torch.full((len(known),), -1), torch.tensor(sizes), known)
    return OpenedItems(StoredImages(torch.stack(pixels), torch.arange(len(known)), records), names, errors)


def ask_opened(subject: Subject, opened: OpenedItems, top: int = 1) -> list[Prediction]:
    """One prediction an item, in their order."""
    probabilities = iter(probabilities_of(subject, opened))
    return [
        Prediction(name, "", 0.0, {}, error) if error else _one(name, subject.task.classes, next(probabilities), top)
        for name, error in zip(opened.names, opened.errors, strict=True)
    ]


def probabilities_of(subject: Subject, opened: OpenedItems) -> list[list[float]]:
    """Of every class, for each image that could be read."""
    if (images := opened.images) is None:
        return []
    decide = subject.task.probabilities
    found = collect(subject.network, subject.batches(images), images.records.names, decide).probabilities
    rows: list[list[float]] = found.tolist()
    return rows


def _decoded(
    name: str, image: Path | Pixels | BinaryIO, side: int, kept: Kept = RGB, most: int | None = None
) -> DecodedImage:
    if isinstance(image, Path):
        with FileReader(Path(), [str(image)]).open(0) as file:
            return decode(file, name, side, kept)
    if most is not None and not isinstance(image, np.ndarray):
        height, width = image_size(image, name)
        if height * width > most:
            raise Unreadable(name, f"{width} x {height} is more than {most:,} pixels")
        image.seek(0)
    return decode(image, name, side, kept)


def _one(name: str, classes: Sequence[str], probabilities: list[float], top: int) -> Prediction:
    every = dict(zip(classes, probabilities, strict=True))
    ranked = tuple(sorted(every.items(), key=lambda pair: -pair[1])[:top])
    return Prediction(name, *ranked[0], every, top=ranked)
