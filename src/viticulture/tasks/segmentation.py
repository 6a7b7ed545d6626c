# SPDX-License-Identifier: Apache-2.0
"""Segmentation: the class of every pixel."""

import base64
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..analysis.galleries import Gallery
from ..data.batches.evaluation import whole_views
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.target_checks import counts as counts_of
from ..data.targets.objects import Annotations, Masked
from ..errors import UserError, comma_separated
from ..evaluation.inputs import ImageInput
from ..outputs import csv_text
from ..table import Cell, Column, Table, percent
from .annotated_task import (
    BATCH,
    MAX_PICTURE_SIDE,
    AnnotatedModel,
    AnnotatedTask,
    Found,
    model_of,
    original,
    picture_group,
    save_picture,
    spread,
    thinned,
)
from .detection_tables import found_table, pairs_table
from .drawing import Picture, draw_classes, palette
from .figures import ColorKey, Part, Pictures, TaskPage, TaskSection
from .results import Results
from .segmentation_metrics import SegmentationResult, evaluate_pixels
from .task import Prediction, class_columns, compared, tile_of, weakest

STRETCHED = 1 << 26  # values of a map that are held at once, 256 MB
MIN_SHARE = 0.005  # of an image's pixels, below which a class is not listed: it would read 0 %


@dataclass(frozen=True)
class ClassMap:
    """Compressed classes [H, W] of an image's pixels, so that predictions for thousands of photographs fit memory."""

    size: tuple[int, ...]
    content: bytes

    @staticmethod
    def of(pixels: NDArray[np.uint8]) -> "ClassMap":
        """Compress classes [H, W]."""
        return ClassMap(pixels.shape, zlib.compress(pixels.tobytes(), 1))

    def opened(self) -> NDArray[np.uint8]:
        """Return classes [H, W]."""
        return np.frombuffer(bytearray(zlib.decompress(self.content)), np.uint8).reshape(self.size)


@dataclass(frozen=True, eq=False)
class SegmentationPrediction(Prediction):
    """The classes of one image's pixels."""

    name: str  # the file; bytes of its name that are no text as Python escapes
    class_map: ClassMap | None  # None where the image could not be read
    classes: tuple[str, ...]
    error: str = ""
    size: tuple[int, int] = (0, 0)  # H and W of the upright image, pixels; zeros where it could not be read

    def __repr__(self) -> str:
        """Return name and shares, or the error, without arrays."""
        content = f"error={self.error!r}" if self.error else f"counts={self.counts()}"
        return f"{type(self).__name__}(name={self.name!r}, {content})"

    @property
    def pixels(self) -> NDArray[np.uint8] | None:
        """Classes [H, W], decompressed at each call; None where the image could not be read."""
        return None if self.class_map is None else self.class_map.opened()

    def shares(self) -> dict[str, float]:
        """Shares of the pixels, for every class; empty where the image could not be read."""
        if (pixels := self.pixels) is None:
            return {}
        shares = np.bincount(pixels.ravel(), minlength=len(self.classes)) / pixels.size
        return dict(zip(self.classes, shares.tolist(), strict=True))

    def counts(self) -> dict[str, float]:
        """Shares of the classes that occur."""
        return {name: share for name, share in self.shares().items() if share}

    def row(self) -> dict[str, Any]:
        """Shares, and the classes of all pixels as an indexed PNG in a data URI."""
        mask = ""
        if self.class_map is not None:
            self.indexed().save(file := io.BytesIO(), "PNG")
            mask = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return {"name": self.name, "size": list(self.size), "shares": self.shares(), "mask": mask, "error": self.error}

    def drawn(self, image: Picture) -> Picture:
        """The colors of its pixels' classes over the image, [H, W, 3], or over a smaller one in the same shape."""
        assert self.pixels is not None
        return draw_classes(image, thinned(self.pixels, image.shape[:2]))

    def indexed(self) -> Image.Image:
        """A picture whose values are the classes."""
        assert self.class_map is not None
        picture = Image.fromarray(self.class_map.opened(), mode="P")
        picture.putpalette(palette(len(self.classes)))
        return picture

    @staticmethod
    def table(predictions: "Sequence[SegmentationPrediction]") -> Table:
        def words(each: SegmentationPrediction) -> str:
            shares = sorted(each.counts().items(), key=lambda item: -item[1])
            return comma_separated(f"{name} {share:.0%}" for name, share in shares if share >= MIN_SHARE)

        return found_table(predictions, words, "")

    @staticmethod
    def csv(predictions: "Sequence[SegmentationPrediction]", classes: Sequence[str] = ()) -> str:
        """A row an image, a column a class with its share of the pixels."""
        rows: list[list[object]] = [["name", *class_columns(classes, ["name", "error"], "share"), "error"]]
        rows += [[each.name, *map(each.shares().get, classes), each.error] for each in predictions]
        return csv_text(rows)


