# SPDX-License-Identifier: Apache-2.0
"""Predictions of a run for uploaded images, as JSON, CSV and pictures."""

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import floor
from typing import Any

import numpy as np
import torch

from ...analysis.attention import class_map
from ...data.targets.outlines import check_outlines
from ...errors import UserError
from ...evaluation.dense.draw import color_of
from ...evaluation.dense.predict import DensePredictor
from ...evaluation.dense.prediction import DensePrediction, coco_objects, drawn, indexed, objects_csv, pixels_csv
from ...evaluation.inputs import MAX_SENT_PIXELS, Item, OpenedItems, open_items
from ...evaluation.localization.metrics import score_maps
from ...evaluation.model import check_classes, of_run, pictures
from ...evaluation.multilabel.predict import LabelsPrediction, ask_labels, labels_csv
from ...evaluation.multilabel.results import thresholds_of
from ...evaluation.predict import BATCH, Prediction, as_csv, ask_opened
from ...models.data_spec import DataSpec
from ...models.taps import Taps
from ...report.pictures import overlay, picture_uri
from ...tasks.task import Task

SCORE_STEP = 1e-5  # of scores in JSON
MAX_SIDE = 800
"""Pixels, the longer side of a drawn picture."""


class Predictor(ABC):
    """A run's network for one request at a time.

    Attributes:
        data_spec: its classes.
        draws: "always", "optional" (on request) or "never", whether predictions are drawn on the page.
        colors: of the classes in drawings.
        what: of the predictions, for the page.
        json_note: describes the JSON, for the page.
    """

    data_spec: DataSpec
    draws: str = "always"
    what: str
    json_note: str = ""

    @property
    def colors(self) -> dict[str, str]:
        """Colors of the classes in drawings, as CSS."""
        return {name: "#{:02x}{:02x}{:02x}".format(*color_of(c)) for c, name in enumerate(self.data_spec.classes)}

    @abstractmethod
    def rows(self, items: Sequence[Item], draw: bool = False) -> list[dict[str, Any]]:
        """Return the numbers of `viticulture predict` for the same images together, for JSON, one row per item.

        Args:
            items: at most `predict.BATCH`, or bits may differ from the command's.
            draw: add `picture` to each row, a data URI; empty for what cannot be read or drawn.
        """

    @abstractmethod
    def csv(self, items: Sequence[Item]) -> str:
        """Return the text of `viticulture predict --out FILE.csv`."""


class ClassPredictor(Predictor):
    """Classes or labels, with fields as in `Prediction` and `LabelsPrediction`. A picture is the attention of the class
    token, or of the mean patch without one, mean of all layers and heads, over the student's input.

    Raises: UserError for a run that was trained without labels, or has no such weights.
    """

    what = "Classes"

    def __init__(self, task: Task, weights: str = "") -> None:
        self.model = model = of_run(task.run, weights, BATCH)
        self.data_spec = model.data_spec
        check_classes(task.run, self.data_spec.classes)
        which, count = weights or task.run.which()[0], len(self.data_spec.classes)
        self.thresholds = thresholds_of(task.run, which, count) if self.data_spec.multilabel else None
        self.taps: Taps | None = None
        try:
            self.taps = Taps(model.network, frozenset({"attention"}))
        except UserError:  # a CNN
            self.draws = "never"
        else:
            self.draws = "optional"

    @property
    def colors(self) -> dict[str, str]:
        return {}

    def rows(self, items: Sequence[Item], draw: bool = False) -> list[dict[str, Any]]:
        opened = open_items(self.model, items, MAX_SENT_PIXELS)
        rows = [vars(prediction) for prediction in self._predict(opened)]
        if not draw:
            return rows
        return [{**row, "picture": picture} for row, picture in zip(rows, self._pictures(opened), strict=True)]

    def csv(self, items: Sequence[Item]) -> str:
        predictions = self._predict(open_items(self.model, items, MAX_SENT_PIXELS))
        write: Any = as_csv if self.thresholds is None else labels_csv
        return write(predictions, self.data_spec.classes)

    def _predict(self, opened: OpenedItems) -> Sequence[Prediction] | Sequence[LabelsPrediction]:
        if self.thresholds is None:
            return ask_opened(self.model, opened)
        return ask_labels(self.model, opened, self.thresholds)

    @torch.inference_mode()
    def _pictures(self, opened: OpenedItems) -> list[str]:
        if self.taps is None or opened.images is None:
            return [""] * len(opened.names)
        uris = []
        for _, pixels in self.model.views(opened.images):
            readings = self.taps(self.model.normalized(pixels)).attention
            maps = [class_map(reading, reading.grid)[:, None] for reading in readings]
            rows, columns = max(layer.shape[-2:] for layer in maps)
            scores = score_maps(maps, (rows, columns)).cpu().numpy()
            uris += [picture_uri(overlay(view, score)) for view, score in zip(pictures(pixels), scores, strict=True)]
        ready = iter(uris)
        return ["" if error else next(ready) for error in opened.errors]


