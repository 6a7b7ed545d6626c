# SPDX-License-Identifier: Apache-2.0
"""Where objects are in images, or what their pixels show, and a picture with them drawn."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Literal

import numpy as np

from ...data.targets.outlines import check_outlines
from ...evaluation.dense.predict import DensePredictor
from ...evaluation.dense.prediction import DensePrediction, coco_objects, drawn, indexed, objects_csv, pixels_csv
from ...evaluation.inputs import MAX_SENT_PIXELS, Item
from ...models.data_spec import DataSpec
from ...models.detection.detector import Detector
from ...report.pictures import picture_uri
from ...training.run_folder import RunFolder

STEP = 1e-5  # of scores as they are written
LONGEST = 800
"""Pixels, the longer side of a drawn picture."""


@dataclass(frozen=True, eq=False)
class DenseAnswerer:
    """A run's detector or segmenter, as an `Answerer`.

    Args:
        predictor: it.
        tells: what it tells of an image.
    """

    predictor: DensePredictor
    tells: Literal["objects", "pixels"]
    looks: bool = True

    @property
    def data_spec(self) -> DataSpec:
        """Its classes."""
        return self.predictor.subject.data_spec

    def rows(self, items: Sequence[Item], look: bool = False) -> list[dict[str, Any]]:
        """Objects in COCO's words, whatever their score, or the classes of all pixels as an indexed PNG. A picture has
        boxes and masks from `least` on, or the pixels' colors, drawn over the image."""
        rows = []
        for prediction, image in self.predictor.predict(items, MAX_SENT_PIXELS, LONGEST if look else 0):
            row = {"name": prediction.name, **self._told(prediction), "error": prediction.error}
            if look:
                row["look"] = "" if image is None else picture_uri(drawn(prediction, np.asarray(image)), LONGEST)
            rows.append(row)
        return rows

    def csv(self, items: Sequence[Item]) -> str:
        """A row an object, or a row an image with the share of every class."""
        predictions = (prediction for prediction, _ in self.predictor.predict(items, MAX_SENT_PIXELS))
        return objects_csv(predictions) if self.tells == "objects" else pixels_csv(predictions, self.data_spec.classes)

    def _told(self, prediction: DensePrediction) -> dict[str, Any]:
        size = list(prediction.size)
        if self.tells == "objects":
            least = floor(prediction.least / STEP) * STEP  # scores are rounded: the object that is at it, counts
            counts = prediction.counts()
            return {"size": size, "least": round(least, 5), "counts": counts, "objects": coco_objects(prediction)}
        if prediction.class_map is None:
            return {"size": size, "shares": {}, "mask": ""}
        file = io.BytesIO()
        indexed(prediction).save(file, "PNG")
        mask = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return {"size": size, "shares": prediction.shares(), "mask": mask}


def dense_answerer(run: RunFolder, weights: str = "") -> DenseAnswerer:
    """Load a run's network. Raises: UserError for a run that classifies, or has no such weights.

    Args:
        run: a run of a detector or a segmenter.
        weights: best, last or ema; by default those that count.
    """
    predictor = DensePredictor(run, weights)
    network = predictor.subject.network
    if isinstance(network, Detector) and network.roi_heads.mask_predictor is not None:
        check_outlines()
    return DenseAnswerer(predictor, "objects" if isinstance(network, Detector) else "pixels")
