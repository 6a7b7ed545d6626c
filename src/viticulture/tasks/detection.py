# SPDX-License-Identifier: Apache-2.0
"""Detection: boxes of objects, and masks where the run is trained on them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

from ..analysis.galleries import Gallery
from ..data.batches.evaluation import whole_views
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.images.decode import Unreadable, image_size
from ..data.sources.coco import Numbering, numbering
from ..data.targets.objects import Annotations, Boxed
from ..data.targets.outlines import bitmap, check_outlines, encoded
from ..errors import UserError, comma_separated, some
from ..evaluation.inputs import ImageInput
from ..outputs import csv_text
from ..table import Table
from ..training.run_inputs import config_of
from .annotated_task import (
    BATCH,
    MAX_PICTURE_SIDE,
    AnnotatedModel,
    AnnotatedPredictor,
    AnnotatedTask,
    Found,
    image_sizes,
    original,
    picture_group,
    spread,
    thinned,
)
from .detection_metrics import DetectedObjects, DetectionResult, evaluate_detections, mean_boxes
from .detection_tables import class_table, confusion_table, curves, found_table, overlaps_table, summary
from .drawing import Picture, counts_of, draw_compared, draw_found
from .figures import Pictures, TaskPage, TaskSection
from .results import Results
from .task import Prediction, compared, tile_of, weakest

INSIDE = 0.5  # share from which a pixel belongs to a mask
STEP = 1e-5  # of scores as they are written


@dataclass(frozen=True, eq=False)
class DetectionPrediction(Prediction):
    """Objects in one image."""

    name: str  # the file; bytes of its name that are no text as Python escapes
    objects: DetectedObjects | None  # also the uncertain ones; None where the image could not be read
    classes: tuple[str, ...]
    error: str = ""
    threshold: float = 0.0  # score from which an object counts and is drawn
    size: tuple[int, int] = (0, 0)  # H and W of the upright image, pixels; zeros where it could not be read

    def __repr__(self) -> str:
        """Return name and counts, or the error, without arrays."""
        content = f"error={self.error!r}" if self.error else f"counts={self.counts()}"
        return f"{type(self).__name__}(name={self.name!r}, {content})"

    def counts(self) -> dict[str, int]:
        """Objects of each class that occurs, with a score of at least the threshold."""
        if self.objects is None:
            return {}
        certain = self.objects.labels[self.objects.scores >= self.threshold]
        numbers = np.bincount(certain, minlength=len(self.classes))
        return {name: int(number) for name, number in zip(self.classes, numbers, strict=True) if number}

    def coco(self) -> list[dict[str, Any]]:
        """Objects as COCO lists results: `bbox` is left, top, width and height; classes count from 1."""
        rows = []
        if (objects := self.objects) is None:
            return []
        for i, (box, score, label) in enumerate(
            zip(objects.boxes.tolist(), objects.scores.tolist(), objects.labels.tolist(), strict=True)
        ):
            left, top, right, bottom = box
            row: dict[str, Any] = {
                "category_id": label + 1,
                "category": self.classes[label],
                "bbox": [round(value, 2) for value in (left, top, right - left, bottom - top)],
                "score": round(score, 5),
            }
            rows.append(row if objects.outlines is None else {**row, "segmentation": objects.outlines[i]})
        return rows

    def row(self) -> dict[str, Any]:
        """Objects in COCO's words, whatever their score; those from `min_score` on count."""
        threshold = floor(self.threshold / STEP) * STEP  # scores are rounded: the object that is at it, counts
        about = {"name": self.name, "size": list(self.size), "min_score": round(threshold, 5)}
        return {**about, "counts": self.counts(), "objects": self.coco(), "error": self.error}

    def drawn(self, image: Picture) -> Picture:
        """Draw boxes and masks over the image, [H, W, 3], or over a smaller one in the same shape."""
        assert self.objects is not None
        return draw_found(image, _scaled(self.objects, self.size, image.shape[:2]), self.classes, self.threshold)

    @staticmethod
    def table(predictions: "Sequence[DetectionPrediction]") -> Table:
        def words(each: DetectionPrediction) -> str:
            return comma_separated(f"{count} {name}" for name, count in each.counts().items()) or "nothing"

        threshold = next((each.threshold for each in predictions if each.objects is not None), 0.0)
        below = f"objects with a score of at least {threshold:.2f}; a .json or .csv holds all" if threshold else ""
        return found_table(predictions, words, below)

    @staticmethod
    def csv(predictions: "Sequence[DetectionPrediction]", classes: Sequence[str] = ()) -> str:
        """A row an object, whatever its score, and one for an image without."""
        rows: list[list[object]] = [["name", "label", "score", "left", "top", "width", "height", "error"]]
        for each in predictions:
            listed = each.coco()
            rows += [[each.name, row["category"], row["score"], *row["bbox"], ""] for row in listed]
            rows += [] if listed else [[each.name, "", *[None] * 5, each.error]]
        return csv_text(rows)