class ImagePredictor(Predictor):
    """Predictions within an image, which are drawn over it."""

    def __init__(self, task: Task, weights: str = "") -> None:
        self.predictor = DensePredictor(task.run, weights)
        self.data_spec = self.predictor.subject.data_spec

    def rows(self, items: Sequence[Item], draw: bool = False) -> list[dict[str, Any]]:
        rows = []
        for prediction, image in self.predictor.predict(items, MAX_SENT_PIXELS, MAX_SIDE if draw else 0):
            size = {"name": prediction.name, "size": list(prediction.size)}
            row = {**size, **self.fields(prediction), "error": prediction.error}
            if draw:
                row["picture"] = "" if image is None else picture_uri(drawn(prediction, np.asarray(image)), MAX_SIDE)
            rows.append(row)
        return rows

    @abstractmethod
    def fields(self, prediction: DensePrediction) -> dict[str, Any]:
        """Return the fields of a row between name and error."""


class ObjectPredictor(ImagePredictor):
    """Objects as in COCO, of any score; those from `min_score` on are counted and drawn."""

    what = "Classes of objects"
    json_note = ": boxes as in COCO (left, top, width, height in pixels of the image), with low scores too"

    def __init__(self, task: Task, weights: str = "") -> None:
        super().__init__(task, weights)
        network: Any = self.predictor.subject.network
        if network.roi_heads.mask_predictor is not None:
            check_outlines()

    def fields(self, prediction: DensePrediction) -> dict[str, Any]:
        lowest = floor(prediction.least / SCORE_STEP) * SCORE_STEP  # an object at the rounded minimum counts
        counts = prediction.counts()
        return {"min_score": round(lowest, 5), "counts": counts, "objects": coco_objects(prediction)}

    def csv(self, items: Sequence[Item]) -> str:
        return objects_csv(prediction for prediction, _ in self.predictor.predict(items, MAX_SENT_PIXELS))


class PixelPredictor(ImagePredictor):
    """Shares of the classes, and the classes of all pixels as an indexed PNG."""

    what = "Classes of pixels"
    json_note = ": the share of every class, and a PNG whose values are the classes"

    def fields(self, prediction: DensePrediction) -> dict[str, Any]:
        if prediction.class_map is None:
            return {"shares": {}, "mask": ""}
        file = io.BytesIO()
        indexed(prediction).save(file, "PNG")
        mask = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return {"shares": prediction.shares(), "mask": mask}

    def csv(self, items: Sequence[Item]) -> str:
        predictions = (prediction for prediction, _ in self.predictor.predict(items, MAX_SENT_PIXELS))
        return pixels_csv(predictions, self.data_spec.classes)


def load_predictor(task: Task, weights: str = "") -> Predictor:
    """Load the predictor of a run.

    Args:
        task: the run's.
        weights: best, last or ema; by default those that count.

    Raises: UserError for a run that was trained without labels, or has no such weights.
    """
    kinds: dict[str, type[Predictor]] = {"detection": ObjectPredictor, "segmentation": PixelPredictor}
    return kinds.get(task.name, ClassPredictor)(task, weights)  # type: ignore[call-arg]