class Segmentation(AnnotatedTask):
    """The class of every pixel."""

    name = "segmentation"
    does = "segments images"
    result = SegmentationResult
    prediction = SegmentationPrediction
    measure = "mIoU"
    pipeline = "image-segmentation"
    metric = ("mean_iou", "mIoU")
    graph = "viticulture.deploy.onnx.detection.SegmenterGraph"
    contents = "pixels"
    what = "Classes of pixels"
    json_note = "the share of every class, and a PNG whose values are the classes"

    @classmethod
    def evaluate_images(
        cls,
        model: AnnotatedModel,
        images: Images,
        true: Annotations,
        baseline: Any = None,
        threshold: float | None = None,
    ) -> Found:
        assert isinstance(true, Masked)
        result, ious = evaluate_pixels(classify_pixels(model, images), true, model.data_spec.classes, baseline)
        return result, [None if np.isnan(value) else float(value) for value in ious]

    def baseline(self, dataset: Dataset) -> int:
        """The most frequent class of the training pixels."""
        return int(counts_of(dataset.classes, dataset.annotations["train"]).argmax())

    @classmethod
    def raw_predictions(cls, model: AnnotatedModel, images: Images) -> Iterator[NDArray[np.uint8]]:
        return classify_pixels(model, images)

    def prediction_of(
        self, name: str, raw: NDArray[np.uint8], classes: tuple[str, ...], threshold: float, size: tuple[int, int]
    ) -> SegmentationPrediction:
        return SegmentationPrediction(name, ClassMap.of(raw), classes, size=size)

    def unreadable(self, name: str, classes: tuple[str, ...], error: str) -> SegmentationPrediction:
        return SegmentationPrediction(name, None, classes, error)

    def listed(
        self, images: Sequence[ImageInput], classes: Sequence[str], out: str
    ) -> tuple[Any, Sequence[ImageInput]]:
        """The images. Raises: UserError for a .json file."""
        if out.lower().endswith(".json"):
            raise UserError(f"a segmenter's predictions are pictures; name a folder or a .csv file, got --out {out}")
        return None, images

    def draw(self, folder: Path, stem: str, prediction: SegmentationPrediction, picture: Picture) -> None:
        """Write STEM.png, and STEM-classes.png, indexed by class."""
        super().draw(folder, stem, prediction, picture)
        save_picture(folder / f"{stem}-classes.png", prediction.indexed())

    def gallery(self, images: Images, true: Annotations, result: SegmentationResult, saved: list[Any]) -> Gallery:
        """Image, truth and prediction; images without labeled pixels come last."""
        assert isinstance(true, Masked)
        known = [inf if iou is None else iou for iou in saved]
        numbers = spread(sorted(range(len(images)), key=known.__getitem__))
        predicted = list(classify_pixels(model_of(self.run), images.part(torch.tensor(numbers))))
        groups = []
        for i, classes in zip(numbers, predicted, strict=True):
            image, mask = original(images, i), true.original(i)
            drawn = [image, draw_classes(image, mask), draw_classes(image, classes)]
            share = "no labeled pixels" if saved[i] is None else f"mIoU {100 * saved[i]:.0f} %"
            groups.append(picture_group(images, i, drawn, f"image, truth, prediction: {share}"))
        note = "Unlabeled pixels have no color in the truth. The worst images come first."
        return Gallery("Classes of pixels", groups, note)

    def limits(self, results: Results[Any]) -> list[str]:
        scores = {each.name: each.iou for each in results.counting.per_class} if results.counting else {}
        return ["Every pixel gets one of its classes, also where something else is visible.", *weakest("IoU", scores)]

    @classmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        return [summary(results)]

    def page(self, results: Results[Any], galleries: Mapping[str, Sequence[Gallery]], own: bool = True) -> TaskPage:
        result, headline = results.counting, results.headline
        assert result is not None
        assert headline is not None
        others = ", ".join(compared(result.baselines))
        answer = (
            f"It assigns {percent(result.accuracy)} of the labeled pixels of {result.images:,} {headline.split} images "
            f"to the right class. Its mean IoU over the classes is {headline.written} (95 % interval "
            f"{headline.written_interval})." + (f" For comparison: {others}." if others else "")
        )
        pictures, names = galleries.get("annotated", ()), [each.name for each in result.per_class]
        key: list[Part] = [ColorKey(self.colors(names))] if pictures else []
        sections = [
            TaskSection("Pictures", [*key, Pictures(pictures, MAX_PICTURE_SIDE)]),
            TaskSection("Results", [summary(results)]),
            TaskSection("Classes", [class_table(result)], sortable=True),
            TaskSection("Confusion", [pairs_table(names, result.confusion, "pixels")]),
        ]
        return TaskPage(answer, tile_of("mIoU", results), sections)