def coco_results(predictions: Sequence[DetectionPrediction], listed: Numbering | None = None) -> list[dict[str, Any]]:
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
        for row in prediction.coco()
    ]


class Detection(AnnotatedTask):
    """Boxes of objects, and masks where the run is trained on them."""

    name = "detection"
    does = "finds objects"
    result = DetectionResult
    prediction = DetectionPrediction
    measure = "AP"
    pipeline = "object-detection"
    metric = ("mAP", "AP of boxes, overlaps of 50 to 95 %")
    contents = "objects"
    what = "Classes of objects"
    graph = "viticulture.deploy.onnx.detection.DetectorGraph"
    json_note = "boxes in COCO's format (left, top, width, height in pixels), including uncertain ones"

    @classmethod
    def evaluate_images(
        cls,
        model: AnnotatedModel,
        images: Images,
        true: Annotations,
        baseline: Any = None,
        threshold: float | None = None,
    ) -> Found:
        assert isinstance(true, Boxed)
        detections = list(find(model, images))
        sizes = image_sizes(images)
        result = evaluate_detections(detections, true, model.data_spec.classes, sizes, baseline, threshold)
        return result, [plain(each) for each in detections]

    def baseline(self, dataset: Dataset) -> NDArray[np.float64]:
        """The mean box of every class."""
        train = dataset.annotations["train"]
        assert isinstance(train, Boxed)
        return mean_boxes(train, image_sizes(dataset.train), len(dataset.classes))

    def thresholds(self, results: Mapping[str, Any]) -> dict[str, float]:
        """The score from which boxes count, by weights; of several splits the last one's, validation."""
        return {key.partition("/")[0]: result.threshold for key, result in results.items()}

    @classmethod
    def raw_predictions(cls, model: AnnotatedModel, images: Images) -> Iterator[DetectedObjects]:
        return find(model, images)

    def prediction_of(
        self, name: str, raw: DetectedObjects, classes: tuple[str, ...], threshold: float, size: tuple[int, int]
    ) -> DetectionPrediction:
        return DetectionPrediction(name, raw, classes, threshold=threshold, size=size)

    def unreadable(self, name: str, classes: tuple[str, ...], error: str) -> DetectionPrediction:
        return DetectionPrediction(name, None, classes, error)

    def predictor(self, weights: str = "", top: int = 1) -> AnnotatedPredictor:
        predictor = super().predictor(weights, top)
        heads: Any = predictor.model.network.roi_heads
        if heads.mask_predictor is not None:
            check_outlines()
        return predictor

    def listed(
        self, images: Sequence[ImageInput], classes: Sequence[str], out: str
    ) -> tuple[Numbering | None, Sequence[ImageInput]]:
        """The numbers of a list of COCO's where it alone is named, and its images."""
        if len(images) != 1 or not isinstance(images[0], Path) or images[0].suffix.lower() != ".json":
            return None, images
        numbers = numbering(images[0])
        if unknown := [name for name in classes if name not in numbers.categories]:
            raise UserError(
                f"{images[0]} has no number for {some(unknown, 3)}, a class of this network; add it to `categories`, "
                "or name the images"
            )
        if out.lower().endswith(".json"):
            _check_sizes(numbers)
        return numbers, [*numbers.images]

    def json(self, predictions: Sequence[DetectionPrediction], listed: Numbering | None) -> str:
        """COCO's results."""
        return json.dumps(coco_results(predictions, listed), indent=1) + "\n"

    @property
    def extra(self) -> str:
        """Masks are written as outlines."""
        return "dense" if config_of(self.run).values["method"].get("masks") else ""

    def limits(self, results: Results[Any]) -> list[str]:
        limits = [
            "Objects of other classes are missed, or predicted as one of its classes. A score is not a probability."
        ]
        if (result := results.counting) is None:
            return limits
        return [
            *limits,
            f"Objects are counted and drawn from a score of {result.threshold:.2f} on; choose another one for other "
            "images.",
            f"Images are resized to {config_of(self.run).images.image_size} pixels: small objects vanish in large "
            "photographs.",
            *weakest("AP", {each.name: each.ap for each in result.boxes.per_class}),
        ]

    def gallery(self, images: Images, true: Annotations, result: DetectionResult, saved: list[Any]) -> Gallery:
        assert isinstance(true, Boxed)
        detections, threshold = [restored(each) for each in saved], result.threshold
        classes = [each.name for each in result.boxes.per_class]
        counts = [counts_of(each, objects, threshold) for each, objects in zip(detections, true.objects, strict=True)]
        order = sorted(range(len(detections)), key=lambda i: -(counts[i]["wrong"] + counts[i]["missed"]))
        groups = [
            picture_group(
                images,
                i,
                [draw_compared(original(images, i), detections[i], true.objects[i], classes, threshold)],
                ", ".join(f"{count} {kind}" for kind, count in counts[i].items()),
            )
            for i in spread(order)
        ]
        note = (
            f"Boxes with a score of at least {threshold:.2f}. Blue: correct. Orange: no object, or another class. "
            "Yellow: missed. The worst images come first."
        )
        return Gallery("Correct, missed and wrong boxes", groups, note)

    @classmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        return [summary(results)]

    def page(self, results: Results[Any], galleries: Mapping[str, Sequence[Gallery]], own: bool = True) -> TaskPage:
        result, headline = results.counting, results.headline
        assert result is not None
        assert headline is not None
        cells = np.array(result.confusion)
        right, objects, boxes = int(np.trace(cells[:-1, :-1])), int(cells[:-1].sum()), int(cells[:, :-1].sum())
        others = ", ".join(compared(result.baselines))
        answer = (
            f"It finds {right:,} of {objects:,} objects in {result.images:,} {headline.split} images; "
            f"{boxes - right:,} of its {boxes:,} boxes are wrong. Its average precision (AP) is {headline.written} "
            f"(95 % interval {headline.written_interval})." + (f" For comparison: {others}." if others else "")
        )
        sections = [
            TaskSection("Pictures", [Pictures(galleries.get("annotated", ()), MAX_PICTURE_SIDE)]),
            TaskSection("Results", [summary(results)]),
            TaskSection("Precision and recall", [*curves(result), overlaps_table(result)]),
            TaskSection("Classes", [class_table(result)], sortable=True),
            TaskSection("Confusion", [confusion_table(result)]),
        ]
        return TaskPage(answer, tile_of("AP of boxes", results), sections)


