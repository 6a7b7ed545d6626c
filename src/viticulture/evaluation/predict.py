# SPDX-License-Identifier: Apache-2.0
"""Classify files that a person names: whatever can be read is classified, the rest is listed with its reason."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.augment.crop import CentreCrop
from ..data.dataset import Pictures
from ..data.decode import Unreadable, decode
from ..data.files import open_file
from ..data.folders import is_image, scan
from ..data.images import Records, StoredImages
from ..data.loader import CPU, evaluation_batches
from ..data.sources import readable
from ..disk import replacing
from ..errors import UserError
from ..models.task import Task
from ..models.weights import load
from ..training.rundir import RunDir
from ..training.session import recipe_of
from .accuracy import collect
from .judge import check_classes

BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """What a student says of one image.

    Args:
        name: the file.
        label: the likeliest class; empty if the image could not be read.
        probability: of that class.
        probabilities: of every class.
        error: why the image could not be read.
    """

    name: str
    label: str
    probability: float
    probabilities: dict[str, float]
    error: str = ""


def predict_files(run: RunDir, weights: str, images: Sequence[str]) -> list[Prediction]:
    """Classify files and the images in folders, in the order given, as the run's test images were looked at.

    Args:
        run: a run with weights.
        weights: best, last or ema.
        images: files or folders.

    Raises: UserError if a path does not exist, or there is no image in what was named.
    """
    if not all(images):
        raise UserError("an image to classify must have a name, got an empty word; write . for the current folder")
    paths = [path for name in images for path in _files(Path(name))]
    if not paths:
        raise UserError(f"no images in {', '.join(images) or 'nothing'}; name image files, or folders that hold some")
    student, task, _ = load(run.weights(weights))
    check_classes(run, task.classes)
    pictures: Pictures = recipe_of(run).section("images")
    found: list[Prediction] = []
    for start in range(0, len(paths), BATCH):
        found += _classify(student, task, pictures, paths[start : start + BATCH])
    return found


def write(found: Sequence[Prediction], path: Path) -> None:
    """The predictions as .csv (a column a class) or .json. Raises: UserError for another ending."""
    if path.suffix == ".json":
        text = json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False) + "\n"
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    elif path.suffix == ".csv":
        classes = next((list(one.probabilities) for one in found if one.probabilities), [])
        with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["name", "label", "probability", *classes, "error"])
            for one in found:
                shares = [one.probabilities.get(name, "") for name in classes]
                rows.writerow([one.name, one.label, one.probability if one.label else "", *shares, one.error])
    else:
        raise UserError(f"predictions are written as .csv or .json, got {path}")


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (path / name for name in sorted(file.path for file in scan(path)[0]) if is_image(name))
    elif path.exists():
        yield path
    else:
        raise UserError(f"there is no file or folder {path}")


def _classify(student: torch.nn.Module, task: Task, pictures: Pictures, paths: Sequence[Path]) -> list[Prediction]:
    side = pictures.store_size
    assert side is not None, "a run's recipe is settled"
    pixels: dict[Path, Tensor] = {}
    sizes: list[tuple[int, int]] = []
    errors: dict[Path, str] = {}
    for path in paths:
        try:
            with open_file(path) as file:
                picture = decode(file, str(path), side)
        except Unreadable as error:
            errors[path] = error.reason
        except OSError as error:
            errors[path] = error.strerror or str(error)
        else:
            squeezed = picture.image.resize((side, side), Image.Resampling.BICUBIC)
            pixels[path] = torch.from_numpy(np.array(squeezed)).permute(2, 0, 1)
            sizes.append((picture.height, picture.width))
    shares: dict[Path, list[float]] = {}
    if pixels:
        names = [str(path) for path in pixels]
        records = Records(torch.full((len(names),), -1), torch.tensor(sizes), names)
        images = StoredImages(torch.stack(list(pixels.values())), torch.arange(len(names)), records)
        batches = evaluation_batches(
            images, task, BATCH, CPU, CentreCrop(pictures.eval_crop, pictures.eval_interpolation)
        )
        shares = dict(zip(pixels, collect(student, batches, names).probabilities.tolist(), strict=True))
    return [
        Prediction(readable(str(path)), "", 0.0, {}, errors[path])
        if path in errors
        else _one(readable(str(path)), task, shares[path])
        for path in paths
    ]


def _one(name: str, task: Task, shares: list[float]) -> Prediction:
    best = max(range(len(shares)), key=shares.__getitem__)
    return Prediction(name, task.classes[best], shares[best], dict(zip(task.classes, shares, strict=True)))
