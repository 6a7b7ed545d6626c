# SPDX-License-Identifier: Apache-2.0
"""Which classes or labels images show, and where a student looks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...analysis.attention import class_map
from ...errors import UserError
from ...evaluation.inputs import MAX_SENT_PIXELS, Item, OpenedItems, open_items
from ...evaluation.localization.metrics import score_maps
from ...evaluation.model import EvaluatedModel, check_classes, of_run, pictures
from ...evaluation.multilabel.predict import LabelsPrediction, ask_labels, labels_csv
from ...evaluation.multilabel.results import thresholds_of
from ...evaluation.predict import BATCH, Prediction, as_csv, ask_opened
from ...models.data_spec import DataSpec
from ...models.taps import Taps
from ...report.pictures import overlay, picture_uri
from ...training.run_folder import RunFolder

Predictions = Sequence[Prediction] | Sequence[LabelsPrediction]


@dataclass(frozen=True, eq=False)
class ClassAnswerer:
    """A run's student, as an `Answerer`.

    Args:
        subject: it, and how it is shown images.
        taps: on its attention; None for a network without any.
        ask: gives the predictions of opened images.
        as_csv: makes text of predictions and names of classes.
    """

    subject: EvaluatedModel
    taps: Taps | None
    ask: Callable[[OpenedItems], Predictions]
    as_csv: Callable[..., str] = as_csv
    tells: Literal["classes"] = "classes"

    @property
    def data_spec(self) -> DataSpec:
        """Its classes or labels."""
        return self.subject.data_spec

    @property
    def looks(self) -> bool:
        """Whether it has attention to draw."""
        return self.taps is not None

    def rows(self, items: Sequence[Item], look: bool = False) -> list[dict[str, Any]]:
        """Fields of the predictions. A picture is attention of the class token, or of the mean patch where there is
        none, mean of all layers and heads, over what the student was shown."""
        opened = open_items(self.subject, items, MAX_SENT_PIXELS)
        rows = [vars(prediction) for prediction in self.ask(opened)]
        if not look:
            return rows
        return [{**row, "look": picture} for row, picture in zip(rows, self._pictures(opened), strict=True)]

    def csv(self, items: Sequence[Item]) -> str:
        """A row an image."""
        return self.as_csv(self.ask(open_items(self.subject, items, MAX_SENT_PIXELS)), self.data_spec.classes)

    @torch.inference_mode()
    def _pictures(self, opened: OpenedItems) -> list[str]:
        if self.taps is None or opened.images is None:
            return [""] * len(opened.names)
        drawn = []
        for _, pixels in self.subject.views(opened.images):
            readings = self.taps(self.subject.normalized(pixels)).attention
            maps = [class_map(reading, reading.grid)[:, None] for reading in readings]
            rows, columns = max(layer.shape[-2:] for layer in maps)
            scores = score_maps(maps, (rows, columns)).cpu().numpy()
            drawn += [picture_uri(overlay(view, score)) for view, score in zip(pictures(pixels), scores, strict=True)]
        ready = iter(drawn)
        return ["" if error else next(ready) for error in opened.errors]


def answerer(run: RunFolder, weights: str = "") -> ClassAnswerer:
    """Load a run's student. Raises: UserError for a run that learnt without labels, or has no such weights.

    Args:
        run: a run that learnt classes.
        weights: best, last or ema; by default those that count.
    """
    subject = of_run(run, weights, BATCH)
    check_classes(run, subject.data_spec.classes)
    taps = _taps(subject)
    if not subject.data_spec.multilabel:
        return ClassAnswerer(subject, taps, lambda opened: ask_opened(subject, opened))
    thresholds = thresholds_of(run, weights or run.which()[0], len(subject.data_spec.classes))
    return ClassAnswerer(subject, taps, lambda opened: ask_labels(subject, opened, thresholds), labels_csv)


def _taps(subject: EvaluatedModel) -> Taps | None:
    try:
        return Taps(subject.network, frozenset({"attention"}))
    except UserError:  # a CNN
        return None
