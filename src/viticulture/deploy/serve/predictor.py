# SPDX-License-Identifier: Apache-2.0
"""Predictions of a run for uploaded images, as JSON, CSV and pictures."""

from collections.abc import Sequence
from typing import Any, Literal

from ...evaluation.inputs import MAX_SENT_PIXELS, Item
from ...report.pictures import picture_uri
from ...tasks.task import Task

MAX_SIDE = 800  # pixels, the longer side of a drawn picture


class Predictor:
    """A run's network for one request at a time.

    Args:
        weights: best, last or ema; by default those that count.

    Attributes:
        data_spec: its classes.
        draws: "always", "optional" (on request) or "never", whether predictions are drawn on the page.
        what: of the predictions, for the page.
        json_note: describes the JSON, for the page.
        colors: of the classes in drawings, as CSS.

    Raises: UserError for a run that was trained without labels, or has no such weights.
    """

    def __init__(self, task: Task, weights: str = "") -> None:
        self.task, self.predictor = task, task.predictor(weights)
        self.data_spec = self.predictor.data_spec
        optional: Literal["optional", "never"] = "optional" if self.predictor.draws else "never"
        self.draws: Literal["always", "optional", "never"] = "always" if task.draws_predictions else optional
        self.what, self.json_note = task.what, f": {task.json_note}" if task.json_note else ""
        colors = task.colors(self.data_spec.classes)
        self.colors = {name: "#{:02x}{:02x}{:02x}".format(*color) for name, color in colors.items()}

    def rows(self, items: Sequence[Item], draw: bool = False) -> list[dict[str, Any]]:
        """Return the numbers of `viticulture predict` for the same images together, for JSON, one row per item.

        Args:
            items: no more than are fed to a network at once, or bits may differ from the command's.
            draw: add `picture` to each row, a data URI; empty for what cannot be read or drawn.
        """
        rows = []
        for prediction, picture in self.predictor.predict(items, MAX_SENT_PIXELS, MAX_SIDE if draw else 0):
            sides = (MAX_SIDE,) if self.draws == "always" else ()
            uri = "" if picture is None else picture_uri(picture, *sides)
            rows.append({**prediction.row(), **({"picture": uri} if draw else {})})
        return rows

    def csv(self, items: Sequence[Item]) -> str:
        """Return the text of `viticulture predict --out FILE.csv`."""
        predictions = [prediction for prediction, _ in self.predictor.predict(items, MAX_SENT_PIXELS)]
        return self.task.prediction.csv(predictions, self.data_spec.classes)
