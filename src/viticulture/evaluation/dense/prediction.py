# SPDX-License-Identifier: Apache-2.0
"""What is found in one image, and its forms: rows of COCO's results, of a CSV, and pictures."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...data.sources.coco import Numbering
from ...data.targets.outlines import bitmap, encoded
from ...outputs import csv_text
from ..predict import class_columns
from .draw import Picture, draw_classes, draw_found, palette
from .subject import Found


@dataclass(frozen=True)
class ClassMap:
    """Classes [H, W] of an image's pixels, deflated: so the answers to thousands of photographs are held at once.

    Args:
        size: H and W.
        content: a byte a pixel, row by row, as zlib deflates them.
    """

    size: tuple[int, ...]
    content: bytes

    @staticmethod
    def of(pixels: NDArray[np.uint8]) -> "ClassMap":
        """Of classes [H, W]."""
        return ClassMap(pixels.shape, zlib.compress(pixels.tobytes(), 1))

    def opened(self) -> NDArray[np.uint8]:
        """Classes [H, W]."""
        return np.frombuffer(bytearray(zlib.decompress(self.content)), np.uint8).reshape(self.size)


@dataclass(frozen=True, eq=False)
class DensePrediction:
    """What is found in one image.

    Args:
        name: the file; bytes of its name that are no text as Python escapes.
        objects: of a detector; None of a segmenter, or where the image could not be read.
        class_map: of a segmenter; None of a detector, or where the image could not be read.
        classes: names.
        error: why the image could not be read.
        least: score from which an object counts and is drawn; `objects` holds the uncertain ones, too.
        size: H and W of the upright image, pixels; zeros where it could not be read.
    """

    name: str
    objects: Found | None
    class_map: ClassMap | None
    classes: tuple[str, ...]
    error: str = ""
    least: float = 0.0
    size: tuple[int, int] = (0, 0)

    def __repr__(self) -> str:
        """Name and what was found, or the error; arrays are left out."""
        said = f"error={self.error!r}" if self.error else f"counts={self.counts()}"
        return f"DensePrediction(name={self.name!r}, {said})"

    @property
    def pixels(self) -> NDArray[np.uint8] | None:
        """Classes [H, W] of a segmenter, made anew at each call; else None."""
        return None if self.class_map is None else self.class_map.opened()

    def counts(self) -> dict[str, float]:
        """Objects of each class that occurs, with a score of at least `least`, or shares of the pixels."""
        if self.objects is not None:
            certain = self.objects.labels[self.objects.scores >= self.least]
            numbers = np.bincount(certain, minlength=len(self.classes))
            return {name: int(number) for name, number in zip(self.classes, numbers, strict=True) if number}
        return {name: share for name, share in self.shares().items() if share}

    def shares(self) -> dict[str, float]:
        """Of the pixels, for every class; empty of a detector, or where the image could not be read."""
        if (pixels := self.pixels) is None:
            return {}
        shares = np.bincount(pixels.ravel(), minlength=len(self.classes)) / pixels.size
        return dict(zip(self.classes, shares.tolist(), strict=True))


def coco_objects(prediction: DensePrediction) -> list[dict[str, Any]]:
    """Objects of one image as COCO lists results: `bbox` is left, top, width and height; classes count from 1."""
    rows = []
    if (objects := prediction.objects) is None:
        return []
    for i, (box, score, label) in enumerate(
        zip(objects.boxes.tolist(), objects.scores.tolist(), objects.labels.tolist(), strict=True)
    ):
        left, top, right, bottom = box
        row: dict[str, Any] = {
            "category_id": label + 1,
            "category": prediction.classes[label],
            "bbox": [round(value, 2) for value in (left, top, right - left, bottom - top)],
            "score": round(score, 5),
        }
        rows.append(row if objects.outlines is None else {**row, "segmentation": objects.outlines[i]})
    return rows


def coco_results(predictions: Sequence[DensePrediction], listed: Numbering | None = None) -> list[dict[str, Any]]:
    """Objects of all images, numbered as a list of these images numbers them and its classes.

    Without a list images, too, are numbered from 1 in their order. They are named besides.
    """
    images = [*listed.images.values()] if listed else range(1, len(predictions) + 1)
    return [
        {
            "image_id": number,
            "file_name": prediction.name,
            **row,
            **({"category_id": listed.categories[row["category"]]} if listed else {}),
        }
        for number, prediction in zip(images, predictions, strict=True)
        for row in coco_objects(prediction)
    ]


def pixels_csv(predictions: Iterable[DensePrediction], classes: Sequence[str]) -> str:
    """A row an image, a column a class."""
    rows: list[list[object]] = [["name", *class_columns(classes, ["name", "error"], "share"), "error"]]
    rows += [[each.name, *map(each.shares().get, classes), each.error] for each in predictions]
    return csv_text(rows)


def objects_csv(predictions: Iterable[DensePrediction]) -> str:
    """A row an object, whatever its score, and one for an image without."""
    rows: list[list[object]] = [["name", "label", "score", "left", "top", "width", "height", "error"]]
    for each in predictions:
        listed = coco_objects(each)
        rows += [[each.name, row["category"], row["score"], *row["bbox"], ""] for row in listed]
        rows += [] if listed else [[each.name, "", *[None] * 5, each.error]]
    return csv_text(rows)


def drawn(prediction: DensePrediction, image: Picture) -> Picture:
    """Boxes and masks over an image, or the colors of its pixels' classes.

    Args:
        prediction: of an image that could be read.
        image: it, [H, W, 3], or smaller in the same shape.
    """
    size = image.shape[:2]
    if (pixels := prediction.pixels) is not None:
        return draw_classes(image, _thinned(pixels, size))
    detections = prediction.objects
    assert detections is not None
    return draw_found(image, _scaled(detections, prediction.size, size), prediction.classes, prediction.least)


def indexed(prediction: DensePrediction) -> Image.Image:
    """A segmenter's answer as a picture whose values are the classes."""
    assert prediction.class_map is not None
    picture = Image.fromarray(prediction.class_map.opened(), mode="P")
    picture.putpalette(palette(len(prediction.classes)))
    return picture


def _scaled(detections: Found, size: tuple[int, int], wanted: tuple[int, ...]) -> Found:
    """What was found in an image of one size, in its smaller picture of another."""
    if size == wanted:
        return detections
    ratio = np.tile(np.array(wanted[::-1]) / size[::-1], 2).astype(np.float32)
    outlines = detections.outlines and [encoded(_thinned(bitmap(each, *size), wanted)) for each in detections.outlines]
    return replace(detections, boxes=detections.boxes * ratio, outlines=outlines)


def _thinned(values: NDArray[np.uint8], wanted: tuple[int, ...]) -> NDArray[np.uint8]:
    """Of [H, W] values those in the middle of each pixel of a picture of the wanted height and width."""
    rows, columns = ((np.arange(out) + 0.5) * side // out for side, out in zip(values.shape, wanted, strict=True))
    return values[rows.astype(int)][:, columns.astype(int)]