@torch.inference_mode()
def find(model: AnnotatedModel, images: Images) -> Iterator[DetectedObjects]:
    """Detect objects in every image, in order."""
    for _, pixels, place in whole_views(images, model.data_spec, BATCH, model.device):
        for i, output in enumerate(model.network(pixels)):
            boxes = place.back(i, output["boxes"].float().cpu())
            solid = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)  # in padding there is nothing
            boxes, rest = boxes[solid], {name: value.float().cpu()[solid] for name, value in output.items()}
            outlines = None
            if "masks" in rest:
                height, width = place.sizes[i].tolist()
                outlines = [encoded(mask) for mask in _pasted(rest["masks"], boxes, height, width)]
            labels = rest["labels"].long().numpy()
            yield DetectedObjects(boxes.numpy(), rest["scores"].numpy(), labels, outlines)


def _pasted(masks: Tensor, boxes: Tensor, height: int, width: int) -> Iterator[NDArray[np.bool_]]:
    """Masks [n, 28, 28] of boxes as bitmaps [H, W]."""
    for mask, box in zip(masks, boxes, strict=True):
        yield (paste_masks_in_image(mask[None, None], box[None], (height, width))[0, 0] >= INSIDE).numpy()


def plain(detections: DetectedObjects) -> dict[str, Any]:
    """Ready for JSON; outlines are left out."""
    return {
        "boxes": [[round(side, 2) for side in box] for box in detections.boxes.tolist()],
        "scores": detections.scores.tolist(),  # unrounded: one of them is the threshold
        "labels": detections.labels.tolist(),
    }


def restored(content: Mapping[str, Any]) -> DetectedObjects:
    """The detections of which `plain` made this."""
    return DetectedObjects(
        np.array(content["boxes"], dtype=np.float32).reshape(-1, 4),
        np.array(content["scores"], dtype=np.float32),
        np.array(content["labels"], dtype=np.int64),
    )


def _check_sizes(listed: Numbering) -> None:
    """Raises: UserError where an image has another size than its list says: results would not match its objects."""
    for path, (height, width) in listed.sizes.items():
        with suppress(Unreadable, OSError), path.open("rb") as file:  # reported with the results
            size = image_size(file, str(path))
            if None not in (height, width) and size != (height, width):
                raise UserError(
                    f"{path} is {size[1]}x{size[0]} pixels upright, and its list says {width}x{height}, so results "
                    "would not lie where its objects do; save it as it is listed, or name images in place of the list"
                )


def _scaled(detections: DetectedObjects, size: tuple[int, int], other: tuple[int, ...]) -> DetectedObjects:
    """Detections in an image of one size, in its picture of another."""
    if size == other:
        return detections
    ratio = np.tile(np.array(other[::-1]) / size[::-1], 2).astype(np.float32)
    outlines = detections.outlines and [encoded(thinned(bitmap(each, *size), other)) for each in detections.outlines]
    return replace(detections, boxes=detections.boxes * ratio, outlines=outlines)