@torch.inference_mode()
def classify_pixels(model: AnnotatedModel, images: Images) -> Iterator[NDArray[np.uint8]]:
    """Predict the classes [H, W] of every image, in order and in the size of the original."""
    for _, pixels, place in whole_views(images, model.data_spec, BATCH, model.device):
        logits = model.network(pixels).float()
        for i in range(len(logits)):
            height, width = place.extents[i].tolist()
            size = (int(place.sizes[i, 0]), int(place.sizes[i, 1]))
            yield most_probable(logits[i : i + 1, :, :height, :width], size).cpu().numpy()


def most_probable(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the most probable class of every pixel, [H, W] uint8, of logits [1, C, h, w] resized to H and W.

    Of large images a few classes are resized at once: a photograph of 50 megapixels in 20 classes would be 4 GB.
    """
    (H, W), best, place = size, None, None
    some = max(1, STRETCHED // (H * W))
    for first, part in enumerate(torch.split(logits, some, 1)):
        value, label = F.interpolate(part, size=size, mode="bilinear")[0].max(0)
        label = label.to(torch.uint8) + first * some
        if best is None or place is None:
            best, place = value, label
        else:
            higher = value > best  # of equals the first stays, as argmax has it
            best, place = torch.where(higher, value, best), torch.where(higher, label, place)
    assert place is not None
    return place


def summary(results: Results[SegmentationResult]) -> Table:
    """One row for each set of weights and split, the one that counts first, then the baselines."""
    columns = [Column("weights/split")]
    columns += [Column(name, "percent") for name in ("mIoU", "low", "high", "pixels right")]
    columns.append(Column("images", "count"))
    rows: list[list[Cell]] = [
        [key, each.miou, *each.interval, each.accuracy, each.images] for key, each in results.counting_first.items()
    ]
    if (first := results.counting) is not None:
        rows += [[name, share, None, None, None, first.images] for name, share in first.baselines.items()]
    note = "Mean over classes of intersection over union of all pixels. Low and high: 95 % interval over images."
    return Table("Classes of pixels", columns, rows, note)


def class_table(result: SegmentationResult) -> Table:
    """One row a class."""
    columns = [Column("class"), Column("pixels", "count"), Column("IoU", "percent")]
    return Table("Classes", columns, [[each.name, each.pixels, each.iou] for each in result.per_class])
